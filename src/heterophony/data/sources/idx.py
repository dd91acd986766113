"""MNIST, Fashion-MNIST and the splits of EMNIST: idx files, compressed or not."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from math import prod
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import decompress_gzip
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .download import DatasetFiles, RemoteFile, find_or_download
from .reading import open_archive

FMNIST_LABELS = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
IDX_FILES = tuple(
    f"{p}-{f}-ubyte" for p in ("train", "t10k") for f in ("images-idx3", "labels-idx1")
)
FMNIST_MD5 = (  # of the decompressed bytes: Debian and others compress them differently
    *("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
    *("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
)
MNIST_MD5 = (
    *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
    *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
)
FMNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MANUAL_HINT = "put the four idx files into a folder and set data.path"
FMNIST_FILES = DatasetFiles(
    "fmnist",
    (IDX_FILES,),
    tuple(
        RemoteFile(f"{FMNIST_URL}{f}.gz", m, True)
        for f, m in zip(IDX_FILES, FMNIST_MD5, strict=True)
    ),
    f"install Debian's package dataset-fashion-mnist, or {MANUAL_HINT}",
    "fashion-mnist",
)
MNIST_FILES = DatasetFiles(
    "mnist",
    (IDX_FILES,),
    tuple(RemoteFile(f"{MNIST_URL}{f}.gz", m) for f, m in zip(IDX_FILES, MNIST_MD5, strict=True)),
    MANUAL_HINT,
)

# letters whose capital looks the same are one class in bymerge and balanced
MERGED_LABELS = digits + ascii_uppercase + "abdefghnqrt"
EMNIST_SPLITS = {
    "balanced": (MERGED_LABELS, 131_600, "characters"),
    "byclass": (digits + ascii_uppercase + ascii_lowercase, 814_255, "characters"),
    "bymerge": (MERGED_LABELS, 814_255, "characters"),
    "letters": (ascii_lowercase, 145_600, "letters of either case"),
    "digits": (digits, 280_000, "digits"),
    "mnist": (digits, 70_000, "digits"),
}
EMNIST_ARCHIVE = RemoteFile(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
)


def read_fmnist(path: Path | None = None) -> Source:
    """Read Fashion-MNIST, training before test."""
    return read_idx_dataset(
        "fmnist", find_or_download(FMNIST_FILES, path), IDX_FILES, FMNIST_LABELS
    )


def read_mnist(path: Path | None = None) -> Source:
    """Read MNIST, training before test."""
    return read_idx_dataset("mnist", find_or_download(MNIST_FILES, path), IDX_FILES, tuple(digits))


def make_emnist_files(split: str) -> DatasetFiles:
    """Return where a split of EMNIST is found; all splits are in one archive."""
    files = list_emnist_names(split)
    unpacked = tuple(f"gzip/{f}" for f in files)
    hint = "get NIST's gzip.zip from www.nist.gov/itl/products-and-services/emnist-dataset and set data.path to it"
    return DatasetFiles("emnist", (("gzip.zip",), unpacked, files), (EMNIST_ARCHIVE,), hint)


def list_emnist_names(split: str) -> tuple[str, ...]:
    return tuple(f"emnist-{split}-{f.replace('t10k', 'test')}" for f in IDX_FILES)


def read_emnist(path: Path | None = None, split: str = "balanced", name: str = "emnist") -> Source:
    """Read a split of EMNIST, training before test, turned upright."""
    local = find_or_download(make_emnist_files(split), path)
    source = read_idx_dataset(
        name, local, list_emnist_names(split), tuple(EMNIST_SPLITS[split][0]), split == "letters"
    )
    return replace(source, x=np.ascontiguousarray(source.x.transpose(0, 1, 3, 2)))


def read_idx_dataset(
    name: str, path: Path, files: tuple[str, ...], labels: tuple[str, ...], first: int = 0
) -> Source:
    """Read images and labels, training before test; ``first`` is the smallest label."""
    x, y, x_test, y_test = (read_idx(path, f) for f in files)
    for some in (x, x_test):
        if some.ndim != 3 or some.shape[1:] != x.shape[1:]:
            raise DataError(f"{path}: the images of {name} must all have one height and width")
    if y.shape != x.shape[:1] or y_test.shape != x_test.shape[:1]:
        raise DataError(f"{path}: {name} must have one label per image")
    return Source(
        name,
        np.concatenate([x, x_test])[:, None],
        np.concatenate([y, y_test]).astype(np.int64) - first,
        BYTES_TO_PLUS_MINUS_ONE,
        labels,
        official=len(y),
    )


def read_idx(path: Path, name: str) -> NDArray[np.uint8]:
    """Read one idx file, compressed or not, from a folder or from NIST's zip."""
    with open_archive(path, "gzip") as files:
        file, blob = files.read_first(name, f"{name}.gz")
    try:
        blob = decompress_gzip(blob) if file.suffix == ".gz" else blob
        zeros, kind, dims = struct.unpack(">HBB", blob[:4])
        shape = struct.unpack(f">{dims}I", blob[4 : 4 + 4 * dims])
        content = np.frombuffer(blob, np.uint8, offset=4 + 4 * dims)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise DataError(f"{file} is not a readable idx file ({error})") from None
    if zeros or kind != 8 or content.size != prod(shape):
        raise DataError(f"{file} is not an idx file of bytes, or was cut short")
    return content.reshape(shape)
