"""CIFAR-10, CIFAR-100 and Tiny ImageNet, read from their official archives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .arrays import read_npz
from .download import DatasetFiles, RemoteFile, find_or_download
from .folder import decode_image
from .huggingface import HF_PREFIX, read_huggingface
from .reading import ArchiveFiles, open_archive, unpickle_safely

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


ARCHIVE_FOLDER = "tiny-imagenet-200"
REQUIRED_FILES = ("wnids.txt", "train", "val/val_annotations.txt")
TINYIMAGENET_FILES = DatasetFiles(
    "tinyimagenet",
    (
        ("tiny-imagenet-200.zip",),
        tuple(f"{ARCHIVE_FOLDER}/{f}" for f in REQUIRED_FILES),
        REQUIRED_FILES,
    ),
    (
        RemoteFile(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
        ),
    ),
    "get tiny-imagenet-200.zip from cs231n.stanford.edu and set data.path to it",
)


def read_tinyimagenet(
    path: Path | None = None, side: int = 64, name: str = "tinyimagenet"
) -> Source:
    """Read the training images, then *val* as test: the labels of *test* were never published."""
    with open_archive(find_or_download(TINYIMAGENET_FILES, path), ARCHIVE_FOLDER) as files:
        ids = files.read_text("wnids.txt").split()
        label = {wnid: i for i, wnid in enumerate(ids)}
        images = [*list_training_images(files, label), *list_validation_images(files, label)]
        x = np.empty(
            (len(images), 3, side, side), np.uint8
        )  # filled one by one, to avoid a second copy
        for at, (file, _) in enumerate(images):
            x[at] = decode_image(files.read_first(file)[1], files.path / file, side=side)
        labels = read_class_names(files, ids)
    official = sum(file.startswith("train/") for file, _ in images)
    y = np.array([label for _, label in images], np.int64)
    return Source(name, x, y, BYTES_TO_PLUS_MINUS_ONE, labels, official)


def list_training_images(files: ArchiveFiles, label: dict[str, int]) -> list[tuple[str, int]]:
    """List the files below ``train`` with their labels, by class and name."""
    pattern = re.compile(r"train/([^/]+)/images/[^/]+\.JPEG")
    images = [(m[0], m[1]) for name in files.list_names() if (m := pattern.fullmatch(name))]
    for file, wnid in images:
        if wnid not in label:
            raise DataError(f"{files.path / file}: wnids.txt does not have {wnid}")
    if not images:
        raise DataError(f"{files.path} has no train/…/images/….JPEG")
    return sorted((file, label[wnid]) for file, wnid in images)


def list_validation_images(files: ArchiveFiles, label: dict[str, int]) -> list[tuple[str, int]]:
    """List the files of ``val`` with their labels, by name."""
    lines = files.read_text("val/val_annotations.txt").splitlines()
    images = []
    for number, line in enumerate(lines, 1):
        file, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in label:
            raise DataError(f"{files.path / 'val/val_annotations.txt'}:{number}: no known class")
        images.append((f"val/images/{file}", label[wnid]))
    return sorted(images)


def read_class_names(files: ArchiveFiles, ids: list[str]) -> tuple[str, ...]:
    """Return the first word for each class; its id if words.txt has none, or one used twice."""
    pairs = (line.partition("\t") for line in files.read_text("words.txt").splitlines())
    words = {wnid: name.split(",")[0].strip() for wnid, _, name in pairs}
    names = [words.get(wnid) or wnid for wnid in ids]
    return tuple(w if names.count(w) == 1 else i for w, i in zip(names, ids, strict=True))
