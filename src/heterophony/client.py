"""What an algorithm sees on one device in one round, and the only training loop there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .errors import DivergedError
from .net import Net
from .randomness import seeded
from .samples import Data, Samples
from .settings import check, setting
from .tensors import Tensors

Loss = Callable[[Tensor, Tensor], Tensor]
Derive = Callable[[Data], Samples]
Part = nn.Module | nn.Parameter
Memory = Mapping[str, Tensors]

NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class Training:
    """How a client trains, the same for every algorithm: SGD over epochs or over steps."""

    epochs: int = setting(5, "passes over the client's data in a round", low=0)
    steps: int | None = setting(None, "mini-batches in a round, instead of epochs", low=0)
    batch: int = setting(20, "examples in a mini-batch", low=1)
    lr: float = setting(0.01, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(0.0, "weight decay of SGD", low=0)
    momentum_state: Literal["persist", "reset"] = setting(
        "persist", "does a client's momentum outlive the round?"
    )
    drop_last: bool = setting(True, "leave out an epoch's short last batch (unless it is the only)")

    def __post_init__(self) -> None:
        check(self)


class Client:
    """Built by the framework for one job. ``memory`` is the algorithm's to fill; it stays here."""

    def __init__(
        self,
        id: str,
        t: int,
        net: Net,
        data: Data,
        received: Tensors,
        memory: Memory,
        training: Training,
        seed: int,
        travels: Callable[[Net, int], list[str]],
        keep: Callable[[str, Callable[[], Samples]], Samples],
    ) -> None:
        self.id, self.t, self.net, self.data, self.received = id, t, net, data, received
        self.memory = {k: v for k, v in memory.items() if k != "net"}
        self.losses: dict[str, float] = {}
        self._training, self._seed, self._travels, self._keep = training, seed, travels, keep
        load(net, memory.get("net", Tensors()))  # what stayed,
        load(net, received.without("*/*"))  # then what arrived

    def fit(
        self,
        loss: Loss,
        train: Part | Iterable[Part] | None = None,
        data: Samples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        pull: Callable[[Tensors], Tensors] | None = None,
        phase: str = "main",
    ) -> None:
        """Minimise ``loss(x, y)`` over the parameters of ``train`` (default: all).

        ``pull(w)`` is added to the gradient. A phase has its own randomness and its own
        momentum, which outlives the round. What is not trained cannot move.
        """
        chosen = {id(p) for p in parameters(self.net if train is None else train)}
        named = Tensors({k: p for k, p in self.net.named_parameters() if id(p) in chosen})
        for p in self.net.parameters():
            p.requires_grad_(id(p) in chosen)
        optimiser = self._optimiser(named, phase)
        samples = self.data.train if data is None else data
        summed, done = 0.0, 0
        with seeded(self._seed, "fit", self.t, self.id, phase):
            self.net.train()
            for at in self._batches(len(samples), epochs, steps):
                optimiser.zero_grad()
                value = loss(*samples.batch(at))
                value.backward()
                if pull is not None:
                    push(named, pull(named.map(Tensor.detach)))
                optimiser.step()
                summed, done = summed + value.item(), done + 1
        optimiser.zero_grad()
        self.net.requires_grad_(True)
        self._remember(optimiser, named, phase)
        self._note(phase, summed, done)

    def once(self, derive: Derive) -> Samples:
        """Data derived from the client's own: the same in every round and on every engine."""

        def derived() -> Samples:
            with seeded(self._seed, "once", self.id, derive.__name__):
                return derive(self.data)

        return self._keep(derive.__name__, derived)

    def shared(self) -> Tensors:
        """The tensors of the net that travel this round, as they are now."""
        now = state(self.net)
        return Tensors({k: now[k] for k in self._travels(self.net, self.t)})

    def stays(self) -> Tensors:
        """The tensors of the net that do not."""
        travels = set(self._travels(self.net, self.t))
        return Tensors({k: v for k, v in state(self.net).items() if k not in travels})

    def _optimiser(self, named: Tensors, phase: str) -> torch.optim.SGD:
        how = self._training
        optimiser = torch.optim.SGD(
            list(named.values()) or [nn.Parameter(torch.empty(0))],
            lr=how.lr,
            momentum=how.momentum,
            weight_decay=how.weight_decay,
            fused=True,
        )
        for k, v in self.memory.get(f"momentum/{phase}", Tensors()).items():
            if k not in named:
                continue
            kept = torch.empty_like(named[k]).copy_(v)  # in the parameter's own memory format
            optimiser.state[named[k]]["momentum_buffer"] = kept
        return optimiser

    def _remember(self, optimiser: torch.optim.SGD, named: Tensors, phase: str) -> None:
        if self._training.momentum and self._training.momentum_state == "persist":
            buffers = {k: optimiser.state[p].get("momentum_buffer") for k, p in named.items()}
            kept = Tensors({k: v for k, v in buffers.items() if v is not None})
            if kept:
                before = self.memory.get(f"momentum/{phase}", Tensors())
                self.memory[f"momentum/{phase}"] = before | kept

    def _note(self, phase: str, summed: float, done: int) -> None:
        if done:
            self.losses[phase] = summed / done
        if summed != summed or summed in (float("inf"), float("-inf")):
            raise DivergedError(
                f"client {self.id}, round {self.t}: the loss of phase '{phase}' is no longer finite"
                f" (local.lr = {self._training.lr:g}); lower local.lr or local.momentum"
            )

    def _batches(self, n: int, epochs: int | None, steps: int | None) -> Iterator[Tensor]:
        """A fresh order every epoch. BatchNorm cannot learn from one example: skipped there."""
        how = self._training
        size, steps = how.batch, how.steps if epochs is None and steps is None else steps
        whole = n - n % size if how.drop_last and n >= size else n
        smallest = 2 if any(isinstance(m, NORMS) for m in self.net.modules()) else 1
        per_epoch = -(-whole // size) if (whole % size or size) >= smallest else whole // size
        if not per_epoch:
            return
        epochs = how.epochs if epochs is None else epochs
        left = epochs * per_epoch if steps is None else steps
        while left:
            for at in torch.randperm(n)[:whole].split(size)[: min(left, per_epoch)]:
                left -= 1
                yield at


def parameters(parts: Part | Iterable[Part]) -> Iterator[nn.Parameter]:
    """All parameters of modules and parameters, in any mixture."""
    if isinstance(parts, nn.Module):
        yield from parts.parameters()
    elif isinstance(parts, nn.Parameter):
        yield parts
    else:
        for part in parts:
            yield from parameters(part)


def push(named: Tensors, terms: Tensors) -> None:
    """Add the terms to the gradients."""
    for k, term in terms.items():
        p = named[k]
        p.grad = term.clone() if p.grad is None else p.grad.add_(term)


def state(net: nn.Module) -> Tensors:
    """Parameters and buffers as they are now, detached from the net."""
    return Tensors({k: v.detach().clone() for k, v in net.state_dict().items()})


def load(net: nn.Module, tensors: Tensors) -> None:
    """Put the tensors into the net; every name must be one of the net's own."""
    unknown = net.load_state_dict(tensors, strict=False).unexpected_keys
    if unknown:
        raise KeyError(
            f"the net has no tensor named {unknown[0]!r}; extras have a '/' in their name"
        )
