"""A client's labelled examples: kept as stored, converted to network input batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from .image_transforms import ImageDraws, RandomImageTransform

GATHERED_BYTES = 1 << 18  # of network input that is gathered at once: it stays in the cache
GATHERED_ITEM_BYTES = 4  # of a float; tokens have more, but short rows
ALIGNMENT = 64  # bytes; torch aligns all memory so


@dataclass(frozen=True)
class Scale:
    """Convert stored values to network input: ``(x / unit - mean) / std``.

    ``unit`` is the largest stored value (255 for bytes). ``mean`` and ``std`` hold one number, or
    one per channel. Sequences of integers (tokens) are not changed.
    """

    unit: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scale:
        """Rebuild a scale from the dict that ``dataclasses.asdict`` made of it."""
        return cls(values["unit"], tuple(values["mean"]), tuple(values["std"]))

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point() and x.dtype != torch.uint8:
            return x
        x = x.float()
        if len(self.mean) == len(self.std) == 1:
            factor, offset = 1 / (self.unit * self.std[0]), -self.mean[0] / self.std[0]
            return x if (factor, offset) == (1.0, 0.0) else x.mul_(factor).add_(offset)
        mean, std = (x.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        return x.div_(self.unit).sub_(mean).div_(std)


# what most papers do with images
BYTES_TO_PLUS_MINUS_ONE = Scale(unit=255.0, mean=(0.5,), std=(0.5,))


@dataclass(frozen=True, eq=False)
class Samples:
    """Selected rows of a pool of examples. All clients share one pool; it is never copied.

    Positions (``at``) count within the selection: position 0 is the first selected row.
    """

    x: Tensor  # the examples of the pool, as stored
    y: Tensor  # the labels of the pool
    scale: Scale = Scale()
    rows: Tensor | None = None  # the selected rows of the pool; None: all
    image_transform: RandomImageTransform | None = None  # applied in training only

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the selected examples, in order."""
        return self.y if self.rows is None else self.y[self.rows]

    def select_examples(self, at: Tensor) -> Samples:
        """Return samples with only the examples at these positions."""
        return replace(self, rows=at if self.rows is None else self.rows[at])

    def get_stored(self, at: Tensor) -> Tensor:
        """Return the examples at these positions, as stored."""
        return self.x[at if self.rows is None else self.rows[at]]

    def get_all_stored(self) -> Tensor:
        """Return all selected examples, as stored."""
        return self.x if self.rows is None else self.x[self.rows]

    def batch(self, at: Tensor, draws: ImageDraws | None = None) -> tuple[Tensor, Tensor]:
        """Return network input and labels of the examples at these positions.

        Images are randomly transformed only if ``draws`` is given, as it is in training.
        """
        x = self.get_stored(at)
        if self.image_transform is not None and draws is not None:
            x = self.image_transform(x, draws(at if self.rows is None else self.rows[at]))
        return self.convert(x), self.labels[at]

    def convert(self, x: Tensor) -> Tensor:
        """Convert stored examples to network input."""
        x = self.scale(x)
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    def gather_batches(
        self, epochs: Iterable[Tensor], size: int, draws: ImageDraws | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over mini-batches of the examples at the positions of every epoch.

        Several small batches are gathered at once; each has the bits of ``batch``.
        """
        for at in epochs:
            if self.image_transform is not None and draws is not None:
                yield from (self.batch(part, draws) for part in at.split(size))  # draws by batch
                continue
            batch_bytes = size * GATHERED_ITEM_BYTES * prod(self.x.shape[1:])
            for chunk in at.split(size * max(1, GATHERED_BYTES // batch_bytes)):
                x, y = self.batch(chunk)
                for xs, ys in zip(x.split(size), y.split(size), strict=True):
                    yield (xs if is_aligned(xs) else xs.clone()), ys

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all examples in order, for evaluation: the last batch may be smaller."""
        return (self.batch(at) for at in torch.arange(len(self)).split(size))

    def count_classes(self, classes: int) -> Tensor:
        """Count the examples of each class."""
        return torch.bincount(self.labels, minlength=classes)


def is_aligned(x: Tensor) -> bool:
    """Tell whether a tensor begins where a new one could: matrix products may round by address."""
    return x.data_ptr() % ALIGNMENT == 0


@dataclass(frozen=True, eq=False)
class ClientData:
    """The training and test examples of one client."""

    train: Samples
    test: Samples
    classes: int

    @cached_property
    def counts(self) -> Tensor:
        """The number of training examples of each class."""
        return self.train.count_classes(self.classes)
