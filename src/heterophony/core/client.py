"""What an algorithm sees on one device in one round, and the only training loop there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from .errors import DivergedError
from .fields import check_settings, setting
from .image_transforms import DRAWS_PER_IMAGE, ImageDraws
from .net import Net
from .randomness import derive_seed, seeded
from .samples import ClientData, Samples
from .tensors import Tensors

Loss = Callable[[Tensor, Tensor], Tensor]
SamplesDerivation = Callable[[ClientData], Samples]
Trainable = nn.Module | Tensor
Memory = Mapping[str, Tensors]

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


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
        check_settings(self)


class Client:
    """Built by the framework for one job. ``memory`` is the algorithm's to fill; it stays here."""

    def __init__(
        self,
        id: str,
        t: int,
        net: Net,
        data: ClientData,
        received: Tensors,
        memory: Memory,
        training: Training,
        seed: int,
        rounds: int,
        travels: Callable[[Net, int], list[str]],
        keep: Callable[[str, Callable[[], Samples]], Samples],
        luck: int | None = None,
    ) -> None:
        self.id, self.t, self.net, self.data, self.received = id, t, net, data, received
        self.memory = {k: v for k, v in memory.items() if k != "net"}
        self.training, self.metrics = training, dict[str, float]()
        self.rounds = rounds  # that the whole run has
        self.examples = 0  # gone through so far: what takes a device time
        self._seed, self._list_shared, self._cache_derived = seed, travels, keep
        self._draw_seed = (
            seed if luck is None else luck
        )  # differs in a second turn of the same round
        stayed, arrived = memory.get("net", Tensors()), received.without("*/*")
        check_all_received(travels(net, t), stayed | arrived)
        load_into_net(net, stayed)  # what stayed,
        load_into_net(net, arrived)  # then what arrived

    def fit(
        self,
        loss: Loss | None = None,
        train: Trainable | Iterable[Trainable] | None = None,
        data: Samples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        pull: Callable[[Tensors], Tensors] | None = None,
        how: Training | None = None,
        rates: Mapping[str, float] | None = None,
        repeat: int = 1,
        after: Callable[[], None] | None = None,
        phase: str = "main",
    ) -> None:
        """Minimise ``loss(x, y)`` over the parameters of ``train``.

        Default: the cross-entropy of the net's answers, over all parameters.
        ``pull(w)`` is added to the gradient; ``how`` replaces the client's way of training;
        ``rates`` are learning rates by pattern of names, where some differ. Each mini-batch gives
        ``repeat`` updates; ``after`` is called when it is done. A phase has its own randomness and
        its own momentum, which outlives the round. What is not trained, or has no gradient in an
        update, cannot move.
        """
        how, loss = how or self.training, loss or self.entropy
        chosen = {id(p) for p in iterate_parameters(self.net if train is None else train)}
        named = Tensors({k: p for k, p in self.net.named_parameters() if id(p) in chosen})
        if not named:
            return  # a head without parameters has nothing to learn
        for p in self.net.parameters():
            p.requires_grad_(id(p) in chosen)
        optimiser = self._make_optimiser(named, how, rates or {}, phase)
        samples = self.data.train if data is None else data
        chance, summed, done = self._make_image_draws(samples, f"fit/{phase}"), 0.0, 0
        with seeded(self._draw_seed, "fit", self.t, self.id, phase):
            self.net.train()
            for at in self._iterate_batches(len(samples), how, epochs, steps):
                x, y = samples.batch(at, chance)
                self.examples += repeat * len(at)
                for _ in range(repeat):
                    optimiser.zero_grad()
                    value = loss(x, y)
                    value.backward()
                    if pull is not None:
                        add_to_gradients(named, pull(named.map(Tensor.detach)))
                    optimiser.step()
                    summed, done = summed + value.item(), done + 1
                if after is not None:
                    after()
        optimiser.zero_grad()
        self.net.requires_grad_(True)
        self._store_momentum(optimiser, named, how, phase)
        self._record_loss(phase, summed, done)

    def entropy(self, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of the net's answers."""
        return cross_entropy(self.net(x), y)

    @property
    def steps(self) -> int:
        """How many mini-batches a round of plain training has."""
        per_epoch = self._count_per_epoch(len(self.data.train), self.training)[1]
        if self.training.steps is not None:
            return self.training.steps if per_epoch else 0
        return self.training.epochs * per_epoch

    def draws(self, purpose: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Mini-batches without end, from a stream of their own: training's is as without them."""
        source = torch.Generator().manual_seed(
            derive_seed(self._draw_seed, "draws", self.t, self.id, purpose)
        )
        n, size = len(self.data.train), self.training.batch
        chance = self._make_image_draws(self.data.train, f"draws/{purpose}")
        whole, per_epoch = self._count_per_epoch(n, self.training)
        while per_epoch:
            for at in torch.randperm(n, generator=source)[:whole].split(size)[:per_epoch]:
                self.examples += len(at)
                yield self.data.train.batch(at, chance)

    @torch.no_grad()
    def features(self) -> Tensor:
        """What the base makes of every training example, as it is now, measured and not trained."""
        self.net.eval()
        return torch.cat([self.net.base(x) for x, _ in self.data.train.batches(250)])

    @contextmanager
    def apart(self, purpose: str) -> Iterator[None]:
        """Randomness of its own, for a teacher: the student's is as if there were none."""
        with seeded(self._draw_seed, "apart", self.t, self.id, purpose):
            yield

    def once(self, derive: SamplesDerivation) -> Samples:
        """Data derived from the client's own: the same in every round and on every engine."""

        def derive_seeded() -> Samples:
            with seeded(self._seed, "once", self.id, derive.__name__):
                return derive(self.data)

        return self._cache_derived(derive.__name__, derive_seeded)

    def shared(self) -> Tensors:
        """The tensors of the net that travel this round, as they are now."""
        now = state(self.net)
        return Tensors({k: now[k] for k in self._list_shared(self.net, self.t)})

    def stays(self) -> Tensors:
        """The tensors of the net that do not."""
        travels = set(self._list_shared(self.net, self.t))
        return Tensors({k: v for k, v in state(self.net).items() if k not in travels})

    def _make_optimiser(
        self, named: Tensors, how: Training, rates: Mapping[str, float], phase: str
    ) -> torch.optim.SGD:
        others = list(named.without(*rates).values()) or [nn.Parameter(torch.empty(0))]
        groups: list[dict[str, Any]] = [{"params": others}]
        for pattern, lr in rates.items():
            groups.append({"params": list(named.only(pattern).values()), "lr": lr})
        optimiser = torch.optim.SGD(
            groups,
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

    def _store_momentum(
        self, optimiser: torch.optim.SGD, named: Tensors, how: Training, phase: str
    ) -> None:
        if how.momentum and how.momentum_state == "persist":
            buffers = {k: optimiser.state[p].get("momentum_buffer") for k, p in named.items()}
            kept = Tensors({k: v for k, v in buffers.items() if v is not None})
            if kept:
                before = self.memory.get(f"momentum/{phase}", Tensors())
                self.memory[f"momentum/{phase}"] = before | kept

    def _record_loss(self, phase: str, summed: float, done: int) -> None:
        if done:
            self.metrics[f"loss/{phase}"] = summed / done
        if summed != summed or summed in (float("inf"), float("-inf")):
            raise DivergedError(
                f"client {self.id}, round {self.t}: the loss of phase '{phase}' is no longer finite"
                f" (local.lr = {self.training.lr:g}); lower local.lr or local.momentum"
            )

    def _iterate_batches(
        self, n: int, how: Training, epochs: int | None, steps: int | None
    ) -> Iterator[Tensor]:
        """A fresh order every epoch."""
        whole, per_epoch = self._count_per_epoch(n, how)
        if epochs is None and steps is None:
            steps = how.steps
        left = (how.epochs if epochs is None else epochs) * per_epoch if steps is None else steps
        while left > 0 and per_epoch:
            for at in torch.randperm(n)[:whole].split(how.batch)[: min(left, per_epoch)]:
                left -= 1
                yield at

    def _make_image_draws(self, samples: Samples, purpose: str) -> ImageDraws | None:
        """What moves training images, from a stream of its own: the others are as without it."""
        if samples.image_transform is None:
            return None
        luck, when = self._draw_seed, [self.t, purpose]
        if samples.image_transform.frozen:
            luck, when = self._seed, []
        source = torch.Generator().manual_seed(derive_seed(luck, "moves", self.id, *when))

        def draw_uniforms(n: int) -> Tensor:
            return torch.rand(n, DRAWS_PER_IMAGE, generator=source, dtype=torch.float64)

        if not samples.image_transform.frozen:
            return lambda rows: draw_uniforms(len(rows))
        kept = draw_uniforms(
            len(samples.x)
        )  # by row of the pool: a part of the data is moved as the whole
        return lambda rows: kept[rows]

    def _count_per_epoch(self, n: int, how: Training) -> tuple[int, int]:
        """How many examples and batches an epoch has. BatchNorm cannot learn from one example."""
        whole = n - n % how.batch if how.drop_last and n >= how.batch else n
        smallest = 2 if any(isinstance(m, BATCH_NORMS) for m in self.net.modules()) else 1
        full = whole // how.batch if how.batch >= smallest else 0
        return whole, full + (whole % how.batch >= smallest)


def iterate_parameters(parts: Trainable | Iterable[Trainable]) -> Iterator[Tensor]:
    """All parameters of modules and parameters, in any mixture."""
    if isinstance(parts, nn.Module):
        yield from parts.parameters()
    elif isinstance(parts, Tensor):
        yield parts
    else:
        for part in parts:
            yield from iterate_parameters(part)


def add_to_gradients(named: Tensors, terms: Tensors) -> None:
    """Add the terms to the gradients."""
    for k, term in terms.items():
        p = named[k]
        p.grad = term.clone() if p.grad is None else p.grad.add_(term)


def answer(net: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """What the net says with these tensors in place of its own."""
    out: Tensor = functional_call(net, dict(tensors), (x,))
    return out


def state(net: nn.Module) -> Tensors:
    """Parameters and buffers as they are now, detached from the net."""
    return Tensors({k: v.detach().clone() for k, v in net.state_dict().items()})


def check_all_received(travels: Iterable[str], given: Tensors) -> None:
    """Is all there that should have arrived? Else the net would go on with its first values."""
    for name in travels:
        if name not in given:
            raise KeyError(f"tensor {name!r} travels, but was not among those that were sent")


def load_into_net(net: nn.Module, tensors: Tensors) -> None:
    """Put the tensors into the net; every name must be one of the net's own."""
    unknown = net.load_state_dict(tensors, strict=False).unexpected_keys
    if unknown:
        raise KeyError(
            f"the net has no tensor named {unknown[0]!r}; extras have a '/' in their name"
        )
