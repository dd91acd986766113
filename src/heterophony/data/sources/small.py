"""Small versions of image data sets: some of the images, at half their side.

The medium scale of published tables uses them. The same images are drawn everywhere and always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..source import Source

# images drawn from the official training and test set, for each class of the data set
TRAIN_PER_CLASS, TEST_PER_CLASS = 800, 200
DRAW_SEED = 0


def read_small(read: Callable[[Path | None], Source], name: str, path: Path | None) -> Source:
    """Read a data set of images, draw some of them, and replace each 2×2 pixels by their mean."""
    source = read(path)
    train = len(source.y) if source.official is None else source.official
    rng = np.random.default_rng(DRAW_SEED)
    most_train, most_test = (n * len(source.labels) for n in (TRAIN_PER_CLASS, TEST_PER_CLASS))
    drawn = draw_rows(rng, 0, train, most_train), draw_rows(rng, train, len(source.y), most_test)
    rows = np.concatenate(drawn)
    official = None if source.official is None else len(drawn[0])
    x = halve_images(source.x[rows])
    return replace(source, name=name, x=x, y=source.y[rows], official=official)


def draw_rows(
    rng: np.random.Generator, start: int, stop: int, count: int
) -> NDArray[np.signedinteger[Any]]:
    """Draw so many rows between two others, in order; all of them if there are no more."""
    return start + np.sort(rng.permutation(stop - start)[:count])


def halve_images(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Replace each 2×2 pixels by their mean, rounded; an odd last row or column is left out."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    pixels = [x[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
    sums = np.stack(pixels).sum(axis=0, dtype=np.uint16)
    return np.asarray((sums + 2) // 4, np.uint8)
