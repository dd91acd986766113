"""Tables of users: a ``.csv`` with a column ``label``, if wanted one that names clients, and numbers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError
from ...core.files import read_regular_file
from ...core.scores import TaskName
from ..source import CLIENT, Source, decide_classes, name_users, number_clients
from .arrays import wrap_arrays

LABEL = "label"  # the column to be predicted
BYTES_LIMIT = 1 << 31
DELIMITERS = {".csv": (",", ";"), ".tsv": ("\t",)}


def is_table(path: Path) -> bool:
    """Return True if a path has the name of a table."""
    return path.suffix.lower() in DELIMITERS


def read_table(
    path: Path,
    classes: int | Sequence[str] | None = None,
    task: TaskName = "classification",
    users: str | None = None,
) -> Source:
    """Read a table: each row is an example, and a row of its own names the columns.

    ``users`` is the column that names clients; by default ``client``, if there is one.
    """
    if task not in ("classification", "regression"):
        raise ConfigError(f"data.task: {path} has one label per row; store {task} data as .npz")
    header, rows = split_rows(path)
    label = find_column(path, header, LABEL)
    if label is None:
        raise DataError(
            f"{path} has no column '{LABEL}'; rename the one to be predicted. It has:"
            f" {', '.join(header)}"
        )
    client = find_client_column(path, header, users)
    columns = [i for i in range(len(header)) if i not in (label, client)]
    if not columns:
        raise DataError(
            f"{path} has no column to learn from beside '{LABEL}' and '{users or CLIENT}'"
        )
    x = parse_numbers(path, header, rows, columns)
    texts = [row[label].strip() for row in rows]
    source = label_rows(path, x, texts, classes, task)
    if client is None:
        return source
    return name_users(source, [row[client].strip() for row in rows], str(path))


def label_rows(
    path: Path,
    x: NDArray[np.float32],
    texts: Sequence[str],
    classes: int | Sequence[str] | None,
    task: TaskName,
) -> Source:
    """Make a source of numbers and of labels, which are numbers or the names of classes."""
    if task == "regression":
        y = parse_numbers(path, [LABEL], [[t] for t in texts], [0])
        return decide_classes(wrap_arrays(x, y, path.stem, task=task, path=path), classes)
    if all(t.removeprefix("-").isdecimal() for t in texts):
        y = np.array([int(t) for t in texts])
        return decide_classes(wrap_arrays(x, y, path.stem, path=path), classes)
    if isinstance(classes, int):
        raise ConfigError(
            f"data.classes: the labels of {path} are names; list them, or leave it out"
        )
    names = list(classes or sorted(set(texts)))
    for number, text in enumerate(texts, 1):
        if text not in names:
            raise DataError(
                f"{path}, row {number}: label '{text}' is not in data.classes: {', '.join(names)}"
            )
    y = np.array([names.index(t) for t in texts])
    return decide_classes(wrap_arrays(x, y, path.stem, path=path), names)


def read_clients_of_table(path: Path, users: str | None = None) -> tuple[str, ...]:
    """Return the names of the clients in a table; none if it has no such column."""
    header, rows = split_rows(path)
    column = find_client_column(path, header, users)
    if column is None:
        return ()
    return number_clients([row[column].strip() for row in rows], str(path))[1]


def split_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the cells of each row; refuse rows of another length."""
    try:
        text = read_regular_file(path, BYTES_LIMIT).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"data.name: cannot read {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise DataError(f"data.name: cannot read {path}: {reason}") from None
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS[path.suffix.lower()], key=first.count)
    try:
        lines = [row for row in csv.reader(text.splitlines(), delimiter=delimiter) if row]
    except csv.Error as error:
        raise DataError(f"data.name: cannot read {path}: {error}") from None
    if len(lines) < 2:
        raise DataError(f"{path} has no row below the names of its columns")
    header = [name.strip() for name in lines[0]]
    for number, row in enumerate(lines[1:], 1):
        if len(row) != len(header):
            raise DataError(f"{path}, row {number}: {len(row)} values for {len(header)} columns")
    return header, lines[1:]


def find_client_column(path: Path, header: Sequence[str], users: str | None) -> int | None:
    """Return the position of the column that names clients; None if there is none."""
    column = find_column(path, header, (users or CLIENT).casefold())
    if column is None and users is not None:
        raise DataError(f"data.users: {path} has no column '{users}'; it has: {', '.join(header)}")
    return column


def find_column(path: Path, header: Sequence[str], name: str) -> int | None:
    """Return the position of a column, however it is capitalised; None if it is not there."""
    found = [i for i, title in enumerate(header) if title.casefold() == name]
    if len(found) > 1:
        raise DataError(f"{path} has {len(found)} columns '{name}'; rename all but one")
    return found[0] if found else None


def parse_numbers(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]
) -> NDArray[np.float32]:
    """Convert columns to numbers; name the first value that is none."""
    try:
        return np.array([[float(row[i]) for i in columns] for row in rows], dtype=np.float32)
    except ValueError:
        pass
    for number, row in enumerate(rows, 1):
        for i in columns:
            if not is_number(row[i]):
                what = "fill it in, or leave out the row"
                if row[i].strip():
                    named = CLIENT in (title.casefold() for title in header)
                    what = "leave out the column" + (
                        ""
                        if named
                        else f", or call it '{CLIENT}' (or set data.users) if it names clients"
                    )
                raise DataError(
                    f"{path}, row {number}, column '{header[i]}': '{row[i]}' is not a number; {what}"
                )
    raise DataError(f"{path}: its numbers are too large")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
