"""Data sets by name or path: embedded, on this machine, in a cache, or downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import DataError, suggestion
from ...samples import Scale
from ..source import Source
from . import cifar, huggingface, idx, shakespeare, tinyimagenet
from .folder import image_folder
from .own import arrays, npz, per_client
from .places import Wanted, fetched

__all__ = ["SOURCES", "Known", "arrays", "fetch", "npz", "source"]


@dataclass(frozen=True)
class Known:
    """A data set that has a name."""

    about: str
    read: Callable[[Path | None], Source]
    wanted: Wanted | None = None  # its files; None: embedded


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
    labels, what = idx.SPLITS[split]
    about = f"{what} (EMNIST, {split}), 28x28 grey, {len(labels)} classes"
    return Known(about, partial(idx.emnist, split=split, name=name), idx.emnist_wanted(split))


SOURCES = {
    "digits": Known("1 797 handwritten digits, 8x8 grey, 10 classes; embedded", digits),
    "fmnist": Known(
        "70 000 articles of clothing (Fashion-MNIST), 28x28 grey, 10 classes",
        idx.fmnist,
        idx.FMNIST,
    ),
    "mnist": Known(
        "70 000 handwritten digits (MNIST), 28x28 grey, 10 classes", idx.mnist, idx.MNIST
    ),
    "emnist": emnist("emnist", "balanced"),
    **{f"emnist-{split}": emnist(f"emnist-{split}", split) for split in idx.SPLITS},
    "cifar10": Known(
        "60 000 photographs (CIFAR-10), 32x32 colour, 10 classes", cifar.cifar10, cifar.TEN.wanted
    ),
    "cifar100": Known(
        "60 000 photographs (CIFAR-100), 32x32 colour, 100 classes",
        cifar.cifar100,
        cifar.HUNDRED.wanted,
    ),
    "cifar100-coarse": Known(
        "the same with 20 coarse classes", cifar.cifar100_coarse, cifar.HUNDRED.wanted
    ),
    "tinyimagenet": Known(
        "110 000 photographs (Tiny ImageNet), 64x64 colour, 200 classes",
        tinyimagenet.tinyimagenet,
        tinyimagenet.TINY,
    ),
    "tinyimagenet-32": Known(
        "the same, resized to 32x32",
        partial(tinyimagenet.tinyimagenet, side=32, name="tinyimagenet-32"),
        tinyimagenet.TINY,
    ),
    "shakespeare": Known(
        "plays (LEAF): 80 characters, which of 80 comes next; by speaking role",
        shakespeare.shakespeare,
        shakespeare.PLAYS,
    ),
}
