"""Data sets by name or path: embedded, on this machine, in the cache, or downloaded."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, suggestion
from ..samples import HALF, Scale
from .source import Source

FASHION = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


@dataclass(frozen=True)
class Known:
    """A data set that has a name."""

    about: str
    read: Callable[[Path | None], Source]


def source(name: str, path: str | None = None) -> Source:
    """The data set of that name, or at that path (``.npz``)."""
    if name in SOURCES:
        return SOURCES[name].read(Path(path).expanduser() if path else None)
    if name.endswith(".npz"):
        return npz(Path(name).expanduser())
    raise DataError(
        f"data.name: no data set '{name}' here, and no path to a .npz file"
        f"{suggestion(name, SOURCES)}"
    )


def digits(path: Path | None = None) -> Source:
    """scikit-learn's digits: embedded, nothing to fetch."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[:, None]
    names = tuple(str(i) for i in range(10))
    return Source("digits", x, bunch.target.astype(np.int64), Scale(16.0, (0.5,), (0.5,)), names)


def fmnist(path: Path | None = None) -> Source:
    """Fashion-MNIST, training and test images merged: 70 000."""
    folder = find("fmnist", path, system=[SYSTEM_FMNIST])
    parts = [(idx(folder, f"{p}-images-idx3-ubyte"), idx(folder, f"{p}-labels-idx1-ubyte"))
             for p in ("train", "t10k")]  # fmt: skip
    x = np.concatenate([images for images, _ in parts])[:, None]
    y = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return Source("fmnist", x, y, HALF, FASHION)


FMNIST_FILES = {  # of the decompressed bytes, as repackagers' gzip headers differ
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
SYSTEM_FMNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's package
FMNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def cache() -> Path:
    """Where downloads are kept."""
    if own := os.environ.get("HETEROPHONY_DATA"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "heterophony"


def find(name: str, path: Path | None, system: list[Path]) -> Path:
    """The folder that has the set: the one given, else cache, system, download."""
    if path is not None:
        return path
    for folder in [cache() / name, *system]:
        if all(any((folder / f"{f}{end}").exists() for end in ("", ".gz")) for f in FMNIST_FILES):
            return folder
    return fetch(name)


def fetch(name: str) -> Path:
    """Download a data set into the cache; answers clearly when there is no network."""
    if name != "fmnist":
        raise DataError(f"'{name}' is not a data set to download; there is: fmnist")
    import pooch  # type: ignore[import-untyped]  # only where something is fetched

    pooch.get_logger().setLevel(logging.WARNING)
    folder = cache() / name
    try:
        for file, md5 in FMNIST_FILES.items():
            packed = f"{file}.gz"
            url = FMNIST_URL + packed
            got = pooch.retrieve(url, fname=packed, path=folder, known_hash=None)
            check_md5(Path(got), md5)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors
        raise DataError(
            f"data set '{name}' is not on this machine (looked in {folder} and {SYSTEM_FMNIST}) and could not be downloaded "
            f"({type(error).__name__}); install Debian's package dataset-fashion-mnist, "
            "or put the four idx files into a folder and set data.path"
        ) from None
    return folder


def check_md5(path: Path, md5: str) -> None:
    """Refuse, and remove, a download whose content is not the published one."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):  # not even packed: a portal's page, half a file
        content = b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        path.unlink()
        raise ValueError(f"{path.name} is not the published file")


def idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """One file of the MNIST family, packed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            break
    else:
        raise DataError(f"{folder} has no {name} nor {name}.gz")
    try:
        blob = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zeros, kind, dims = struct.unpack(">HBB", blob[:4])
        shape = struct.unpack(f">{dims}I", blob[4 : 4 + 4 * dims])
        content = np.frombuffer(blob, np.uint8, offset=4 + 4 * dims)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise DataError(f"{path} is not a readable idx file ({error})") from None
    if zeros or kind != 8 or content.size != prod(shape):
        raise DataError(f"{path} is not an idx file of bytes, or was cut short")
    return content.reshape(shape)


def npz(path: Path) -> Source:
    """A user's own ``.npz``: x_train, y_train and, merged with them, x_test, y_test; or x, y."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {k: file[k] for k in file.files if k[:1] in ("x", "y")}
    except Exception as error:  # numpy and zipfile raise almost anything for a damaged file
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise DataError(f"data.name: cannot read {path}: {reason}") from None
    xs = [found[k] for k in ("x", "x_train", "x_test") if k in found]
    ys = [found[k] for k in ("y", "y_train", "y_test") if k in found]
    if not xs or len(xs) != len(ys):
        raise DataError(
            f"{path} must hold x and y, or x_train, y_train, x_test, y_test; it holds: "
            f"{', '.join(sorted(found)) or 'none of them'}"
        )
    try:
        x, y = np.concatenate(xs), np.concatenate(ys)
    except ValueError:
        raise DataError(f"{path}: training and test examples have different shapes") from None
    return arrays(x, y, path.stem)


def arrays(x: NDArray[np.generic], y: NDArray[np.generic], name: str = "arrays") -> Source:
    """A user's own arrays: bytes are images (N×H×W or N×H×W×C), numbers are taken as they are."""
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{name}: labels must be one whole number per example, not {y.dtype} {y.shape}"
        )
    if x.ndim < 2:
        raise DataError(f"{name}: examples must have at least one dimension besides their number")
    if x.dtype == np.uint8:
        x = x[:, None] if x.ndim == 3 else x
        if x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3):
            x = x.transpose(0, 3, 1, 2)
    elif np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    elif np.issubdtype(x.dtype, np.integer):
        x = x.astype(np.int64)
    else:
        raise DataError(f"{name}: examples of type {x.dtype} cannot be used; give bytes or numbers")
    classes = int(y.max()) + 1 if len(y) else 0
    names = tuple(str(i) for i in range(classes))
    scale = HALF if x.dtype == np.uint8 else Scale()
    return Source(name, np.ascontiguousarray(x), y.astype(np.int64), scale, names)


SOURCES = {
    "digits": Known("1 797 handwritten digits, 8x8 grey, 10 classes; embedded", digits),
    "fmnist": Known("70 000 articles of clothing (Fashion-MNIST), 28x28 grey, 10 classes", fmnist),
}
