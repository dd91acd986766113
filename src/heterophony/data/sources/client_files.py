"""Read files that are already divided among clients: PFLlib folders and UCI HAR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError, FolderError, StorageError
from ...core.files import (
    DATA_LIMIT,
    check_expansion,
    read_json,
    read_regular_file,
    sort_names,
)
from ...core.samples import Scale
from ..source import (
    Source,
    decide_classes,
    name_own_clients,
    name_users,
    number_clients,
    parse_targets,
)
from .arrays import NamedClients, Request, wrap_arrays
from .reading import list_files, load_pickled_dict, summarise_error

PARTS = ("train", "test")
CONFIG = "config.json"
TOKEN_BYTES = 8
Examples = NDArray[Any]


def is_pfllib(path: Path) -> bool:
    """Return True if a folder has ``.npz`` files in train and test."""
    return all(list_files(path / part, ".npz") for part in PARTS)


def name_pfllib_clients(path: Path) -> dict[str, str]:
    """Map each client of a PFLlib folder, in natural order, to the name of its files in train and test.

    Clients are named by ``client_names`` in ``config.json``, or else by their files.
    """
    train, test = ({p.stem for p in list_files(path / part, ".npz")} for part in PARTS)
    stems = sort_names(train & test)
    names = read_config(path).get("client_names")
    numbered = stems == [str(i) for i in range(len(stems))]
    if isinstance(names, list) and len(names) == len(stems) and numbered:
        return name_own_clients(zip(names, stems, strict=True))
    return {stem: stem for stem in stems}


def list_pfllib_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the clients of a PFLlib folder: those with a file in both train and test."""
    return NamedClients(tuple(name_pfllib_clients(path)), has_split=True)


def read_pfllib(path: Path, request: Request) -> Source:
    """Read a PFLlib folder: the training examples of all clients, then their test examples."""
    clients = name_pfllib_clients(path)
    for part in PARTS:
        for file in list_files(path / part, ".npz"):
            if file.stem not in clients.values():
                other = PARTS[1 - PARTS.index(part)]
                raise DataError(f"{path}: client '{file.stem}' has no file in {other}")
    config = read_classes(path)
    parts = []
    for part in PARTS:
        for user, stem in enumerate(clients.values()):
            x, y = read_client_file(file := path / part / f"{stem}.npz")
            check_client_examples(file, x, y, request, config)
            parts.append((user, x, y))
    first = next((x for _, x, y in parts if len(y)), parts[0][1])
    for user, x, y in parts:
        if len(y) and (x.shape[1:] != first.shape[1:] or x.dtype.kind != first.dtype.kind):
            raise DataError(
                f"{path}: client '{list(clients)[user]}' has examples {x.dtype} {x.shape[1:]}, others"
                f" have {first.dtype} {first.shape[1:]}"
            )
    full = [(user, x, y) for user, x, y in parts if len(y)] or parts
    x, y = (np.concatenate([p[i] for p in full]) for i in (1, 2))
    classes = config if request.task == "classification" else None
    source = wrap_arrays(x, y, path.name, shape=first.shape[1:], task=request.task, path=path)
    return replace(
        decide_classes(source, request.classes or classes),
        official=sum(len(y) for _, _, y in parts[: len(clients)]),
        users=np.concatenate([np.full(len(y), user, np.int64) for user, _, y in full]),
        user_names=tuple(clients),
    )


def check_client_examples(
    file: Path, x: Examples, y: Examples, request: Request, classes: int | list[str] | None
) -> None:
    """Raise DataError if a client's PFLlib file has NaN, infinity, or labels outside the classes."""
    if not len(y):
        return
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x.reshape(len(x), -1)).all(1)))
        raise DataError(f"{file}: example {row} holds NaN or infinity; leave it out or replace it")
    labels, _ = parse_targets(y, request.task, str(file))
    if request.task != "classification" or request.classes is not None or classes is None:
        return
    count = classes if isinstance(classes, int) else len(classes)
    if (largest := int(labels.max())) >= count:
        raise DataError(
            f"{file}: example {int(labels.argmax())} has label {largest}, but {file.parents[1] / CONFIG}"
            f" says num_classes {count}; correct one of them, or set data.classes"
        )


