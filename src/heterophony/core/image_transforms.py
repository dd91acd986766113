"""Training images moved at random: crops, flips and rotations, every image by its own chances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS_PER_IMAGE = (
    4  # numbers in [0, 1) that decide what happens to one image: flip, down, right, turn
)
FIXED_POINT_SCALE = (
    1 << 16
)  # positions are counted in parts of a pixel: whole numbers are alike everywhere

ImageDraws = Callable[[Tensor], Tensor]  # rows of a pool -> the chances of each, rows x CHANCES


@dataclass(frozen=True)
class RandomImageTransform:
    """What may happen to an image before it is trained on; what comes from outside is black.

    Always in the order crop, flip, rotation: a flip before the crop gives the same images with
    the same frequencies. Pixels are only moved, never mixed, so bytes stay bytes.
    """

    pad: int = 0  # black on each side, of which as much is cropped again, anywhere
    flip: bool = False  # left and right change places, half of the time
    degrees: float = 0.0  # at most so much to either side, about the middle
    frozen: bool = False  # an image is moved in one way for the whole run, not anew every time

    def __call__(self, x: Tensor, chances: Tensor) -> Tensor:
        """The images, each moved by its own row of chances."""
        height, width = x.shape[2:]
        down, right = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
        flip, *shift, turn = chances.double().T[:, :, None, None]
        inside = torch.ones(len(x), height, width, dtype=torch.bool)
        if self.degrees:
            down, right = rotate_positions(down, right, (2 * turn - 1) * self.degrees)
            inside &= is_within(down, height) & is_within(right, width)
        if self.flip:
            right = torch.where(flip < 0.5, width - 1 - right, right)
        if self.pad:
            by = [(s * (2 * self.pad + 1)).long() - self.pad for s in shift]
            down, right = down + by[0], right + by[1]
            inside &= is_within(down, height) & is_within(right, width)
        place = (down.clamp(0, height - 1) * width + right.clamp(0, width - 1)).expand_as(inside)
        moved = x.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, x.shape[1], -1))
        return moved.view(x.shape).masked_fill_(~inside[:, None], 0)


def rotate_positions(down: Tensor, right: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel of an image turned anticlockwise comes from: the pixel it falls into."""
    radians = degrees.deg2rad()
    cos, sin = radians.cos(), radians.sin()
    middle = [(n.numel() - 1) / 2 for n in (down, right)]
    # the middle of the first pixel, then whole steps
    first_down = down.numel() / 2 - cos * middle[0] - sin * middle[1]
    first_right = right.numel() / 2 - cos * middle[1] + sin * middle[0]
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
