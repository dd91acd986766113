"""Images from gradients: an image is changed until its gradient is the one that was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..randomness import seeded
from ..tensors import Tensors

Gradient = Callable[[Tensor], Tensors]  # of an attacker's images, differentiable


@dataclass(frozen=True)
class Target:
    """What was seen, how an attacker computes the same of its own images, and their bounds."""

    seen: Tensors
    gradient: Gradient
    shape: tuple[int, ...]
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Found:
    """The images of an attack; ``loss`` is how well they match, all that an attacker knows."""

    images: Tensor
    loss: float
    finite: bool = True  # did it end well? If not, the images are the last finite ones


@dataclass(frozen=True)
class Inverting:
    """Geiping et al., Inverting gradients, NeurIPS 2020: the angle, smoothness, signed Adam."""

    iterations: int
    tv: float
    lr: float = 0.1

    def __call__(self, target: Target, start: Tensor) -> Found:
        x = start.clone(memory_format=torch.preserve_format).requires_grad_(True)
        adam = torch.optim.Adam([x], lr=self.lr)
        drops = [int(self.iterations * k / 8) for k in (3, 5, 7)]
        slower = torch.optim.lr_scheduler.MultiStepLR(adam, drops, gamma=0.1)
        kept = start
        for _ in range(self.iterations):
            loss = angle(target, x) + self.tv * variation(x)
            (slope,) = torch.autograd.grad(loss, x)
            if not bool(torch.isfinite(loss) & torch.isfinite(slope).all()):
                return Found(kept, float("inf"), finite=False)
            x.grad = slope.sign()
            adam.step()
            slower.step()
            with torch.no_grad():
                x.clamp_(target.low, target.high)
            kept = x.detach().clone()
        return Found(kept, angle(target, x).item())


@dataclass(frozen=True)
class DLG:
    """Zhu et al., Deep leakage from gradients, NeurIPS 2019: squared distance, L-BFGS."""

    iterations: int
    inner: int = 20

    def __call__(self, target: Target, start: Tensor) -> Found:
        x = start.clone(memory_format=torch.preserve_format).requires_grad_(True)
        search = torch.optim.LBFGS([x], lr=1.0, max_iter=self.inner)
        kept, loss = start, float("inf")

        def closure() -> Tensor:
            value = distance(target, x)
            (x.grad,) = torch.autograd.grad(value, x)
            return value

        for _ in range(self.iterations):
            search.step(closure)
            now = distance(target, x).item()
            if not bool(torch.isfinite(x).all()) or now != now or now == float("inf"):
                return Found(kept, loss, finite=False)
            kept, loss = x.detach().clone(), now
        return Found(kept, loss)


Attack = Inverting | DLG
Kind = Literal["inverting", "dlg"]


def angle(target: Target, x: Tensor) -> Tensor:
    """1 minus the cosine between what was seen and what these images give."""
    mine, seen = target.gradient(x), target.seen
    return 1 - mine.dot(seen) / (mine.square().sqrt() * seen.square().sqrt())


def distance(target: Target, x: Tensor) -> Tensor:
    return (target.gradient(x) - target.seen).square()


def variation(x: Tensor) -> Tensor:
    """Mean absolute differences of neighbours, in both directions."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def begun(target: Target, *key: object) -> Tensor:
    """Noise to start from, which depends on the key alone."""
    with seeded(*key):
        noise = torch.randn(target.shape)
    return noise.contiguous(memory_format=torch.channels_last)


def best(found: list[Found]) -> tuple[int, Found]:
    """The restart that matches best, and its number; the true images have no say."""
    order = sorted(range(len(found)), key=lambda i: (not found[i].finite, found[i].loss))
    return order[0], found[order[0]]
