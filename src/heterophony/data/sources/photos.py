"""Patches of scikit-learn's two photographs: colour images without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.randomness import make_generator
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source

PHOTOS = ("china", "flower")
SIDE = 32  # of a patch, in pixels
ROWS, COLUMNS = 10, 20  # of patches in a photograph
BANDS = 5  # classes of a photograph
SHRINK_FACTOR = 4  # at full size most patches have one colour: sky, and blurred background


def read_photos(path: Path | None = None) -> Source:
    """Cut overlapping patches; their class is one of five horizontal bands of a photograph."""
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]  # slow

    x, y = [], []
    for number, name in enumerate(PHOTOS):
        whole = shrink(load_sample_image(f"{name}.jpg"), SHRINK_FACTOR)
        tops = np.linspace(0, whole.shape[0] - SIDE, ROWS).astype(int)
        lefts = np.linspace(0, whole.shape[1] - SIDE, COLUMNS).astype(int)
        for row, top in enumerate(tops):
            for left in lefts:
                x.append(whole[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1))
                y.append(number * BANDS + row * BANDS // ROWS)
    order = make_generator("photos").permutation(len(y))  # neighbouring patches are similar
    labels = tuple(f"{name} {band}" for name in PHOTOS for band in range(1, BANDS + 1))
    return Source(
        "photos", np.stack(x)[order], np.array(y, np.int64)[order], BYTES_TO_PLUS_MINUS_ONE, labels
    )


def shrink(image: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """Average blocks of ``times`` × ``times`` pixels; cut off the rest at the edges."""
    height, width = (side // times for side in image.shape[:2])
    blocks = image[: height * times, : width * times].reshape(height, times, width, times, -1)
    means: NDArray[np.float64] = blocks.mean((1, 3))
    return means.round().astype(np.uint8)
