"""The interface of a federated algorithm: ``send`` (server), ``local`` (client), ``merge`` (server)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from .client import Client
from .errors import ConfigError
from .net import Net, find_aliases, iterate_tensors, list_state
from .settings import check_settings, list_settings, setting
from .tensors import Kind, Memory, Tensors, is_given, mark_given, matches_any, mix, params
from .training import Training

__all__ = [
    "POOLED_CLIENT",
    "Algorithm",
    "Client",
    "Net",
    "Reply",
    "Server",
    "as_agreed",
    "equally",
    "mean",
    "setting",
]

POOLED_CLIENT = "*"  # the id of the client that holds all data, if the algorithm is ``pooled``


@dataclass(frozen=True)
class Server:
    """The server's state after ``t`` rounds. It is immutable: ``merge`` returns a new state."""

    t: int
    samples: Mapping[str, int]  # the number of training examples of each client, in client order
    model: Tensors  # the shared tensors
    memory: Memory = field(default_factory=dict)  # kept by the algorithm between rounds
    # average of personal tensors; only to measure G
    average: Tensors = field(default_factory=Tensors)
    statistics: frozenset[str] = frozenset()  # names of buffers (BatchNorm's running statistics)
    # client -> shapes of its shared tensors, if they are slices of the model's
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def learned(self) -> Tensors:
        """The server's model without running statistics: the part that a server optimiser may update."""
        return Tensors({k: v for k, v in self.model.items() if k not in self.statistics})

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in order."""
        return tuple(self.samples)

    def update(self, model: Tensors | None = None, **memory: Tensors) -> Server:
        """Return a copy of the server's state in which these model tensors and memories are replaced."""
        model = self.model if model is None else self.model | model
        return replace(self, model=model, memory={**self.memory, **memory})


@dataclass(frozen=True)
class Reply:
    """What a client returns from a job: its tensors for ``merge``, and measurements."""

    client: str
    kind: Literal["train", "evaluate", "join", "other"]
    tensors: Tensors  # returned by ``Algorithm.local``
    samples: int  # the number of training examples; of test examples in an evaluation
    weight: float  # its weight in a mean: its samples, or 1 if all clients count the same
    metrics: Mapping[str, float] = field(default_factory=dict)
    aside: Tensors = field(default_factory=Tensors)  # personal tensors, only to measure G
    turn: int = 0  # counts the jobs of a client that is selected several times in a round
    examples: int = 0  # how many examples it trained on, for the simulated clock
    # digest of the client's memory: of its file or, at the end of a run, of its tensors
    kept: str = ""

    def __post_init__(self) -> None:
        for name in self.metrics:
            if not isinstance(name, str):
                raise ConfigError(
                    f"client.metrics[{name!r}]: the name must be a string, not {type(name).__name__};"
                    f" write client.metrics[{str(name)!r}]"
                )


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm. This base class is FedAvg; override what a paper changes.

    A round: the server calls ``send`` for each selected client, the client calls ``local``, and
    the server calls ``merge`` on all replies. ``send`` and ``merge`` must be pure functions.
    Hyper-parameters are dataclass fields made with ``setting``.

    Two accuracies are measured on every client's test data: G of the generic model, which all
    clients have in common (``generic``), and P of the client's personal model (``predict``).
    """

    paper: ClassVar[str] = ""
    personal: ClassVar[tuple[str, ...]] = ()  # patterns of parameters that never leave the client
    head_depth: ClassVar[int | None] = None  # number of layers in the head, if the paper defines it
    # whether it treats the head separately in more than ``personal``
    separates_head: ClassVar[bool] = False
    uses_features: ClassVar[bool] = False  # whether it uses the output of the base
    everybody: ClassVar[bool] = False  # whether all clients train in every round
    common: ClassVar[bool] = True  # whether clients share a model; if not, there is no G
    needs_classes: ClassVar[bool] = False  # whether it is for classification only
    pooled: ClassVar[bool] = False  # whether one model trains on all clients' data together
    # what the nets of clients must have in common: everything; the head and the shape of its input;
    # the names of tensors, of which a small net has slices; or nothing
    needs_nets: ClassVar[Literal["same", "same_head", "slices", "any"]] = "same"
    # patterns of sent tensors named "part/name", which encode a shared tensor as rows: their number
    # depends on the data, but all except the last hold fewer numbers than that tensor
    rows_vary: ClassVar[tuple[str, ...]] = ()
    # optimisers for which the rule holds
    optimizers: ClassVar[tuple[str, ...]] = "sgd", "adam", "adamw"
    allows_clipping: ClassVar[bool] = True  # whether its rule holds for clipped gradients

    def __post_init__(self) -> None:
        check_settings(self)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).items():
            if isinstance(value, Field) and hasattr(Algorithm, name):
                raise ConfigError(
                    f"algorithm {cls.__name__}: setting '{name}' has the same name as Algorithm.{name};"
                    " rename the setting"
                )
        if "__repr__" not in vars(cls):  # @dataclass would write one with all settings
            cls.__repr__ = Algorithm.__repr__  # type: ignore[method-assign]

    @property
    def needs_head(self) -> bool:
        """True if a net must have a separate head; otherwise any module will do."""
        apart = any(p.startswith(("head.", "base.")) for p in self.personal)
        return apart or self.separates_head or self.uses_features

    def __repr__(self) -> str:
        """Show the settings that differ from their defaults."""
        pairs = ((f, getattr(self, f.name)) for f in list_settings(type(self)))
        return f"{type(self).__name__}({', '.join(f'{f.name}={v!r}' for f, v in pairs if v != f.default)})"

    def check_training(self, training: Training) -> None:
        """Raise ``ConfigError`` if the algorithm cannot work with these settings of local training.

        This is called before a run starts. The message starts with the key to change.
        """

    # The net ----------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        """Add what the algorithm needs to the net: heads, adapters, gates, copies.

        ``net.shape`` is the shape of one example, ``net.classes`` the number of classes, and
        ``net.task`` the name of the task. ``net.smallest`` is the smallest net of the run.
        """
        return net

    def stays(self, net: Net) -> Iterable[str]:
        """Return patterns of the names of personal parameters; default: ``personal``.

        Override this if they depend on the net: FedBN finds its BatchNorm layers here.
        """
        return self.personal

    def shared(self, net: Net, t: int, buffers: bool = False) -> list[str]:
        """List the tensors that clients and server exchange in round ``t``: all except personal ones.

        ``buffers`` includes running statistics. Given parameters are never listed.
        """
        named = [*params(net).items(), *(net.named_buffers() if buffers else ())]
        personal = list(self.stays(net))
        return [k for k, v in named if v.is_floating_point() and not matches_any(k, personal)]

    # One round ------------------------------------------------------------------------------
    def send(self, server: Server, client: str) -> Tensors:
        """On the server: return the tensors to send to this client.

        Tensors that do not belong to the net have a ``/`` in their name; see ``client.received``.
        """
        return server.model

    def local(self, client: Client) -> Tensors:
        """On the client: train, and return the tensors to send to the server."""
        client.fit()
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """On the server: compute the next state from the replies, which are in client order."""
        return server.update(mean(replies))

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """On the server: return numbers to record for this round. They do not influence the run."""
        return {}

    # Evaluation -----------------------------------------------------------------------------
    def adapt(self, client: Client) -> None:
        """On the client: adapt the model before P is measured. The changes are not kept."""

    def ready(self, t: int) -> bool:
        """Return True if P is measured after ``t`` rounds. After the last round it is always measured."""
        return True

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """Return the output of the client's personal model, for P: logits, or numbers in a regression."""
        return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        """Return the output of the generic model, which all clients have in common, for G.

        Here, the personal parameters of ``client.net`` are averages over all clients.
        """
        return self.predict(client, x)


