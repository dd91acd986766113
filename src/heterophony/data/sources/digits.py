"""scikit-learn's handwritten digits: 8×8 images without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...core.samples import Scale
from ..source import Source


def read_digits(path: Path | None = None) -> Source:
    """Read the digits. They are part of scikit-learn, so ``path`` is not used."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[:, None]
    names = tuple(str(i) for i in range(10))
    return Source("digits", x, bunch.target.astype(np.int64), Scale(16.0, (0.5,), (0.5,)), names)
