"""Read numbers for each client from a CSV or JSON file."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.files import JSON_LIMIT, read_regular_file

RowsByClient = dict[str, list[tuple[float, ...]]]


def read_per_client_file(file: str, columns: Sequence[str]) -> RowsByClient:
    """Read each client's rows of numbers, in the order of ``columns``; an empty value is infinity.

    CSV: a column ``client`` beside the others. JSON: an object with, for each client, a row or
    a list of rows, each an array or an object.
    """
    text = read_file_bytes(file).decode(errors="replace")
    try:
        content = (
            json.loads(text) if file.endswith(".json") else group_csv_by_client(file, text, columns)
        )
    except (ValueError, RecursionError):
        raise DataError(f"{file} is not JSON") from None
    except csv.Error as error:
        raise DataError(f"{file} is not CSV: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: must be an object with an entry for each client")
    return {
        str(c): [parse_row(file, c, r, columns) for r in list_rows(value)]
        for c, value in content.items()
    }


def hash_file(file: str) -> str:
    """Compute the SHA-256 of a file."""
    return hashlib.sha256(read_file_bytes(file)).hexdigest()


def read_file_bytes(file: str) -> bytes:
    try:
        return read_regular_file(Path(file), JSON_LIMIT)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def group_csv_by_client(
    file: str, text: str, columns: Sequence[str]
) -> dict[str, list[Mapping[str, Any]]]:
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    missing = [c for c in ("client", *columns) if c not in (lines.fieldnames or ())]
    if missing:
        raise DataError(f"{file}: its first line does not have the column '{missing[0]}'")
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        rows.setdefault(str(line["client"]), []).append(line)
    return rows


def list_rows(value: Any) -> Iterable[Any]:
    """List the rows of a client; its value may be a list of rows or a single row."""
    if isinstance(value, list) and all(isinstance(v, list | dict) for v in value):
        return value
    return [value]


def parse_row(file: str, client: str, given: Any, columns: Sequence[str]) -> tuple[float, ...]:
    problem = f"{file}: client {client} needs rows of {', '.join(columns)}, numbers of at least 0"
    try:
        values = [given[c] for c in columns] if isinstance(given, dict) else given
        if isinstance(values, str):  # iterating over it would give its characters
            raise TypeError
        numbers = tuple(inf if v in (None, "") else float(v) for v in values)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise DataError(problem) from None
    if len(numbers) != len(columns) or not all(v >= 0 for v in numbers):
        raise DataError(problem)
    return numbers