# The tensors of a net --------------------------------------------------------------------------


def build_parts(algorithm: Algorithm, net: Net) -> Net:
    """Add the algorithm's parts to a net; parameters that are frozen afterwards are given.

    Raise ConfigError if nothing is left to train, or if one tensor would be treated in two ways.
    """
    mark_given(net)
    net = algorithm.build(net)
    mark_given(net)  # a copy of a frozen parameter is frozen, too
    if all(map(is_given, net.parameters())) and any(True for _ in net.parameters()):
        raise ConfigError(
            "model: all of its parameters are frozen (requires_grad=False), so there is nothing to"
            " train; unfreeze some of them, such as those of the head"
        )
    check_ties(algorithm, net)
    return net


def check_ties(algorithm: Algorithm, net: Net) -> None:
    """Raise ConfigError if the algorithm would treat two names of a tied weight differently."""
    aliases = find_aliases(net)
    if not aliases:
        return
    personal, tensors = list(algorithm.stays(net)), dict(iterate_tensors(net))
    for alias, first in aliases.items():
        parts = {name.partition(".")[0] for name in (alias, first)}
        apart = algorithm.separates_head and parts == {"base", "head"}
        kinds = {matches_any(name, personal) for name in (alias, first)}
        if (apart or len(kinds) > 1) and not is_given(tensors[first]):
            raise ConfigError(
                f"model: '{first}' and '{alias}' are one tensor (tied weights), and"
                f" {type(algorithm).__name__} treats base and head differently; give each part a"
                " separate tensor, or choose an algorithm that shares both, such as fedavg"
            )


def list_kinds(algorithm: Algorithm, net: Net, t: int, buffers: bool = False) -> dict[str, Kind]:
    """Return the kind of each tensor in round ``t``: shared, personal or given.

    A tensor with several names is listed once, by its first name. ``buffers`` is True if running
    statistics are shared; those of a frozen layer change as in plain PyTorch, so they are not given.
    """
    aliases, shared = find_aliases(net), set(algorithm.shared(net, t, buffers))
    given = {k for k, v in iterate_tensors(net) if is_given(v)}
    return {
        k: "given" if k in given else "shared" if k in shared else "personal"
        for k in list_state(net)
        if k not in aliases
    }


# Means of replies ------------------------------------------------------------------------------


def as_agreed(reply: Reply) -> float:
    """Return a reply's weight in a mean as configured: its number of training examples, or 1."""
    return reply.weight


def equally(reply: Reply) -> float:
    """Return 1, so that every reply has the same weight in a mean."""
    return 1.0


def mean(
    replies: Sequence[Reply], *names: str, weight: Callable[[Reply], float] = as_agreed
) -> Tensors:
    """Return the weighted mean of the replies' tensors; ``names`` are patterns of the tensors to average."""
    total = sum(weight(r) for r in replies)
    parts = [r.tensors.only(*names) if names else r.tensors for r in replies]
    return mix(parts, [weight(r) / total for r in replies])
