"""Data sets by name or path: embedded, on this machine, in a cache, or downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ...core.errors import DataError, suggestion
from ...core.samples import Scale
from ..source import Source
from . import (
    cifar,
    huggingface,
    idx,
    shakespeare,
    tinyimagenet,
)
from .arrays import arrays, npz, per_client
from .folder import image_folder
from .photos import photos
from .search_path import Wanted, fetched

__all__ = ["SOURCES", "Known", "arrays", "fetch", "npz", "source"]


@dataclass(frozen=True)
class Size:
    """What is known of a data set without reading it."""

    examples: int
    shape: tuple[int, ...]
    classes: int


GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@dataclass(frozen=True)
class Known:
    """A data set that has a name."""

    about: str
    size: Size
    read: Callable[[Path | None], Source]
    wanted: Wanted | None = None  # its files; None: embedded

    @property
    def here(self) -> bool:
        """Can it be read without a download?"""
        return self.wanted is None or self.wanted.here() is not None


def source(name: str, path: str | None = None) -> Source:
    """The data set of that name, or at that path (``.npz``, or a folder)."""
    if name in SOURCES:
        return SOURCES[name].read(Path(path).expanduser() if path else None)
    if name.startswith(huggingface.PREFIX):
        return huggingface.huggingface(name)
    at = Path(name).expanduser()
    if at.suffix == ".npz":
        return npz(at)
    if at.is_dir():
        return per_client(at) if any(at.glob("*.npz")) else image_folder(at)
    raise DataError(
        f"data.name: no data set '{name}' here, and no path to a .npz file or a folder"
        f"{suggestion(name, SOURCES)}"
    )


def fetch(name: str) -> Path:
    """Download a data set into the cache, unless it is on this machine; says where it is."""
    if name.startswith(huggingface.PREFIX):
        return huggingface.fetched(name)
    wanted = SOURCES[name].wanted if name in SOURCES else None
    if wanted is None or not wanted.remote:
        known = ", ".join(sorted(k for k, v in SOURCES.items() if v.wanted and v.wanted.remote))
        how = f"; {wanted.hint}" if wanted else f"; there is: {known}"
        raise DataError(f"'{name}' is not a data set to download{how}")
    return wanted.here() or fetched(wanted)


def digits(path: Path | None = None) -> Source:
    """scikit-learn's digits: embedded, nothing to fetch."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[:, None]
    names = tuple(str(i) for i in range(10))
    return Source("digits", x, bunch.target.astype(np.int64), Scale(16.0, (0.5,), (0.5,)), names)


def emnist(name: str, split: str) -> Known:
    labels, count, what = idx.SPLITS[split]
    spaced = f"{count:,}".replace(",", " ")
    about = f"{spaced} {what} (EMNIST, {split}), 28x28 grey, {len(labels)} classes"
    size = Size(count, GREY, len(labels))
    return Known(about, size, partial(idx.emnist, split=split, name=name), idx.emnist_wanted(split))


SOURCES = {
    "digits": Known(
        "1 797 handwritten digits, 8x8 grey, 10 classes; embedded",
        Size(1797, (1, 8, 8), 10),
        digits,
    ),
    "photos": Known(
        "400 patches of two photographs, 32x32 colour, 10 classes; embedded",
        Size(400, COLOUR, 10),
        photos,
    ),
    "fmnist": Known(
        "70 000 articles of clothing (Fashion-MNIST), 28x28 grey, 10 classes",
        Size(70_000, GREY, 10),
        idx.fmnist,
        idx.FMNIST,
    ),
    "mnist": Known(
        "70 000 handwritten digits (MNIST), 28x28 grey, 10 classes",
        Size(70_000, GREY, 10),
        idx.mnist,
        idx.MNIST,
    ),
    "emnist": emnist("emnist", "balanced"),
    **{f"emnist-{split}": emnist(f"emnist-{split}", split) for split in idx.SPLITS},
    "cifar10": Known(
        "60 000 photographs (CIFAR-10), 32x32 colour, 10 classes",
        Size(60_000, COLOUR, 10),
        cifar.cifar10,
        cifar.TEN.wanted,
    ),
    "cifar100": Known(
        "60 000 photographs (CIFAR-100), 32x32 colour, 100 classes",
        Size(60_000, COLOUR, 100),
        cifar.cifar100,
        cifar.HUNDRED.wanted,
    ),
    "cifar100-coarse": Known(
        "the same with 20 coarse classes",
        Size(60_000, COLOUR, 20),
        cifar.cifar100_coarse,
        cifar.HUNDRED.wanted,
    ),
    "tinyimagenet": Known(
        "110 000 photographs (Tiny ImageNet), 64x64 colour, 200 classes",
        Size(110_000, (3, 64, 64), 200),
        tinyimagenet.tinyimagenet,
        tinyimagenet.TINY,
    ),
    "tinyimagenet-32": Known(
        "the same, resized to 32x32",
        Size(110_000, COLOUR, 200),
        partial(tinyimagenet.tinyimagenet, side=32, name="tinyimagenet-32"),
        tinyimagenet.TINY,
    ),
    "shakespeare": Known(
        "plays (LEAF): 80 characters, which of 80 comes next; by speaking role",
        Size(4_226_158, (80,), 80),  # as LEAF counts its samples
        shakespeare.shakespeare,
        shakespeare.PLAYS,
    ),
}
