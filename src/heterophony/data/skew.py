"""Feature skew (``data.feature_skew``): each client's examples are rotated, or have noise added.

The shared pool is not changed. A client's altered examples are computed at first use and depend
only on the seed and the client.
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

CHUNK_SIZE = 500  # images at a time: as floats they take four times the memory of bytes


@dataclass(frozen=True)
class Rotation(SeededRule):
    """Rotate each client's images by an angle of its own, drawn between ±``degrees``."""

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
        """Rotate the images with bilinear interpolation; outside their edges is 0."""
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

    level: float = setting(0.2, "the largest standard deviation; 1: from black to white", low=0)

    def __post_init__(self) -> None:
        check_settings(self)

    def check_examples(self, x: Tensor) -> None:
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise DataError("data.feature_skew.kind = 'noise' needs images or numbers, not tokens")

    def draw_deviation(self, client: str) -> float:
        return float(make_generator(self.seed, "noise", client).uniform(0, self.level))

    def apply(self, x: Tensor, unit: float, client: str, part: str) -> Tensor:
        """Add the noise. It is drawn once, so every epoch sees the same."""
        draw = make_generator(self.seed, "noise", client, part)
        deviation = unit * self.draw_deviation(client)

        def add_noise(some: Tensor) -> Tensor:
            noise = torch.from_numpy(draw.standard_normal(tuple(some.shape), "float32"))
            return some.float() + noise * deviation

        return torch.cat([restore_dtype(add_noise(some), x, unit) for some in x.split(CHUNK_SIZE)])


Skew = Rotation | Noise
SKEWS: dict[str, type[Rotation] | type[Noise]] = {"noise": Noise, "rotation": Rotation}


def build_skew(values: Mapping[str, Any]) -> Skew:
    """Build a skew from its configuration: ``{kind = "rotation", degrees = 45}``."""
    rest = dict(values)
    kind = str(rest.pop("kind", ""))
    return construct(choose(SKEWS, kind, "data.feature_skew.kind"), rest, "data.feature_skew")


def describe_skew(how: Skew) -> dict[str, Any]:
    """Return the configuration that ``build_skew`` builds this skew from."""
    kind = next(name for name, cls in SKEWS.items() if isinstance(how, cls))
    return {"kind": kind, **asdict(how)}


def restore_dtype(x: Tensor, like: Tensor, unit: float) -> Tensor:
    """Convert altered examples back to the type they are stored in."""
    return x.clamp(0, unit).round().to(like.dtype) if like.dtype == torch.uint8 else x


@dataclass(frozen=True, eq=False)
class SkewedSamples(Samples):
    """Samples of one client with feature skew, computed at first use."""

    view: Callable[[Tensor], Tensor] = lambda x: x

    @cached_property
    def skewed(self) -> Tensor:
        """All selected examples, altered."""
        return self.view(super().get_all_stored())

    def select_examples(self, at: Tensor) -> Samples:
        """Select among the altered examples: noise depends on all examples of the client."""
        return Samples(self.skewed, self.labels, self.scale, at, self.image_transform)

    def get_stored(self, at: Tensor) -> Tensor:
        return self.skewed[at]

    def get_all_stored(self) -> Tensor:
        return self.skewed


def make_skew_view(
    how: Skew, rows: Mapping[str, Tensor], unit: float, part: str
) -> Callable[..., Tensor]:
    """Return the function that alters these clients' rows, one client after the other."""

    def view(x: Tensor) -> Tensor:
        sizes = [len(r) for r in rows.values()]
        pieces = zip(rows, x.split(sizes), strict=True)
        return torch.cat([how.apply(piece, unit, client, part) for client, piece in pieces])

    return view
