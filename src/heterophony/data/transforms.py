"""``data.transform``: how stored examples become network input, as published works do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ConfigError, DataError, choose
from ..core.image_transforms import RandomImageTransform
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale

UNCHANGED = "half"  # the data set's own scale: bytes to [-1, 1], numbers and tokens unchanged


@dataclass(frozen=True)
class Transform:
    """The scales of training and test examples, and the random transform of training images."""

    name: str
    train: Scale
    test: Scale
    moves: RandomImageTransform | None = None  # its name is part of stored files and digests

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Transform:
        """Rebuild a transform from the dict that ``dataclasses.asdict`` made of it."""
        train, test = Scale.from_dict(values["train"]), Scale.from_dict(values["test"])
        moves = values["moves"] and RandomImageTransform(**values["moves"])
        return cls(values["name"], train, test, moves)


def fedavg2rep(shape: tuple[int, ...], classes: int) -> Transform:
    """CIFAR-100, and Tiny ImageNet at 32x32. Training and test constants differ, as in the work."""
    if shape != (3, 32, 32):
        raise make_shape_error("fedavg2rep", "3x32x32", shape)
    train = Scale(255.0, (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762))
    test = Scale(255.0, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    return Transform("fedavg2rep", train, test, RandomImageTransform(pad=4, flip=True))


def feddecomp(shape: tuple[int, ...], classes: int) -> Transform:
    """CIFAR-10 without augmentation; CIFAR-100 and Tiny ImageNet with, the latter without crops."""
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
    """Return the named transform for these examples; None for the data set's own scale."""
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
    actual = "x".join(map(str, shape))
    return DataError(
        f"data.transform = '{name}' needs colour images of {wanted}, not examples of {actual};"
        f" use data.transform = '{UNCHANGED}'"
    )