def read_client_file(path: Path) -> tuple[Examples, Examples]:
    """Read one client's examples from a PFLlib file: a dict with x and y under the key ``data``."""
    try:
        content = load_pickled_dict(path, "data")
    except DataError:
        raise
    except Exception as error:  # zipfile and numpy can raise almost any error for a damaged file
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
    """Return the tokens of PFLlib's texts, each a pair of a padded list and its length."""
    rows = x.tolist() if x.ndim == 2 and x.shape[1] == 2 else []
    texts = [row[0] for row in rows if isinstance(row[0], list)]
    if not texts or len(texts) < len(rows) or len({len(text) for text in texts}) > 1:
        raise DataError(
            f"{path}: x is an array of Python objects, neither numbers nor pairs of a padded list of"
            " tokens and its length"
        )
    try:  # a few bytes can repeat a list, or lists inside it, many times
        check_expansion(path.stat().st_size, TOKEN_BYTES * sum(map(len, texts)))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if not all(type(token) is int for text in texts for token in text):
        raise DataError(f"{path}: x has tokens that are not whole numbers")
    try:
        return np.array(texts, np.int64)
    except OverflowError:
        raise DataError(f"{path}: x has tokens of more than 64 bits") from None


def is_whole(y: NDArray[Any]) -> bool:
    """Return True if all labels of a PFLlib file are whole numbers."""
    return bool(y.ndim == 1 and np.isfinite(y).all() and (y == np.floor(y)).all())


def read_config(path: Path) -> dict[str, Any]:
    """Read the ``config.json`` of a PFLlib folder; empty if there is none."""
    if not (path / CONFIG).exists():
        return {}
    try:
        content = read_json(path / CONFIG)
    except (FolderError, StorageError) as error:
        raise DataError(str(error)) from None
    return content if isinstance(content, dict) else {}


def read_classes(path: Path) -> int | list[str] | None:
    """Return the class names or the class count from a PFLlib ``config.json``; None if it has neither."""
    content = read_config(path)
    count, names = content.get("num_classes"), content.get("class_names")
    if type(count) is not int or count < 1:
        return None
    return names if isinstance(names, list) and len(names) == count else count


SIGNALS = "Inertial Signals"
ACTIVITIES = (
    *("walking", "walking_upstairs", "walking_downstairs"),
    *("sitting", "standing", "laying"),
)


def is_har(path: Path) -> bool:
    """Return True if a folder holds UCI HAR: training features, labels and subjects."""
    return all((path / "train" / f"{n}_train.txt").is_file() for n in ("X", "y", "subject"))


def list_har_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the clients of UCI HAR: its subjects, each either in the training or in the test set."""
    subjects = np.concatenate([read_column(path, part, "subject") for part in PARTS])
    return NamedClients(number_clients(subjects.tolist(), str(path))[1])


def read_har(path: Path, request: Request) -> Source:
    """Read UCI HAR: windows of 9 signals × 128 steps if the folder has them, otherwise 561 features."""
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
    """Read the windows of UCI HAR's training or test set."""
    signals = list_files(path / part / SIGNALS, ".txt")
    if not signals:
        return read_numbers(path / part / f"X_{part}.txt")
    windows = [read_numbers(p) for p in signals]
    for file, window in zip(signals, windows, strict=True):
        if window.shape != windows[0].shape:
            raise DataError(f"{file} has a different shape from {signals[0].name}")
    return np.stack(windows, axis=1)


def read_column(path: Path, part: str, name: str) -> NDArray[np.int64]:
    """Read a UCI HAR file with one whole number per line, such as the labels."""
    file = path / part / f"{name}_{part}.txt"
    numbers = read_numbers(file)
    if numbers.shape[1] != 1 or (numbers != np.floor(numbers)).any():
        raise DataError(f"{file} must have one whole number per line")
    return numbers[:, 0].astype(np.int64)


def read_numbers(path: Path) -> NDArray[np.float32]:
    """Read a text file of numbers separated by spaces, one row per line."""
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
