"""Images from gradients: an image is changed until its gradient is the one that was seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..core.randomness import seeded
from ..core.tensors import Tensors

GradientFunction = Callable[[Tensor, Tensor], Tensors]  # of an attacker's images and labels


@dataclass(frozen=True)
class AttackTarget:
    """What was seen, how an attacker computes the same of its own images, and their bounds."""

    observed_gradient: Tensors
    compute_gradient: GradientFunction
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class StartingPoint:
    """Noise, and labels: classes, or noise too, of which softmax makes what is then sought."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """What an attack came to; ``loss`` is how well it matches, all that an attacker knows."""

    images: Tensor
    labels: Tensor  # classes
    loss: float
    finite: bool = True  # did it end well? If not, the images are the last finite ones


@dataclass(frozen=True)
class InvertingGradients:
    """Geiping et al., Inverting gradients, NeurIPS 2020: the angle, smoothness, signed Adam."""

    iterations: int
    tv: float
    lr: float = 0.1

    def __call__(self, target: AttackTarget, start: StartingPoint) -> Reconstruction:
        x, y = make_variable(start.images), start.labels
        adam = torch.optim.Adam([x], lr=self.lr)
        drops = [int(self.iterations * k / 8) for k in (3, 5, 7)]
        slower = torch.optim.lr_scheduler.MultiStepLR(adam, drops, gamma=0.1)
        kept = start.images
        for _ in range(self.iterations):
            loss = cosine_distance(target, x, y) + self.tv * total_variation(x)
            (slope,) = torch.autograd.grad(loss, x)
            if not bool(torch.isfinite(loss) & torch.isfinite(slope).all()):
                return Reconstruction(kept, y, float("inf"), finite=False)
            x.grad = slope.sign()
            adam.step()
            slower.step()
            with torch.no_grad():
                x.clamp_(target.low, target.high)
            kept = x.detach().clone()
        return Reconstruction(kept, y, cosine_distance(target, x, y).item())


@dataclass(frozen=True)
class DLG:
    """Zhu et al., Deep leakage from gradients, NeurIPS 2019: squared distance, L-BFGS."""

    iterations: int
    inner_iterations: int = 20

    def __call__(self, target: AttackTarget, start: StartingPoint) -> Reconstruction:
        x, y = make_variable(start.images), start.labels
        sought = [x]
        if y.is_floating_point():
            sought.append(y := make_variable(y))
        search = torch.optim.LBFGS(sought, lr=1.0, max_iter=self.inner_iterations)
        kept = Reconstruction(start.images, to_classes(y), float("inf"), finite=False)

        def closure() -> Tensor:
            value = squared_distance(target, x, to_probabilities(y))
            for v, slope in zip(sought, torch.autograd.grad(value, sought), strict=True):
                v.grad = slope
            return value

        for _ in range(self.iterations):
            search.step(closure)
            loss = squared_distance(target, x, to_probabilities(y)).item()
            if not math.isfinite(loss) or not all(bool(torch.isfinite(v).all()) for v in sought):
                return replace(kept, finite=False)
            kept = Reconstruction(x.detach().clone(), to_classes(y), loss)
        return kept


Attack = InvertingGradients | DLG
AttackName = Literal["inverting", "dlg"]


def cosine_distance(target: AttackTarget, x: Tensor, y: Tensor) -> Tensor:
    """1 minus the cosine between what was seen and what these images give."""
    mine, seen = target.compute_gradient(x, y), target.observed_gradient
    return 1 - mine.dot(seen) / (mine.square().sqrt() * seen.square().sqrt())


def squared_distance(target: AttackTarget, x: Tensor, y: Tensor) -> Tensor:
    return (target.compute_gradient(x, y) - target.observed_gradient).square()


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute differences of neighbours, in both directions."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def make_variable(start: Tensor) -> Tensor:
    return start.clone(memory_format=torch.preserve_format).requires_grad_(True)


def to_probabilities(labels: Tensor) -> Tensor:
    """Classes as they are; where they are sought, the chance of each."""
    return labels.softmax(1) if labels.is_floating_point() else labels


def to_classes(labels: Tensor) -> Tensor:
    """The most likely ones."""
    return labels.detach().argmax(1) if labels.is_floating_point() else labels


def draw_noise(shape: Sequence[int], *key: object) -> Tensor:
    """To start from; it depends on the key alone."""
    with seeded(*key):
        return torch.randn(tuple(shape))


def infer_labels(gradient: Tensor, images: int) -> Tensor:
    """The classes of so many images, ascending, by the gradient of the last bias.

    With softmax and cross-entropy that is, class by class, the mean chance minus the share of
    images: whoever is lowest has one more. Of one image this is exact; of several, an estimate.
    """
    left, found = gradient.detach().clone(), []
    for _ in range(images):
        found.append(int(left.argmin()))
        left[found[-1]] += 1 / images
    return torch.tensor(sorted(found))


def select_best(found: list[Reconstruction]) -> tuple[int, Reconstruction]:
    """The restart that matches best, and its number; the true images have no say."""
    order = sorted(range(len(found)), key=lambda i: (not found[i].finite, found[i].loss))
    return order[0], found[order[0]]
