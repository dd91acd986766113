"""CIFAR-10 and CIFAR-100: the official archive, its folder, an ``.npz``, or a Hugging Face copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .archives import ArchiveFiles, open_archive
from .arrays import read_npz
from .download import RemoteFile
from .huggingface import HF_PREFIX, read_huggingface
from .search_path import DatasetFiles, find_or_download
from .unpickle import unpickle_safely

BASE_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class CifarLayout:
    """The archive of one of the two data sets, and the files in it."""

    name: str
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str

    @property
    def dataset_files(self) -> DatasetFiles:
        """Where the data set can be found, on this machine or on its authors' site."""
        files = (*self.train, self.test, self.meta)
        inner = tuple(f"{self.folder}/{f}" for f in files)
        alternatives = ((self.archive,), inner, files, (f"{self.name}.npz",))
        hint = f"get {self.archive} from {BASE_URL[8:]}cifar.html and set data.path to it"
        remote = RemoteFile(BASE_URL + self.archive, self.md5)
        return DatasetFiles(self.name, alternatives, (remote,), hint)


CIFAR10_LAYOUT = CifarLayout(
    "cifar10",
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py",
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test_batch",
    "batches.meta",
)
CIFAR100_LAYOUT = CifarLayout(
    "cifar100",
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python",
    ("train",),
    "test",
    "meta",
)


def read_cifar10(path: Path | None = None) -> Source:
    """Read CIFAR-10, training before test."""
    return read_cifar("cifar10", CIFAR10_LAYOUT, path, "labels", "label_names", 10)


def read_cifar100(path: Path | None = None) -> Source:
    """Read CIFAR-100 with its 100 fine labels, training before test."""
    return read_cifar("cifar100", CIFAR100_LAYOUT, path, "fine_labels", "fine_label_names", 100)


def read_cifar100_coarse(path: Path | None = None) -> Source:
    """Read CIFAR-100 with its 20 coarse labels, training before test."""
    return read_cifar(
        "cifar100-coarse", CIFAR100_LAYOUT, path, "coarse_labels", "coarse_label_names", 20
    )


def read_cifar(
    name: str, layout: CifarLayout, path: Path | None, labels: str, names: str, classes: int
) -> Source:
    """Read one of the data sets; ``labels`` and ``names`` are keys in its pickles.

    The path ``hf:uoft-cs/cifar10`` stands for that copy on the Hugging Face hub.
    """
    if path is not None and str(path).startswith(HF_PREFIX):
        return replace(read_huggingface(str(path), classes=classes), name=name)
    local = find_or_download(layout.dataset_files, path)
    if local.suffix == ".npz":
        numbers = tuple(str(i) for i in range(classes))
        return replace(read_npz(local), name=name, labels=numbers)  # checks the labels again
    with open_archive(local, layout.folder) as files:
        class_names = unpickle_file(files, layout.meta).get(names)
        if not isinstance(class_names, list) or len(class_names) != classes:
            raise DataError(f"{files.path / layout.meta} must name {classes} classes in {names}")
        parts = [read_batch(files, f, labels) for f in (*layout.train, layout.test)]
    return Source(
        name,
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        BYTES_TO_PLUS_MINUS_ONE,
        tuple(n.decode() if isinstance(n, bytes) else str(n) for n in class_names),
        official=sum(len(y) for _, y in parts[:-1]),
    )


def read_batch(
    files: ArchiveFiles, name: str, labels: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images and labels of one file: a row has 1024 red, then green, then blue bytes."""
    content = unpickle_file(files, name)
    x, y = content.get("data"), content.get(labels)
    if not isinstance(x, np.ndarray) or x.shape[1:] != (3072,):
        raise DataError(f"{files.path / name} must hold images of 3072 bytes each, as 'data'")
    if not isinstance(y, list) or not all(map(is_byte_label, y)) or len(y) != len(x):
        raise DataError(f"{files.path / name} must hold one number per image, as '{labels}'")
    return x.reshape(-1, 3, 32, 32), np.array(y, np.int64)


def unpickle_file(files: ArchiveFiles, name: str) -> dict[str, Any]:
    path, blob = files.read_first(name)
    return unpickle_safely(blob, path)


def is_byte_label(label: object) -> bool:
    return type(label) is int and 0 <= label < 256
