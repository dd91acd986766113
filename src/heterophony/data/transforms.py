"""How stored examples become network input (``data.transform``), and feature skew between clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import cos, radians, sin
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..core.errors import ConfigError, DataError, choose
from ..core.randomness import make_generator
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, RandomImageTransform, Samples, Scale
from ..core.settings import construct, setting
from .partitions.base import SeededRule

UNCHANGED = "half"  # the data set's own scale: uint8 to [-1, 1], other numbers and tokens unchanged


@dataclass(frozen=True)
class Transform:
    """The scales of training and test examples, and the random transform of training images."""

    name: str
    train: Scale
    test: Scale
    moves: RandomImageTransform | None = None  # the name is part of stored files and digests

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Transform:
        """Rebuild a transform from the result of ``dataclasses.asdict``."""
        train, test = Scale.from_dict(values["train"]), Scale.from_dict(values["test"])
        moves = values["moves"] and RandomImageTransform(**values["moves"])
        return cls(values["name"], train, test, moves)


def fedavg2rep(shape: tuple[int, ...], classes: int) -> Transform:
    """Return the image transform of FedAvg2Rep's paper for 32x32 images."""
    if shape != (3, 32, 32):
        raise make_shape_error("fedavg2rep", "3x32x32", shape)
    train = Scale(255.0, (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))
    test = Scale(255.0, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    return Transform("fedavg2rep", train, test, RandomImageTransform(pad=4, flip=True))


def feddecomp(shape: tuple[int, ...], classes: int) -> Transform:
    """Return the image transform of FedDecomp's paper: CIFAR-10 is not augmented, Tiny ImageNet not cropped."""
    if shape not in ((3, 32, 32), (3, 64, 64)):
        raise make_shape_error("feddecomp", "3x32x32 or 3x64x64", shape)
    if shape == (3, 32, 32) and classes <= 10:
        return Transform("feddecomp", BYTES_TO_PLUS_MINUS_ONE, BYTES_TO_PLUS_MINUS_ONE)
    scale = Scale(255.0, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
    moves = RandomImageTransform(pad=4 if shape == (3, 32, 32) else 0, flip=True, degrees=15.0)
    return Transform("feddecomp", scale, scale, moves)


TRANSFORMS: dict[str, Callable[[tuple[int, ...], int], Transform]] = {
    "fedavg2rep": fedavg2rep,
    "feddecomp": feddecomp,
}


def build_transform(name: str, x: Tensor, classes: int, frozen: bool = False) -> Transform | None:
    """Return the transform that ``data.transform`` names; None for the data set's own scale."""
    make = choose({UNCHANGED: None, **TRANSFORMS}, name, "data.transform")
    shape = tuple(x.shape[1:])
    transform = None if make is None else make(shape, classes)
    if transform is not None and x.dtype != torch.uint8:
        raise DataError(
            f"data.transform = '{name}' needs images stored as bytes, not"
            f" {str(x.dtype).removeprefix('torch.')}; use data.transform = '{UNCHANGED}'"
        )
    if not frozen:
        return transform
    if transform is None or transform.moves is None:
        raise ConfigError(
            f"data.frozen_augment: data.transform = '{name}' has no random transform of these"
            " examples to freeze; leave it false"
        )
    return replace(transform, moves=replace(transform.moves, frozen=True))


def make_shape_error(name: str, wanted: str, shape: tuple[int, ...]) -> DataError:
    """Return the error for examples whose shape a transform does not support."""
    actual = "x".join(map(str, shape))
    return DataError(
        f"data.transform = '{name}' needs colour images of {wanted}, not examples of {actual};"
        f" use data.transform = '{UNCHANGED}'"
    )


CHUNK_SIZE = 500  # images at a time: as floats, they take four times the memory of uint8


@dataclass(frozen=True)
class Rotation(SeededRule):
    """Rotate the images of each client by its own angle, drawn between ±``degrees``."""

    degrees: float = setting(45.0, "the largest angle", low=0, high=180)

    def check_examples(self, x: Tensor) -> None:
        """Raise DataError if the examples are not images."""
        if x.dim() != 4:
            raise DataError(
                f"data.feature_skew.kind = 'rotation' needs images, not examples of shape "
                f"{tuple(x.shape[1:])}"
            )

    def draw_angle(self, client: str) -> float:
        """Draw the angle, in degrees, by which a client's images are rotated."""
        return float(
            make_generator(self.seed, "rotation", client).uniform(-self.degrees, self.degrees)
        )

    def apply(self, x: Tensor, unit: float, client: str, part: str) -> Tensor:
        """Rotate the images with bilinear interpolation; pixels from outside the image are 0."""
        a, aspect = radians(self.draw_angle(client)), x.shape[3] / x.shape[2]
        # the grid spans -1 … 1 along both sides: an image that is not square must not be sheared
        matrix = torch.tensor([[cos(a), -sin(a) / aspect, 0.0], [sin(a) * aspect, cos(a), 0.0]])
        grid = affine_grid(matrix[None], [1, *x.shape[1:]], align_corners=False)

        def rotate(some: Tensor) -> Tensor:
            where = grid.expand(len(some), -1, -1, -1)
            return grid_sample(some.float(), where, "bilinear", "zeros", align_corners=False)

        return torch.cat([restore_dtype(rotate(some), x, unit) for some in x.split(CHUNK_SIZE)])


@dataclass(frozen=True)
class Noise(SeededRule):
    """Add Gaussian noise to each client's examples, with a deviation drawn up to ``level``."""

    level: float = setting(
        0.2, "the largest standard deviation; 1 is the range from black to white", low=0
    )

    def check_examples(self, x: Tensor) -> None:
        """Raise DataError if the examples are tokens."""
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise DataError("data.feature_skew.kind = 'noise' needs images or numbers, not tokens")

    def draw_deviation(self, client: str) -> float:
        """Draw the standard deviation of a client's noise."""
        return float(make_generator(self.seed, "noise", client).uniform(0, self.level))

    def apply(self, x: Tensor, unit: float, client: str, part: str) -> Tensor:
        """Add noise that depends only on seed, client and part, and so is the same in every epoch."""
        draw = make_generator(self.seed, "noise", client, part)
        deviation = unit * self.draw_deviation(client)

        def add_noise(some: Tensor) -> Tensor:
            noise = torch.from_numpy(draw.standard_normal(tuple(some.shape), "float32"))
            return some.float() + noise * deviation

        return torch.cat([restore_dtype(add_noise(some), x, unit) for some in x.split(CHUNK_SIZE)])


Skew = Rotation | Noise
SKEWS: dict[str, type[Rotation] | type[Noise]] = {"noise": Noise, "rotation": Rotation}


def build_skew(values: Mapping[str, Any]) -> Skew:
    """Build a feature skew from its configuration: ``{kind = "rotation", degrees = 45}``."""
    rest = dict(values)
    kind = str(rest.pop("kind", ""))
    return construct(choose(SKEWS, kind, "data.feature_skew.kind"), rest, "data.feature_skew")


def describe_skew(how: Skew) -> dict[str, Any]:
    """Return the configuration of a feature skew, from which ``build_skew`` can build it."""
    kind = next(name for name, cls in SKEWS.items() if isinstance(how, cls))
    return {"kind": kind, **asdict(how)}


def restore_dtype(x: Tensor, like: Tensor, unit: float) -> Tensor:
    """Convert examples with feature skew back to their stored type."""
    return x.clamp(0, unit).round().to(like.dtype) if like.dtype == torch.uint8 else x


@dataclass(frozen=True, eq=False)
class SkewedSamples(Samples):
    """One client's samples with feature skew, computed on first use."""

    view: Callable[[Tensor], Tensor] = lambda x: x

    @cached_property
    def skewed(self) -> Tensor:
        """All selected examples, altered by the skew."""
        return self.view(super().get_all_stored())

    def select_examples(self, at: Tensor) -> Samples:
        """Select from the altered examples, because noise depends on all of the client's examples."""
        return Samples(self.skewed, self.labels, self.scale, at, self.image_transform)

    def get_stored(self, at: Tensor) -> Tensor:
        return self.skewed[at]

    def get_all_stored(self) -> Tensor:
        return self.skewed


def make_skew_view(
    how: Skew, rows: Mapping[str, Tensor], unit: float, part: str
) -> Callable[..., Tensor]:
    """Return a function that applies the feature skew to these clients' examples, client by client."""

    def view(x: Tensor) -> Tensor:
        sizes = [len(r) for r in rows.values()]
        pieces = zip(rows, x.split(sizes), strict=True)
        return torch.cat([how.apply(piece, unit, client, part) for client, piece in pieces])

    return view
