"""Random transforms of training images: crop, flip and rotation, drawn for each image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS_PER_IMAGE = 4  # uniform numbers in [0, 1) for: flip, shift down, shift right, angle
# positions are whole numbers of 1/65536 pixel, so that they are equal on every machine
FIXED_POINT_SCALE = 1 << 16

ImageDraws = Callable[[Tensor], Tensor]  # rows of a pool -> uniform numbers, rows × DRAWS_PER_IMAGE


@dataclass(frozen=True)
class RandomImageTransform:
    """Crop, flip and rotate images at random, in this order. Pixels from outside are black.

    Pixels are moved, not interpolated, so bytes stay bytes. (A flip before the crop would give
    the same distribution of images.)
    """

    pad: int = 0  # pad with so many black pixels on each side, then crop to the old size anywhere
    flip: bool = False  # mirror left and right with probability 1/2
    degrees: float = 0.0  # rotate about the centre by up to so many degrees either way
    frozen: bool = False  # draw once per image for the whole run, not at every use

    def __call__(self, x: Tensor, draws: Tensor) -> Tensor:
        """Transform each image by its own row of uniform numbers."""
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
    """Draw new numbers for an image at every use."""
    source = torch.Generator().manual_seed(seed)
    return lambda rows: draw_uniforms(len(rows), source)


def draw_once_per_image(images: int, seed: int) -> ImageDraws:
    """Draw once for each row of the pool: an image is transformed alike at every use."""
    fixed = draw_uniforms(images, torch.Generator().manual_seed(seed))
    return lambda rows: fixed[rows]


def draw_uniforms(images: int, source: torch.Generator) -> Tensor:
    return torch.rand(images, DRAWS_PER_IMAGE, generator=source, dtype=torch.float64)


def rotate_positions(down: Tensor, right: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Compute which pixel each pixel of an image comes from if it is rotated anticlockwise."""
    radians = degrees.deg2rad()
    cos, sin = radians.cos(), radians.sin()
    centre = [(n.numel() - 1) / 2 for n in (down, right)]
    # where the centre of the first pixel comes from; the others follow in equal steps
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
    return (value * FIXED_POINT_SCALE + 0.5).floor().long()


def is_within(position: Tensor, size: int) -> Tensor:
    return (position >= 0) & (position < size)
