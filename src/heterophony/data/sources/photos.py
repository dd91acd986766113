"""Patches of the two photographs that come with scikit-learn: colour images without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...randomness import generator
from ...samples import HALF
from ..source import Source

PHOTOS = ("china", "flower")
SIDE, ROWS, COLUMNS, BANDS = 32, 10, 20, 5  # pixels; patches of a photograph; classes of one


def photos(path: Path | None = None) -> Source:
    """Patches that do not overlap; a class is one of five bands, from top to bottom, of a photo."""
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]  # slow

    x, y = [], []
    for number, name in enumerate(PHOTOS):
        whole = load_sample_image(f"{name}.jpg")
        tops = np.linspace(0, whole.shape[0] - SIDE, ROWS).astype(int)
        lefts = np.linspace(0, whole.shape[1] - SIDE, COLUMNS).astype(int)
        for row, top in enumerate(tops):
            for left in lefts:
                x.append(whole[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1))
                y.append(number * BANDS + row * BANDS // ROWS)
    order = generator("photos").permutation(len(y))  # neighbours are alike: first ones say nothing
    labels = tuple(f"{name} {band}" for name in PHOTOS for band in range(1, BANDS + 1))
    return Source("photos", np.stack(x)[order], np.array(y, np.int64)[order], HALF, labels)
