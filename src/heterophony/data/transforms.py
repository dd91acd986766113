"""How stored examples become input, by the name of the work that does it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ConfigError, DataError, choose
from ..core.image_transforms import RandomImageTransform
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale

UNCHANGED = "half"  # as the data set is read: bytes to [-1, 1], numbers and characters as they are


@dataclass(frozen=True)
class Transform:
    """What one work does with one data set; the training images are also moved."""

    name: str
    train: Scale
    test: Scale
    moves: RandomImageTransform | None = None

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Transform:
        """From plain data, as ``dataclasses.asdict`` gives them."""
        moves = told["moves"] and RandomImageTransform(**told["moves"])
        return cls(
            told["name"], Scale.from_dict(told["train"]), Scale.from_dict(told["test"]), moves
        )


def fedavg2rep(shape: tuple[int, ...], classes: int) -> Transform:
    """CIFAR-100, and Tiny ImageNet at its size. Training and test constants differ: so they did."""
    if shape != (3, 32, 32):
        raise make_shape_error("fedavg2rep", "3x32x32", shape)
    train = Scale(255.0, (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))
    test = Scale(255.0, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    return Transform("fedavg2rep", train, test, RandomImageTransform(pad=4, flip=True))


def feddecomp(shape: tuple[int, ...], classes: int) -> Transform:
    """CIFAR-10 as it is; CIFAR-100 and, without crops, Tiny ImageNet with one set of constants."""
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
    """The work's transform for these examples; None where they stay as they were read."""
    make = choose({UNCHANGED: None, **TRANSFORMS}, name, "data.transform")
    shape = tuple(x.shape[1:])
    found = None if make is None else make(shape, classes)
    if found is not None and x.dtype != torch.uint8:
        raise DataError(
            f"data.transform = '{name}' needs images stored as bytes, not"
            f" {str(x.dtype).removeprefix('torch.')}; use data.transform = '{UNCHANGED}'"
        )
    if not frozen:
        return found
    if found is None or found.moves is None:
        raise ConfigError(
            f"data.frozen_augment: data.transform = '{name}' augments nothing here that could be"
            " frozen; leave it false"
        )
    return replace(found, moves=replace(found.moves, frozen=True))


def make_shape_error(name: str, wanted: str, shape: tuple[int, ...]) -> DataError:
    has = "x".join(map(str, shape))
    return DataError(
        f"data.transform = '{name}' needs colour images of {wanted}, not examples of {has};"
        f" use data.transform = '{UNCHANGED}'"
    )
