"""Read files that are already divided among clients: PFLlib folders and UCI HAR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError, FolderError, StorageError
from ...core.files import DATA_LIMIT, read_json, read_regular_file, sort_names
from ...core.samples import Scale
from ..source import Source, decide_classes, name_users, number_clients, parse_targets
from .arrays import NamedClients, Request, wrap_arrays
from .reading import load_pickled_dict, summarise_error

PARTS = ("train", "test")
CONFIG = "config.json"
Examples = tuple[NDArray[Any], NDArray[Any]]


def is_pfllib(path: Path) -> bool:
    """Return True if a folder has ``.npz`` files in train and test."""
    return all(any((path / part).glob("*.npz")) for part in PARTS)


def list_pfllib_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the clients that have a file in both folders."""
    train, test = ({p.stem for p in (path / part).glob("*.npz")} for part in PARTS)
    return NamedClients(tuple(sort_names(train & test)), has_split=True)


def read_pfllib(path: Path, request: Request) -> Source:
    """Read the training examples of all clients, then their test examples."""
    names = list_pfllib_clients(path).names
    for part in PARTS:
        for file in sorted((path / part).glob("*.npz")):
            if file.stem not in names:
                other = PARTS[1 - PARTS.index(part)]
                raise DataError(f"{path}: client '{file.stem}' has no file in {other}")
    parts = [
        (user, *read_client_file(path / part / f"{name}.npz"))
        for part in PARTS
        for user, name in enumerate(names)
    ]
    first = next((x for _, x, y in parts if len(y)), parts[0][1])
    for user, x, y in parts:
        if len(y) and (x.shape[1:] != first.shape[1:] or x.dtype.kind != first.dtype.kind):
            raise DataError(
                f"{path}: client '{names[user]}' has examples {x.dtype} {x.shape[1:]}, others have"
                f" {first.dtype} {first.shape[1:]}"
            )
    full = [(user, x, y) for user, x, y in parts if len(y)] or parts
    x, y = (np.concatenate([p[i] for p in full]) for i in (1, 2))
    parse_targets(y, request.task, str(path))
    classes = request.classes
    if classes is None and request.task == "classification":
        classes = read_class_count(path)
    source = wrap_arrays(x, y, path.name, shape=first.shape[1:], task=request.task, path=path)
    return replace(
        decide_classes(source, classes),
        official=sum(len(y) for _, _, y in parts[: len(names)]),
        users=np.concatenate([np.full(len(y), user, np.int64) for user, _, y in full]),
        user_names=names,
    )


def read_client_file(path: Path) -> Examples:
    """Read one client's examples from a PFLlib file: a dict with x and y under the key ``data``."""
    try:
        content = load_pickled_dict(path, "data")
    except DataError:
        raise
    except Exception as error:  # zipfile and numpy raise almost anything for a damaged file
        raise DataError(f"data.name: cannot read {path}: {summarise_error(error)}") from None
    x, y = (content.get(k) for k in "xy")
    if isinstance(y, list) and all(type(label) in (int, float) for label in y):
        y = np.array(y)
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        raise DataError(f"{path}: data must be a dict with arrays x and y")
    if x.dtype.hasobject:
        x = parse_texts(x, path)
    if x.shape[:1] != y.shape[:1] or not x.ndim:
        raise DataError(f"{path}: x {x.shape} and y {y.shape} have different lengths")
    return x, (y.astype(np.int64) if y.dtype.kind == "f" and is_whole(y) else y)


def parse_texts(x: NDArray[Any], path: Path) -> NDArray[np.int64]:
    """Return the tokens of PFLlib's texts: pairs of a padded list and its length."""
    rows = x.tolist() if x.ndim == 2 and x.shape[1] == 2 else []
    texts = [row[0] for row in rows if isinstance(row[0], list)]
    if not texts or len(texts) < len(rows) or len({len(text) for text in texts}) > 1:
        raise DataError(
            f"{path}: x is an array of Python objects, neither numbers nor pairs of a padded list of"
            " tokens and its length"
        )
    try:
        return np.array(texts, np.int64)
    except (ValueError, TypeError, OverflowError):
        raise DataError(f"{path}: x has tokens that are not whole numbers") from None


def is_whole(y: NDArray[Any]) -> bool:
    """Return True if all labels are whole numbers."""
    return bool(y.ndim == 1 and np.isfinite(y).all() and (y == np.floor(y)).all())


def read_class_count(path: Path) -> int | None:
    """Return the number of classes in ``config.json``; None if it is not given."""
    if not (path / CONFIG).exists():
        return None
    try:
        content = read_json(path / CONFIG)
    except (FolderError, StorageError) as error:
        raise DataError(str(error)) from None
    count = content.get("num_classes") if isinstance(content, dict) else None
    return count if type(count) is int and count > 0 else None


SIGNALS = "Inertial Signals"
ACTIVITIES = (
    *("walking", "walking_upstairs", "walking_downstairs"),
    *("sitting", "standing", "laying"),
)


def is_har(path: Path) -> bool:
    """Return True if a folder has the training features, labels and subjects."""
    return all((path / "train" / f"{n}_train.txt").is_file() for n in ("X", "y", "subject"))


def list_har_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the subjects; each is in the training set or in the test set, never in both."""
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
                f"{path / part}: windows, labels and subjects have different lengths: {found}"
            )
    x, y = np.concatenate(xs), np.concatenate(ys) - 1
    if y.min() < 0 or y.max() >= len(ACTIVITIES):
        raise DataError(f"{path}: labels must be 1 … {len(ACTIVITIES)}")
    source = Source(path.name, x, y, Scale(), ACTIVITIES, official=len(ys[0]))
    return name_users(source, np.concatenate(subjects), str(path))


def read_windows(path: Path, part: str) -> NDArray[np.float32]:
    """Read UCI HAR's windows of the training or test set."""
    signals = sorted((path / part / SIGNALS).glob("*.txt"))
    if not signals:
        return read_numbers(path / part / f"X_{part}.txt")
    windows = [read_numbers(p) for p in signals]
    for file, window in zip(signals, windows, strict=True):
        if window.shape != windows[0].shape:
            raise DataError(f"{file} has a different shape from {signals[0].name}")
    return np.stack(windows, axis=1)


def read_column(path: Path, part: str, name: str) -> NDArray[np.int64]:
    """Read a file of UCI HAR with one whole number per line, such as its labels."""
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
