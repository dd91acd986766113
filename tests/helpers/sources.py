"""Data set files made up for tests, and refusals."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from heterophony.core.errors import DataError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def refused(make, *args) -> str:
    with pytest.raises(DataError) as caught:
        make(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def mnist_folder(folder: Path, gz: bool) -> tuple[np.ndarray, np.ndarray]:
    """The four files of a small set; returns all images and labels, merged."""
    xs, ys = [images(6), images(4)], [np.arange(6) % 10, np.arange(4) % 10]
    for part, x, y in zip(("train", "t10k"), xs, ys, strict=True):
        for name, array in (("images-idx3", x), ("labels-idx1", y.astype(np.uint8))):
            blob = packed(array)
            path = folder / f"{part}-{name}-ubyte{'.gz' * gz}"
            path.write_bytes(gzip.compress(blob) if gz else blob)
    return np.concatenate(xs), np.concatenate(ys)


def packed(array: np.ndarray, kind: int = 8, zeros: int = 0) -> bytes:
    head = struct.pack(">HBB", zeros, kind, array.ndim) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return head + array.tobytes()


def images(n: int = 6, side: int = 5) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, side, side), np.uint8)
