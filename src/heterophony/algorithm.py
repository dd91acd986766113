"""One federated round, cut at the wire: ``send`` (server), ``local`` (client), ``merge`` (server)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from .client import Client
from .net import Net
from .settings import check, setting
from .tensors import Tensors, matches, mix

__all__ = [
    "Algorithm",
    "Client",
    "Net",
    "Reply",
    "Server",
    "by_samples",
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
    tensors: Tensors
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    aside: Tensors = field(default_factory=Tensors)


@dataclass(frozen=True)
class Algorithm:
    """As written it is FedAvg; every algorithm overrides only what its paper changes."""

    paper: ClassVar[str] = ""
    personal: ClassVar[tuple[str, ...]] = ()  # names of the tensors that never leave the device
    head_depth: ClassVar[int] = 1  # how many layers its paper calls the head
    everybody: ClassVar[bool] = False  # do all clients train in every round?
    common: ClassVar[bool] = True  # is there a model for everybody, hence a G?

    def __post_init__(self) -> None:
        check(self)

    # What exists ----------------------------------------------------------------------------
    def build(self, net: Net) -> Net:
        """Add heads, adapters, gates or copies to the backbone."""
        return net

    def shared(self, net: Net, t: int) -> list[str]:
        """Names of the tensors that travel in round ``t``; buffers stay home."""
        return [k for k, _ in net.named_parameters() if not matches(k, self.personal)]

    # One round ------------------------------------------------------------------------------
    def send(self, server: Server, client: str) -> Tensors:
        """Server: what goes down to this client."""
        return server.model

    def local(self, client: Client) -> Tensors:
        """Client: learn, and return what goes up."""
        client.fit(lambda x, y: cross_entropy(client.net(x), y))
        return client.shared()

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Server: turn the replies, in client order, into the next state."""
        return server.update(mean(replies))

    # Use ------------------------------------------------------------------------------------
    def tune(self, client: Client) -> None:
        """Client: get ready to predict; what it changes is not kept."""

    def predict(self, client: Client, x: Tensor) -> Tensor:
        """P: logits of the client's own model."""
        return client.net(x)

    def generic(self, client: Client, x: Tensor) -> Tensor:
        """G: logits of everybody's model. Here the client is nobody: what stays is averaged."""
        return self.predict(client, x)


def by_samples(reply: Reply) -> float:
    """Weight by the number of training examples."""
    return reply.samples


def equally(reply: Reply) -> float:
    """The same weight for every reply."""
    return 1.0


def mean(
    replies: Sequence[Reply], *names: str, weight: Callable[[Reply], float] = by_samples
) -> Tensors:
    """Weighted mean of the replies; ``names`` narrows it to one group of tensors."""
    whole = sum(weight(r) for r in replies)
    parts = [r.tensors.only(*names) if names else r.tensors for r in replies]
    return mix(parts, [weight(r) / whole for r in replies])
