"""Image files (PNG, JPEG, …) and folders with one subfolder per class."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import open_regular_file, read_regular_file
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source

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
    """Read an image file as it is."""
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
