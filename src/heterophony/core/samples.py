"""Examples and targets: mini-batches, random image transforms, and copies on an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from .accelerator import ON_CPU, Compute

DRAWS_PER_IMAGE = 4  # uniform numbers in [0, 1): for flip, shift down, shift right, angle
# positions are whole numbers of 1/65536 pixel, so that they are equal on every machine
FIXED_POINT_SCALE = 1 << 16

ImageDraws = Callable[[Tensor], Tensor]  # rows of a pool -> uniform numbers, rows × DRAWS_PER_IMAGE


@dataclass(frozen=True)
class RandomImageTransform:
    """Crop, flip and rotate images at random, in this order. Pixels from outside are black.

    Pixels are moved, not interpolated, so uint8 images stay uint8. (Flipping before cropping would give
    the same distribution of images.)
    """

    # pad with this many black pixels on each side, then crop to the old size at random
    pad: int = 0
    flip: bool = False  # mirror left and right with probability 1/2
    degrees: float = 0.0  # rotate about the centre by up to this many degrees either way
    frozen: bool = False  # draw once per image for the whole run, not each time it is used

    def __call__(self, x: Tensor, draws: Tensor) -> Tensor:
        """Transform each image by its row of uniform random numbers."""
        height, width = x.shape[2:]
        # Apple's devices have no float64, in which positions are computed
        draws = draws if x.device.type == "mps" else draws.to(x.device)
        down = torch.arange(height, device=draws.device).view(1, -1, 1)
        right = torch.arange(width, device=draws.device).view(1, 1, -1)
        flip, *shift, angle = draws.double().T[:, :, None, None]
        inside = torch.ones(len(x), height, width, dtype=torch.bool, device=draws.device)
        if self.degrees:
            down, right = rotate_positions(down, right, (2 * angle - 1) * self.degrees)
            inside &= is_within(down, height) & is_within(right, width)
        if self.flip:
            right = torch.where(flip < 0.5, width - 1 - right, right)
        if self.pad:
            by = [(s * (2 * self.pad + 1)).long() - self.pad for s in shift]
            down, right = down + by[0], right + by[1]
            inside &= is_within(down, height) & is_within(right, width)
        source = (down.clamp(0, height - 1) * width + right.clamp(0, width - 1)).expand_as(inside)
        source, inside = source.to(x.device), inside.to(x.device)
        moved = x.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, x.shape[1], -1))
        return moved.view(x.shape).masked_fill_(~inside[:, None], 0)


def draw_every_time(seed: int) -> ImageDraws:
    """Return draws for random image transforms that differ each time an image is used."""
    source = torch.Generator().manual_seed(seed)
    return lambda rows: draw_uniforms(len(rows), source)


def draw_once_per_image(images: int, seed: int) -> ImageDraws:
    """Return draws for random image transforms that are the same each time an image is used."""
    fixed = draw_uniforms(images, torch.Generator().manual_seed(seed))
    return lambda rows: fixed[rows]


def draw_uniforms(images: int, source: torch.Generator) -> Tensor:
    """Draw the uniform numbers of random image transforms, one row per image."""
    return torch.rand(images, DRAWS_PER_IMAGE, generator=source, dtype=torch.float64)


def rotate_positions(down: Tensor, right: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the position from which each pixel of an image rotated anticlockwise is taken."""
    radians = degrees.deg2rad()
    cos, sin = radians.cos(), radians.sin()
    centre = [(n.numel() - 1) / 2 for n in (down, right)]
    # the source of the first pixel's centre; the sources of the others follow in equal steps
    first_down = down.numel() / 2 - cos * centre[0] - sin * centre[1]
    first_right = right.numel() / 2 - cos * centre[1] + sin * centre[0]
    a, b = to_fixed_point(cos), to_fixed_point(sin)
    return (
        (to_fixed_point(first_down) + down * a + right * b).div(
            FIXED_POINT_SCALE, rounding_mode="floor"
        ),
        (to_fixed_point(first_right) + right * a - down * b).div(
            FIXED_POINT_SCALE, rounding_mode="floor"
        ),
    )


def to_fixed_point(value: Tensor) -> Tensor:
    """Convert pixel positions to whole numbers of 1/65536 pixel."""
    return (value * FIXED_POINT_SCALE + 0.5).floor().long()


def is_within(position: Tensor, size: int) -> Tensor:
    """Return a mask of the pixel positions inside an image of this height or width."""
    return (position >= 0) & (position < size)


GATHERED_BYTES = 1 << 18  # network input gathered at once, small enough for the cache
GATHERED_ITEM_BYTES = 4  # bytes per float; tokens take more bytes, but their rows are short
ALIGNMENT = 64  # torch aligns all memory to this many bytes


