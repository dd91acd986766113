"""One federated round, cut at the wire: ``send`` (server), ``local`` (client), ``merge`` (server)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from .client import Client
from .fields import check_settings, setting
from .net import Net
from .tensors import Tensors, matches_any, mix

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


@dataclass(frozen=True)
class Server:
    """What the server knows after ``t`` rounds. ``memory`` is the algorithm's to fill."""

    t: int
    samples: Mapping[str, int]  # how much training data each client has; in client order
    model: Tensors
    memory: Mapping[str, Tensors] = field(default_factory=dict)
    average: Tensors = field(default_factory=Tensors)  # of what stays; only to measure G
    statistics: frozenset[str] = frozenset()  # names of buffers: averaged where they travel

    @property
    def learned(self) -> Tensors:
        """The model without running statistics: what a server may step, a variance never."""
        return Tensors({k: v for k, v in self.model.items() if k not in self.statistics})

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.samples)

    def update(self, model: Tensors | None = None, **memory: Tensors) -> Server:
        """The same server with some tensors of the model, and some memories, replaced."""
        model = self.model if model is None else self.model | model
        return replace(self, model=model, memory={**self.memory, **memory})


@dataclass(frozen=True)
class Reply:
    """What one client sent up. ``aside`` is for measurement, never for learning."""

    client: str
    kind: Literal["train", "evaluate", "join", "other"]
    tensors: Tensors
    samples: int
    weight: float  # its share in a mean: its samples, or 1 where all clients count the same
    metrics: Mapping[str, float] = field(default_factory=dict)
    aside: Tensors = field(default_factory=Tensors)
    turn: int = 0  # which of its turns, where a client trains several times in a round
    examples: int = 0  # that it went through while learning: what takes a device time
    kept: str = ""  # a digest of what the client keeps, told at the end of a run; never the tensors


POOLED_CLIENT = "*"  # the one who holds everybody's data, where an algorithm is pooled


@dataclass(frozen=True)
class Algorithm:
    """As written it is FedAvg; every algorithm overrides only what its paper changes."""

    paper: ClassVar[str] = ""
    personal: ClassVar[tuple[str, ...]] = ()  # names of the tensors that never leave the device
    head_depth: ClassVar[int | None] = None  # layers of the head, where its paper says
    everybody: ClassVar[bool] = False  # do all clients train in every round?
    common: ClassVar[bool] = True  # is there a model for everybody, hence a G?
    pooled: ClassVar[bool] = False  # is it trained by one who holds everybody's data?
    # in an audit, what a stranger takes for what stays: a net of its own, or everybody's at first,
    # or the average over all clients
    guess: ClassVar[Literal["fresh", "initial", "average"]] = "fresh"

    def __post_init__(self) -> None:
        check_settings(self)

    # What exists ----------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        """Add heads, adapters, gates or copies to the backbone."""
        return net

    def stays(self, net: Net) -> Iterable[str]:
        """Patterns of the names that never leave the device."""
        return self.personal

    def shared(self, net: Net, t: int, buffers: bool = False) -> list[str]:
        """Names of the tensors that travel; with ``buffers``, running statistics among them."""
        named = [*net.named_parameters(), *(net.named_buffers() if buffers else ())]
        stay = list(self.stays(net))
        return [k for k, v in named if v.is_floating_point() and not matches_any(k, stay)]

    # One round ------------------------------------------------------------------------------
    def send(self, server: Server, client: str) -> Tensors:
        """Server: what goes down to this client."""
        return server.model

    def local(self, client: Client) -> Tensors:
        """Client: learn, and return what goes up."""
        client.fit()
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Server: turn the replies, in client order, into the next state."""
        return server.update(mean(replies))

    def measures(self, server: Server, replies: Sequence[Reply], after: Server) -> dict[str, float]:
        """Server: numbers of a round worth recording; they influence nothing."""
        return {}

    def stranger(self) -> Algorithm:
        """In an audit: as somebody takes it to be who sees only what travels."""
        return self

    # Use ------------------------------------------------------------------------------------
    def tune(self, client: Client) -> None:
        """Client: get ready to predict; what it changes is not kept."""

    def ready(self, t: int) -> bool:
        """Is P measured after ``t`` rounds? After the last one it always is."""
        return True

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """P: logits of the client's own model."""
        return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        """G: logits of everybody's model. Here the client is nobody: what stays is averaged."""
        return self.predict(client, x)


def as_agreed(reply: Reply) -> float:
    """The run's own rule: by the number of training examples, or all the same."""
    return reply.weight


def equally(reply: Reply) -> float:
    """The same weight for every reply."""
    return 1.0


def mean(
    replies: Sequence[Reply], *names: str, weight: Callable[[Reply], float] = as_agreed
) -> Tensors:
    """Weighted mean of the replies; ``names`` narrows it to one group of tensors."""
    whole = sum(weight(r) for r in replies)
    parts = [r.tensors.only(*names) if names else r.tensors for r in replies]
    return mix(parts, [weight(r) / whole for r in replies])
