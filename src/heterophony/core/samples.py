"""What a client holds: labelled examples as they are stored, turned into input batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .image_transforms import ImageDraws, RandomImageTransform


@dataclass(frozen=True)
class Scale:
    """How stored values become input: ``(x / unit - mean) / std``, per channel where given so.

    ``unit`` is the largest stored value (255 for bytes). Integer sequences pass unchanged.
    """

    unit: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Scale:
        """From plain data, as ``dataclasses.asdict`` gives them."""
        return cls(told["unit"], tuple(told["mean"]), tuple(told["std"]))

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point() and x.dtype != torch.uint8:
            return x
        x = x.float()
        if len(self.mean) == len(self.std) == 1:
            factor, offset = 1 / (self.unit * self.std[0]), -self.mean[0] / self.std[0]
            return x if (factor, offset) == (1.0, 0.0) else x.mul_(factor).add_(offset)
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return x.div_(self.unit).sub_(mean).div_(std)


BYTES_TO_PLUS_MINUS_ONE = Scale(
    255.0, (0.5,), (0.5,)
)  # bytes to [-1, 1]: what the papers do with images


@dataclass(frozen=True, eq=False)
class Samples:
    """Some rows of a pool of examples; the pool itself is shared, never copied per client."""

    x: Tensor
    y: Tensor
    scale: Scale = Scale()
    rows: Tensor | None = None
    image_transform: RandomImageTransform | None = None  # of images that are trained on

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    @cached_property
    def labels(self) -> Tensor:
        """The labels of all examples, in order."""
        return self.y if self.rows is None else self.y[self.rows]

    def select_examples(self, at: Tensor) -> Samples:
        """The examples at these positions alone."""
        return replace(self, rows=at if self.rows is None else self.rows[at])

    def get_stored(self, at: Tensor) -> Tensor:
        """The examples at these positions, as they are stored."""
        return self.x[at if self.rows is None else self.rows[at]]

    def get_all_stored(self) -> Tensor:
        """All examples, as they are stored."""
        return self.x if self.rows is None else self.x[self.rows]

    def batch(self, at: Tensor, chance: ImageDraws | None = None) -> tuple[Tensor, Tensor]:
        """Input and labels of the examples at these positions, ready for a network.

        Only who gives ``chance`` trains on them: without it no image is moved.
        """
        x = self.get_stored(at)
        if self.image_transform is not None and chance is not None:
            x = self.image_transform(x, chance(at if self.rows is None else self.rows[at]))
        x = self.scale(x)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, self.labels[at]

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, none left out: for measuring, not for training."""
        return (self.batch(at) for at in torch.arange(len(self)).split(size))

    def count_classes(self, classes: int) -> Tensor:
        """How many of each class."""
        return torch.bincount(self.labels, minlength=classes)


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's own examples."""

    train: Samples
    test: Samples
    classes: int

    @cached_property
    def counts(self) -> Tensor:
        """Training examples per class: the whole set, nothing dropped."""
        return self.train.count_classes(self.classes)
