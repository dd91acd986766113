"""Image folders: one folder per class, or ``train`` and ``test`` with such folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .images import IMAGE_SUFFIXES, decode_image, read_image_file, read_image_header

TEST_FOLDERS = ("test", "val")


def read_image_folder(path: Path) -> Source:
    """Read all images below a folder; the names of their folders are the classes."""
    train, test = list_train_and_test_images(path)
    if not train:
        raise DataError(
            f"data.name: {path} holds neither folders of images, one per class, nor .npz files,"
            " one per client"
        )
    files = [*train, *test]
    labels = sorted({f.parent.name for f in files})
    x = read_images(files)
    y = np.array([labels.index(f.parent.name) for f in files], np.int64)
    return Source(
        path.name, x, y, BYTES_TO_PLUS_MINUS_ONE, tuple(labels), len(train) if test else None
    )


def list_train_and_test_images(path: Path) -> tuple[list[Path], list[Path]]:
    """List training images and, if there is a folder for them, test images."""
    train = list_images(path / "train")
    if not train:
        return list_images(path), []
    return train, next(filter(None, (list_images(path / name) for name in TEST_FOLDERS)), [])


def list_images(folder: Path) -> list[Path]:
    """List the images in the subfolders, by class and name."""
    return sorted(p for p in folder.glob("*/*") if p.suffix.lower() in IMAGE_SUFFIXES)


def read_images(files: list[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Read images of one size: grey if all are grey, else in colour."""
    headers = [read_image_header(f) for f in files]
    size, grey = headers[0][0], all(g for _, g in headers)
    for file, (other, _) in zip(files, headers, strict=True):
        if other != size:
            raise DataError(
                f"images must all have one size: {files[0]} is {size[0]}×{size[1]},"
                f" {file} is {other[0]}×{other[1]}"
            )
    x = np.empty((len(files), 1 if grey else 3, size[1], size[0]), np.uint8)
    for at, file in enumerate(files):
        x[at] = decode_image(read_image_file(file), file, grey)
    return x
