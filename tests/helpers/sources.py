"""Data set files and a Hugging Face hub made up for tests, and refusals."""

from __future__ import annotations

import gzip
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
    """Write the four files of a small MNIST; return all images and labels, merged."""
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


# The Hugging Face hub -------------------------------------------------------------------------


class Image:
    """The type of an image column; ``datasets`` has a class of this name."""


@dataclass
class ClassLabel:
    names: list[str]


class Value:
    """The type of a column of numbers or text."""


class Rows(list):
    def __init__(self, rows, **features) -> None:
        super().__init__(rows)
        self.features = features

    def __getitem__(self, at):
        return [row[at] for row in self] if isinstance(at, str) else super().__getitem__(at)


def install_hub(monkeypatch) -> dict[str, dict[str, Rows]]:
    """Install a fake ``datasets`` package; return its data sets, to be filled by the test."""
    sets: dict[str, dict[str, Rows]] = {}

    def load_dataset(name):
        if name not in sets:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist\non the Hub")
        return sets[name]

    package = ModuleType("datasets")
    package.load_dataset = load_dataset
    package.are_progress_bars_disabled = lambda: True
    package.disable_progress_bars = lambda: None
    package.logging = SimpleNamespace(
        get_verbosity=lambda: 30, set_verbosity=lambda level: None, set_verbosity_error=lambda: None
    )
    package.config = SimpleNamespace(HF_DATASETS_CACHE="/somewhere/datasets")
    monkeypatch.setitem(sys.modules, "datasets", package)
    return sets
