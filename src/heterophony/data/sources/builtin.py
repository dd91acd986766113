"""Data sets that need no download: digits, patches of photographs, and the small image sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.randomness import make_generator
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ..source import Source, make_number_names
from .reading import load_npz

# in scikit-learn: each row has 64 pixels and the label
FILE = Path("datasets", "data", "digits.csv.gz")


def read_digits(path: Path | None = None) -> Source:
    """Read the digits data set from the installed scikit-learn; ``path`` is not used."""
    rows = np.loadtxt(find_digits_file(), delimiter=",", dtype=np.uint8)
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    scale = Scale(16.0, (0.5,), (0.5,))
    return Source("digits", np.ascontiguousarray(x), y, scale, make_number_names(10))


def find_digits_file() -> Path:
    """Find the digits in the installed scikit-learn without importing it, which would take a second."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / FILE).is_file():
            return Path(folder) / FILE
    raise DataError(f"data.name: digits needs scikit-learn's {FILE.name}; install scikit-learn")


PHOTOS = ("china", "flower")
SIDE = 32  # side of a patch, in pixels
ROWS, COLUMNS = 10, 20  # patches per photograph
BANDS = 5  # classes of a photograph
SHRINK_FACTOR = 4  # at full size most patches have one colour: sky or blurred background


def read_photos(path: Path | None = None) -> Source:
    """Read the photos data set: patches of two photographs; the classes are five horizontal bands of each."""
    from sklearn.datasets import load_sample_image  # type: ignore[import-untyped]  # slow

    x, y = [], []
    for number, name in enumerate(PHOTOS):
        whole = average_pixel_blocks(load_sample_image(f"{name}.jpg"), SHRINK_FACTOR)
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


def average_pixel_blocks(image: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """Shrink an image by averaging blocks of ``times`` × ``times`` pixels; cut off incomplete blocks."""
    height, width = (side // times for side in image.shape[:2])
    blocks = image[: height * times, : width * times].reshape(height, times, width, times, -1)
    means: NDArray[np.float64] = blocks.mean((1, 3))
    return means.round().astype(np.uint8)


# images drawn per class from the official training and test sets
TRAIN_PER_CLASS, TEST_PER_CLASS = 800, 200
DRAW_SEED = 0
LISTED_IMAGES = {"cifar10-small": 10_000, "cifar100-small": 20_000}  # training and test together
Digests = NDArray[np.uint64]


def read_small(read: Callable[[Path | None], Source], name: str, path: Path | None) -> Source:
    """Read an image data set, choose some of its images, and average each block of 2×2 pixels."""
    source = read(path)
    chosen = choose_listed(source, name) if name in LISTED_IMAGES else draw_images(source)
    return replace(chosen, name=name, x=halve_images(chosen.x))


def choose_listed(source: Source, name: str) -> Source:
    """Select a small data set's images by the packaged digests; draw others for missing ones, with a note."""
    train, test = load_digests(name)
    listed, found = np.concatenate([train, test]), digest_images(source.x, source.y)
    order = np.argsort(found, kind="stable")
    rows = order[np.minimum(np.searchsorted(found, listed, sorter=order), len(found) - 1)]
    if missing := int((found[rows] != listed).sum()):
        return replace(
            draw_images(source),
            remark=f"{name} is not as published: {missing:,} of its {len(listed):,} images are not"
            " in these files; others were drawn",
        )
    numbers = make_number_names(len(source.labels))  # not every copy names its classes
    return replace(source, x=source.x[rows], y=source.y[rows], official=len(train), labels=numbers)


@cache
def load_digests(name: str) -> tuple[Digests, Digests]:
    """Load the packaged digests of a small data set's training and test images."""
    arrays = load_npz(Path(__file__).with_name(f"{name}.npz"))
    return arrays["train"], arrays["test"]


def digest_images(x: NDArray[Any], y: NDArray[Any]) -> Digests:
    """Compute an 8-byte digest of each image and its label.

    The digest includes the label because CIFAR-100 has some images twice, under different labels.
    """
    pairs = zip(np.ascontiguousarray(x), y.tolist(), strict=True)
    digests = (
        hashlib.sha256(image.tobytes() + bytes([label])).digest()[:8] for image, label in pairs
    )
    return np.frombuffer(b"".join(digests), "<u8")


def draw_images(source: Source) -> Source:
    """Draw the images of a small data set with a fixed seed, separately for training and test."""
    train = len(source.y) if source.official is None else source.official
    rng = np.random.default_rng(DRAW_SEED)
    most_train, most_test = (n * len(source.labels) for n in (TRAIN_PER_CLASS, TEST_PER_CLASS))
    drawn = draw_rows(rng, 0, train, most_train), draw_rows(rng, train, len(source.y), most_test)
    rows = np.concatenate(drawn)
    official = None if source.official is None else len(drawn[0])
    return replace(source, x=source.x[rows], y=source.y[rows], official=official)


def draw_rows(
    rng: np.random.Generator, start: int, stop: int, count: int
) -> NDArray[np.signedinteger[Any]]:
    """Draw ``count`` rows from a range, in order; return all rows if there are fewer."""
    return start + np.sort(rng.permutation(stop - start)[:count])


def halve_images(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Halve images by averaging each block of 2×2 pixels; an odd last row or column is left out."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    pixels = [x[:, :, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
    sums = np.stack(pixels).sum(axis=0, dtype=np.uint16)
    return np.asarray((sums + 2) // 4, np.uint8)
