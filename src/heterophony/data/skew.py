"""Feature skew: every client sees its examples in its own way, rotated or with noise of its own.

The pool stays one and unaltered: a client's view is made when it is first looked at, for that
client alone, and is the same wherever and whenever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import cos, radians, sin
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ..core.errors import DataError, choose
from ..core.fields import check_settings, construct, setting
from ..core.randomness import make_generator
from ..core.samples import Samples
from .partitions.base import SeededRule

CHUNK_SIZE = 500  # images as numbers take four times the memory that they take as bytes


@dataclass(frozen=True)
class Rotation(SeededRule):
    """Every client's images are turned by its own angle, between minus and plus so many degrees."""

    degrees: float = setting(45.0, "the largest angle", low=0, high=180)

    def __post_init__(self) -> None:
        check_settings(self)

    def check_examples(self, x: Tensor) -> None:
        if x.dim() != 4:
            raise DataError(
                f"data.feature_skew.kind = 'rotation' needs images, not examples of shape "
                f"{tuple(x.shape[1:])}"
            )

    def draw_angle(self, client: str) -> float:
        return float(
            make_generator(self.seed, "rotation", client).uniform(-self.degrees, self.degrees)
        )

    def apply(self, x: Tensor, unit: float, client: str, part: str) -> Tensor:
        """The images as the client sees them: bilinear, nothing (0) beyond their edges."""
        a, wide = radians(self.draw_angle(client)), x.shape[3] / x.shape[2]
        # the grid spans -1 … 1 along both sides: an image that is not square must not be sheared
        turn = torch.tensor([[cos(a), -sin(a) / wide, 0.0], [sin(a) * wide, cos(a), 0.0]])
        grid = affine_grid(turn[None], [1, *x.shape[1:]], align_corners=False)

        def rotate(some: Tensor) -> Tensor:
            where = grid.expand(len(some), -1, -1, -1)
            return grid_sample(some.float(), where, "bilinear", "zeros", align_corners=False)

        return torch.cat([restore_dtype(rotate(some), x, unit) for some in x.split(CHUNK_SIZE)])


@dataclass(frozen=True)
class Noise(SeededRule):
    """Every client's examples carry Gaussian noise of its own level, up to so much."""

    level: float = setting(0.2, "the largest standard deviation; 1: from black to white", low=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def check_examples(self, x: Tensor) -> None:
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise DataError("data.feature_skew.kind = 'noise' needs images or numbers, not tokens")

    def draw_deviation(self, client: str) -> float:
        return float(make_generator(self.seed, "noise", client).uniform(0, self.level))

    def apply(self, x: Tensor, unit: float, client: str, part: str) -> Tensor:
        """The examples with noise that was drawn once: every epoch sees the same."""
        draw, strength = (
            make_generator(self.seed, "noise", client, part),
            unit * self.draw_deviation(client),
        )

        def add_noise(some: Tensor) -> Tensor:
            noise = torch.from_numpy(draw.standard_normal(tuple(some.shape), "float32"))
            return some.float() + noise * strength

        return torch.cat([restore_dtype(add_noise(some), x, unit) for some in x.split(CHUNK_SIZE)])


Skew = Rotation | Noise
SKEWS: dict[str, type[Rotation] | type[Noise]] = {"noise": Noise, "rotation": Rotation}


def build_skew(values: Mapping[str, Any]) -> Skew:
    """A feature skew from what a user wrote: ``{kind = "rotation", degrees = 45}``."""
    rest = dict(values)
    kind = str(rest.pop("kind", ""))
    return construct(choose(SKEWS, kind, "data.feature_skew.kind"), rest, "data.feature_skew")


def describe_skew(how: Skew) -> dict[str, Any]:
    """What ``skew`` makes it from."""
    kind = next(name for name, cls in SKEWS.items() if isinstance(how, cls))
    return {"kind": kind, **asdict(how)}


def restore_dtype(x: Tensor, like: Tensor, unit: float) -> Tensor:
    """Numbers as the originals are stored: bytes stay bytes."""
    return x.clamp(0, unit).round().to(like.dtype) if like.dtype == torch.uint8 else x


@dataclass(frozen=True, eq=False)
class SkewedSamples(Samples):
    """Rows of the pool as somebody sees them; made at first use, kept as long as they are used."""

    view: Callable[[Tensor], Tensor] = lambda x: x

    @cached_property
    def skewed(self) -> Tensor:
        return self.view(super().get_all_stored())

    def select_examples(self, at: Tensor) -> Samples:
        """As they are seen among all: a view is of everything a client holds."""
        return Samples(self.skewed, self.labels, self.scale, at, self.image_transform)

    def get_stored(self, at: Tensor) -> Tensor:
        return self.skewed[at]

    def get_all_stored(self) -> Tensor:
        return self.skewed


def make_skew_view(
    how: Skew, rows: Mapping[str, Tensor], unit: float, part: str
) -> Callable[..., Tensor]:
    """The view on these clients' rows, one client after the other."""

    def view(x: Tensor) -> Tensor:
        sizes = [len(r) for r in rows.values()]
        mine = zip(rows, x.split(sizes), strict=True)
        return torch.cat([how.apply(piece, unit, client, part) for client, piece in mine])

    return view
