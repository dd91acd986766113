"""Tiny ImageNet: 200 classes of 64×64 colour images; the zip or its unpacked folder."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .archives import ArchiveFiles, open_archive
from .download import RemoteFile
from .images import decode_image
from .search_path import DatasetFiles, find_or_download

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