@dataclass(frozen=True)
class Scale:
    """Convert stored values to network input: ``(x / unit - mean) / std``.

    ``unit`` is the largest stored value (255 for uint8). ``mean`` and ``std`` hold one number, or
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


# the scale of images in most papers
BYTES_TO_PLUS_MINUS_ONE = Scale(unit=255.0, mean=(0.5,), std=(0.5,))


@dataclass(frozen=True, eq=False)
class Samples:
    """Selected rows of a pool of examples. All clients share one pool, which is never copied.

    Positions (``at``) count within the selection: position 0 is the first selected row.
    """

    x: Tensor  # the examples of the pool, as stored
    y: Tensor  # the labels of the pool
    scale: Scale = Scale()
    rows: Tensor | None = None  # the selected rows of the pool; None selects all
    image_transform: RandomImageTransform | None = None  # applied in training only

    def __len__(self) -> int:
        return (self.y if self.rows is None else self.rows).shape[0]  # faster than ``len``

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the selected examples, in order."""
        return self.y if self.rows is None else self.y[self.rows]

    def select_examples(self, at: Tensor) -> Samples:
        """Return the samples at these positions."""
        return replace(self, rows=at if self.rows is None else self.rows[at])

    def number(self) -> Samples:
        """Return the same examples with their positions as labels, so that a loss can identify them."""
        numbers = torch.arange(len(self.y))
        if self.rows is not None:
            numbers[self.rows] = torch.arange(len(self.rows))
        return replace(self, y=numbers)

    def get_stored(self, at: Tensor) -> Tensor:
        """Return the examples at these positions, as stored."""
        return self.x[at if self.rows is None else self.rows[at]]

    def get_all_stored(self) -> Tensor:
        """Return all selected examples, as stored."""
        return self.x if self.rows is None else self.x[self.rows]

    def batch(self, at: Tensor, draws: ImageDraws | None = None) -> tuple[Tensor, Tensor]:
        """Return network input and labels of the examples at these positions.

        Images are transformed at random only if ``draws`` is given, as in training.
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
        """Iterate over the training mini-batches of the examples at the positions of every epoch.

        Several small batches are gathered at once; each has the same bits as from ``batch``.
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
        """Iterate over mini-batches of all examples in order, for evaluation; the last may be smaller."""
        return (self.batch(at) for at in torch.arange(len(self)).split(size))

    def count_classes(self, classes: int) -> Tensor:
        """Count the examples of each class."""
        return torch.bincount(self.labels, minlength=classes)


def is_aligned(x: Tensor) -> bool:
    """Return True if a tensor is aligned like a new one; rounding in matrix products may depend on this."""
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


RESIDENT_BYTES = 1 << 30  # in bytes per client; larger data are copied batch by batch, when used
Key = tuple[Hashable, ...]  # identifies examples of one federation


@dataclass(frozen=True, eq=False)
class DeviceSamples(Samples):
    """Samples whose mini-batches are on a GPU; their positions are still drawn on the CPU."""

    source: Samples = Samples(torch.empty(0), torch.empty(0))
    compute: Compute = ON_CPU
    key: Key | None = None  # key in the cache; without one, examples are dropped after the job

    @property
    def device(self) -> torch.device:
        return self.compute.device

    @cached_property
    def labels(self) -> Tensor:
        return copy_to_device(self.source.labels, self.device)

    @cached_property
    def resident(self) -> Tensor | None:
        """All selected examples on the device, as stored; None if they exceed RESIDENT_BYTES."""
        each = self.x[:1].nbytes
        if each * len(self) > RESIDENT_BYTES:
            return None
        if self.key is None:
            return self.copy_all()
        return self.compute.resident.get((str(self.device), *self.key), self.copy_all)

    def copy_all(self) -> Tensor:
        """Copy all selected examples to the device, as stored."""
        return copy_to_device(self.source.get_all_stored(), self.device)

    def select_examples(self, at: Tensor) -> Samples:
        return place_samples(self.source.select_examples(at.cpu()), self.compute)

    def number(self) -> Samples:
        return place_samples(self.source.number(), self.compute)

    def get_stored(self, at: Tensor) -> Tensor:
        if self.resident is None:
            return copy_to_device(self.source.get_stored(at.cpu()), self.device)
        return self.resident[at.to(self.device)]

    def get_all_stored(self) -> Tensor:
        if self.resident is None:
            return self.copy_all()
        return self.resident

    def batch(self, at: Tensor, draws: ImageDraws | None = None) -> tuple[Tensor, Tensor]:
        x = self.get_stored(at)
        if self.image_transform is not None and draws is not None:
            at = at.cpu()
            x = self.image_transform(x, draws(at if self.rows is None else self.rows[at]))
        return self.convert(x), self.labels[at.to(self.device)]


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to a CUDA device via pinned memory, without waiting for the copy."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def place_samples(samples: Samples, compute: Compute, key: Key | None = None) -> Samples:
    """Return the samples on the job's device; on the CPU, return the same object.

    With a ``key``, the samples stay in the device's cache for later jobs.
    """
    if compute.is_cpu:
        return samples
    return DeviceSamples(
        samples.x,
        samples.y,
        samples.scale,
        samples.rows,
        samples.image_transform,
        source=samples,
        compute=compute,
        key=key,
    )


def place_data(data: ClientData, compute: Compute, client: str) -> ClientData:
    """Return the client's data on the job's device; on the CPU, return the same object."""
    if compute.is_cpu:
        return data
    train = place_samples(data.train, compute, (client, "train"))
    test = place_samples(data.test, compute, (client, "test"))
    return ClientData(train, test, data.classes)


def get_stored_data(data: ClientData) -> ClientData:
    """Return a client's data as stored on the CPU, given its data on a device."""
    train, test = (
        part.source if isinstance(part, DeviceSamples) else part for part in (data.train, data.test)
    )
    return data if train is data.train else ClientData(train, test, data.classes)
