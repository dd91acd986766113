"""Read image files (PNG, JPEG, …) as arrays of bytes, channels first."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import open_regular_file, read_regular_file

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
