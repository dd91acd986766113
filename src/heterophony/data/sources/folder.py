"""Image files (PNG, JPEG, …) in folders, one per class, or one per client and class."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import make_natural_sort_key, open_regular_file, read_regular_file
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source, check_client_name
from .arrays import NamedClients

IMAGE_SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"]
)
IMAGE_LIMIT = 1 << 28  # bytes of a file
GREY_MODES = ("1", "L")


def decode_image(
    blob: bytes, where: Path, grey: bool = False, side: int | None = None
) -> NDArray[np.uint8]:
    """Decode an image to bytes, C×H×W, with one or three channels; ``side`` resizes to a square."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(blob)) as image:
            plain = image.convert("L" if grey else "RGB")
    except Exception as error:  # Pillow's formats raise almost anything for a damaged file
        raise make_image_error(where, error) from None
    if side is not None and plain.size != (side, side):
        plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain, np.uint8)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def read_image_header(path: Path) -> tuple[tuple[int, int], bool]:
    """Read width and height, and whether the image is grey, without decoding its pixels."""
    from PIL import Image

    try:
        with open_regular_file(path) as file, Image.open(file) as image:
            return image.size, image.mode in GREY_MODES
    except Exception as error:
        raise make_image_error(path, error) from None


def read_image_file(path: Path) -> bytes:
    """Read an image file without changing its size."""
    try:
        return read_regular_file(path, IMAGE_LIMIT)
    except OSError as error:
        raise DataError(f"{path} is not a readable image ({error.strerror})") from None


def make_image_error(where: Path, error: Exception) -> DataError:
    damaged = isinstance(error, SyntaxError | OSError)
    reason = "cut short or of another kind" if damaged else error
    return DataError(f"{where} is not a readable image ({reason})")


TEST_FOLDERS = ("test", "val")


def read_image_folder(path: Path) -> Source:
    """Read all images below a folder, with the names of their folders as classes."""
    train, test = list_train_and_test_images(path)
    files = [*train, *test]
    labels = sorted({f.parent.name for f in files})
    x = read_images(files)
    y = np.array([labels.index(f.parent.name) for f in files], np.int64)
    return Source(
        path.name, x, y, BYTES_TO_PLUS_MINUS_ONE, tuple(labels), len(train) if test else None
    )


def has_images_by_class(path: Path) -> bool:
    """Return True if the subfolders of a folder hold images."""
    return bool(list_train_and_test_images(path)[0])


def has_images_by_client(path: Path) -> bool:
    """Return True if the subfolders of a folder hold images by class."""
    return path.is_dir() and any(map(has_images_by_class, list_client_folders(path)))


def list_client_folders(path: Path) -> list[Path]:
    """List the visible subfolders, in the natural order of their names."""
    folders = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]
    return sorted(folders, key=lambda p: make_natural_sort_key(p.name))


def list_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the names of the clients' folders."""
    found = [(p.name, *list_train_and_test_images(p)) for p in list_client_folders(path)]
    names = tuple(name for name, train, _ in found if train)
    return NamedClients(names, has_split=all(test for _, train, test in found if train))


def read_images_by_client(path: Path) -> Source:
    """Read the images of all clients, with training images first."""
    folders = [p for p in list_client_folders(path) if has_images_by_class(p)]
    both = [list_train_and_test_images(p) for p in folders]
    if len({bool(test) for _, test in both}) > 1:
        alone = folders[[bool(test) for _, test in both].index(False)]
        raise DataError(
            f"{alone} has no test images, but other clients have; give them to all clients or to none"
        )
    parts = [(i, files) for k in (0, 1) for i, files in enumerate(pair[k] for pair in both)]
    files = [f for _, own in parts for f in own]
    labels = sorted({f.parent.name for f in files})
    trained = sum(len(train) for train, _ in both)
    return Source(
        path.name,
        read_images(files),
        np.array([labels.index(f.parent.name) for f in files], np.int64),
        BYTES_TO_PLUS_MINUS_ONE,
        tuple(labels),
        trained if trained < len(files) else None,
        users=np.repeat([i for i, _ in parts], [len(own) for _, own in parts]).astype(np.int64),
        user_names=tuple(check_client_name(p.name, str(p)) for p in folders),
    )


def list_train_and_test_images(path: Path) -> tuple[list[Path], list[Path]]:
    """List training images and, if there is a folder for them, test images."""
    train = list_images(path / "train")
    if not train:
        return list_images(path), []
    return train, next(filter(None, (list_images(path / name) for name in TEST_FOLDERS)), [])


def list_images(folder: Path) -> list[Path]:
    """List the images in the subfolders, ordered by class and name."""
    return sorted(p for p in folder.glob("*/*") if p.suffix.lower() in IMAGE_SUFFIXES)


def read_images(files: list[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Read images of one size: as grey if all are grey, else in colour."""
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
