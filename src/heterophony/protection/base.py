"""The interface of a protection: it transforms what clients and server send each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

from ..core.algorithm import Reply
from ..core.client import Client
from ..core.settings import CheckedSettings, list_settings
from ..core.tensors import Tensors

PREFIX = "protection/"  # prefix of tensors that a protection sends or keeps on a client
MergeKind = Literal["any", "symmetric", "sum"]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The settings of a run on which a protection may depend."""

    rounds: int
    clients: int
    participation_kind: str  # poisson, uniform, skewed or own
    rate: float | None  # probability that a client is selected in a round; None for a user's rule
    weights: str  # samples or uniform
    batch: int  # examples in a mini-batch
    shares_buffers: bool  # whether running statistics are averaged
    unreliable: bool  # whether a selected client may fail to reply
    attacked: bool  # whether there are simulated malicious clients
    protections: tuple[Protection, ...]  # all protections that change something, in order


@dataclass(frozen=True, kw_only=True)
class Departure:
    """Information for a protection's ``leave`` about a reply that leaves the client."""

    client: str
    t: int
    received: Tensors  # sent by the algorithm to the client
    announced: Tensors  # what the server's protections sent in addition
    weight: float  # weight of the reply in a mean
    seed: int  # seed of the run, which all participants know
    secret: bytes  # secret of this client or of the simulation; never sent
    metrics: Mapping[str, float] = field(default_factory=dict)  # metrics measured in training


class PrivacyPromise(NamedTuple):
    """The differential-privacy guarantee that ε and δ give: for which unit, and how ε is computed."""

    unit: str  # client or example: whether one more is in the data cannot be detected
    delta: float
    accounting: str


class Departed(NamedTuple):
    """The result of ``leave``: tensors to send, tensors to keep on the client, and metrics to send."""

    tensors: Tensors
    kept: Tensors = Tensors()
    metrics: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """Information for a protection's ``gather`` about the replies of a round."""

    t: int
    received: Mapping[str, Tensors]  # client -> what the algorithm sent
    expected: float | None  # the expected number of replies, if clients are drawn independently
    empty_reply: Reply  # a reply without changes, for a round without replies
    secret: bytes  # secret of the run, which no client knows


@dataclass(frozen=True)
class Gathered:
    """The result of ``gather``: the replies to merge, and the clients whose replies were dropped or clipped."""

    replies: Sequence[Reply]
    filtered: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Protection(CheckedSettings):
    """A protection, which transforms the tensors that clients send. Algorithms do not know about it.

    ``leave`` and ``arrive`` are a pair: one reads what the other writes. If there are several
    protections, the client's halves run in list order, the server's in reverse order.
    """

    encodes: ClassVar[bool] = False  # whether it changes names, shapes or types of the sent tensors
    once_per_round: ClassVar[bool] = False  # whether a client must not reply twice in a round
    # whether losses and metrics of training stay on the client
    guards_replies: ClassVar[bool] = False

    def __repr__(self) -> str:
        """Return the name and the settings that differ from their defaults."""
        pairs = ((f, getattr(self, f.name)) for f in list_settings(type(self)))
        changed = [f"{f.name}={v!r}" for f, v in pairs if v not in (f.default, {})]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def is_identity(self) -> bool:
        """Return True if the protection's settings make it a no-op; then none of its code runs."""
        return False

    @property
    def works_on_client(self) -> bool:
        """Return True if the protection runs code on the client."""
        return type(self).leave is not Protection.leave

    @property
    def merge_kind(self) -> MergeKind:
        """What the algorithm's ``merge`` may use: anything, replies without senders, or only their sum."""
        return "any"

    @property
    def needs_secret(self) -> bool:
        """Return True if the protection draws noise that must be kept secret."""
        return False

    @property
    def preserves_sensitivity(self) -> bool:
        """Return True if ``gather`` keeps each client's influence on the sum limited to its own change."""
        return type(self).gather is Protection.gather

    # Before the run -------------------------------------------------------------------------
    def check_run(self, run: RunFacts) -> None:
        """Raise ConfigError if the protection does not work with this run or its other protections."""

    def check_replies(self, replies: int) -> str:
        """Return why a round has too few replies for the protection; an empty string if it has enough."""
        return ""

    def settle(self, run: RunFacts) -> tuple[Protection, int]:
        """Choose settings that depend on the run, such as noise for a target ε.

        Return the protection with these settings, and the number of rounds that its privacy budget allows.
        """
        return self, run.rounds

    # Privacy --------------------------------------------------------------------------------
    def promise(self, run: RunFacts) -> PrivacyPromise | None:
        """Return the differential-privacy guarantee; None if the protection gives none."""
        return None

    def spend(
        self, run: RunFacts, rounds: int, before: float | None, replies: Sequence[Reply]
    ) -> float | None:
        """Compute the privacy loss ε after this number of rounds; None if there is no bound.

        ``before`` is ε before the last round; ``replies`` are all replies of the last round.
        """
        return None

    def choose_client(self, secret: bytes) -> Callable[..., Client] | None:
        """Return the constructor of the clients that train; None for ``Client``."""
        return None

    # The halves -----------------------------------------------------------------------------
    def announce(self, client: str, cohort: Sequence[str], clients: Sequence[str]) -> Tensors:
        """On the server: return tensors to send to a client of the round in addition to the model."""
        return Tensors()

    def leave(self, up: Tensors, kept: Tensors, departure: Departure) -> Departed:
        """On the client, after local training: return the tensors to send and to keep."""
        return Departed(up)

    def arrive(self, sent: Tensors, received: Tensors) -> Tensors:
        """On the server: return the tensors of one reply as the algorithm expects them.

        Raise CodecError if ``leave`` cannot have sent them.
        """
        return sent

    def gather(self, replies: Sequence[Reply], gathering: Gathering) -> Gathered:
        """On the server: transform all replies of a round before they are merged."""
        return Gathered(replies)
