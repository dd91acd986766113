"""UCI's Human Activity Recognition: windows of a phone's sensors, by subject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file
from ...core.samples import Scale
from ..source import Source, name_users, number_clients
from .request import NamedClients, Request

PARTS = ("train", "test")
SIGNALS = "Inertial Signals"
ACTIVITIES = (
    *("walking", "walking_upstairs", "walking_downstairs"),
    *("sitting", "standing", "laying"),
)


def is_har(path: Path) -> bool:
    """Return True if a folder has the training features, labels and subjects."""
    return all((path / "train" / f"{n}_train.txt").is_file() for n in ("X", "y", "subject"))


def list_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the subjects. Each is in the training set or in the test set, never in both."""
    subjects = np.concatenate([read_column(path, part, "subject") for part in PARTS])
    return NamedClients(number_clients(subjects.tolist(), str(path))[1])


def read_har(path: Path, request: Request) -> Source:
    """Read windows of 9 signals and 128 steps if they are there, otherwise 561 features."""
    xs = [read_windows(path, part) for part in PARTS]
    ys = [read_column(path, part, "y") for part in PARTS]
    subjects = [read_column(path, part, "subject") for part in PARTS]
    for part, *sizes in zip(PARTS, *(map(len, c) for c in (xs, ys, subjects)), strict=True):
        if len(set(sizes)) > 1:
            found = ", ".join(map(str, sizes))
            raise DataError(
                f"{path / part}: windows, labels and subjects differ in number: {found}"
            )
    x, y = np.concatenate(xs), np.concatenate(ys) - 1
    if y.min() < 0 or y.max() >= len(ACTIVITIES):
        raise DataError(f"{path}: labels must be 1 … {len(ACTIVITIES)}")
    source = Source(path.name, x, y, Scale(), ACTIVITIES, official=len(ys[0]))
    return name_users(source, np.concatenate(subjects), str(path))


def read_windows(path: Path, part: str) -> NDArray[np.float32]:
    """Read the windows of the training or test set."""
    signals = sorted((path / part / SIGNALS).glob("*.txt"))
    if not signals:
        return read_numbers(path / part / f"X_{part}.txt")
    windows = [read_numbers(p) for p in signals]
    for file, window in zip(signals, windows, strict=True):
        if window.shape != windows[0].shape:
            raise DataError(f"{file} has another shape than {signals[0].name}")
    return np.stack(windows, axis=1)


def read_column(path: Path, part: str, name: str) -> NDArray[np.int64]:
    """Read one whole number per line."""
    file = path / part / f"{name}_{part}.txt"
    numbers = read_numbers(file)
    if numbers.shape[1] != 1 or (numbers != np.floor(numbers)).any():
        raise DataError(f"{file} must have one whole number per line")
    return numbers[:, 0].astype(np.int64)


def read_numbers(path: Path) -> NDArray[np.float32]:
    """Read numbers that are separated by spaces, one row per line."""
    try:
        text = read_regular_file(path, DATA_LIMIT).decode()
        rows = [line.split() for line in text.splitlines() if line.strip()]
        numbers: NDArray[Any] = np.array(rows, dtype=np.float32)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a table of numbers ({error})") from None
    if numbers.ndim != 2:
        raise DataError(f"{path} has no numbers")
    return numbers
