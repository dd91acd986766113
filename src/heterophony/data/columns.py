"""The columns of a table as network input: categories become 0/1 inputs, missing numbers the median.

The medians, and the categories that become inputs, are fitted on training rows only. A trained
model applies them to new rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from math import isinf, isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import DataError

MISSING_WORDS = frozenset(["", "na", "n/a", "nan", "null", "none", "?"])
MISSING_TYPES = ("NoneType", "NAType", "NaTType")  # types of missing values in Python and pandas
MAX_CATEGORIES = 100
DATE_TYPES = (date, time, timedelta, np.datetime64, np.timedelta64)  # also those of pandas
SIGN = "[-+]?"
DECIMAL_COMMA = re.compile(rf"{SIGN}(\d+|\d{{1,3}}(\.\d{{3}})+),\d+")
THOUSANDS = re.compile(rf"{SIGN}\d{{1,3}}(,\d{{3}})+(\.\d*)?")
PERCENTAGE = re.compile(rf"{SIGN}\d+([.,]\d+)?\s*%")
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ].*)?")
CLOCK_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


@dataclass(frozen=True)
class Column:
    """A column of numbers or categories; once fitted, ``fill`` replaces missing numbers."""

    name: str
    categories: tuple[str, ...] = ()  # sorted; empty in a column of numbers
    fill: float | None = None

    @property
    def width(self) -> int:
        """The number of network inputs that the column becomes."""
        return len(self.categories) or 1


class Columns(tuple[Column, ...]):
    """The columns of a table, in order."""

    def accepts(self, rows: Any) -> bool:
        """Return True if ``rows`` are table rows, which ``encode`` must convert to network input."""
        if self and hasattr(rows, "to_frame") and not is_frame(rows):  # a Series
            raise DataError(
                "one row of a frame must stay a frame: frame.iloc[[0]], not frame.iloc[0]"
            )
        listed = isinstance(rows, list | tuple)
        named = isinstance(rows, Mapping) or is_frame(rows)
        return bool(self) and (named or (listed and all(isinstance(r, Mapping) for r in rows)))

    def encode(self, rows: Any) -> NDArray[np.float32]:
        """Encode new rows (a frame, a dict of columns, or a list of dicts) as network input."""
        given = list_columns(rows)
        for column in self:
            if column.name not in given:
                raise DataError(
                    f"the rows have no column '{column.name}'; they have: {', '.join(given)}"
                )
        counts = {column.name: len(given[column.name]) for column in self}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(f"the columns of the rows have different lengths: {found}")
        if not any(counts.values()):
            raise DataError("there are no rows")
        return np.concatenate([encode_cells(c, given[c.name]) for c in self], axis=1)


def is_missing(value: Any) -> bool:
    """Return True if a cell of a table holds no value."""
    if isinstance(value, str):
        return value.strip().casefold() in MISSING_WORDS
    return type(value).__name__ in MISSING_TYPES or (isinstance(value, float) and isnan(value))


def parse_number(value: Any) -> float | None:
    """Return the number in a cell of a table, or None if the cell is text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def describe_unread_number(text: str) -> str:
    """Explain why a cell such as ``1,5``, ``20 %`` or a date is not read as a number; empty for other cells."""
    if THOUSANDS.fullmatch(text):
        other = f" or {text.replace(',', '.')}" if text.count(",") == 1 and "." not in text else ""
        return f"has a comma; write {text.replace(',', '')}{other}"
    if DECIMAL_COMMA.fullmatch(text):
        return f"has a decimal comma; write {text.replace('.', '').replace(',', '.')}"
    if PERCENTAGE.fullmatch(text):
        return "is a percentage; convert it to a number"
    if DATE.fullmatch(text) or CLOCK_TIME.fullmatch(text):
        return "is a date or a time; convert it to a number"
    return ""


def list_text_cells(
    name: str, given: Sequence[tuple[int, Any]], where: str
) -> list[tuple[int, Any]]:
    """List the cells of a column that are not numbers; raise DataError for dates, lists and ``1,5`` or ``20 %``."""
    texts = []
    for row, cell in given:
        at = f"{where}, row {row + 1}, column '{name}'"
        if isinstance(cell, DATE_TYPES) or type(cell).__name__ == "Period":
            raise DataError(f"{at}: '{cell}' is a date or a time; convert it to a number")
        if isinstance(cell, list | tuple | set | dict | np.ndarray):
            raise DataError(
                f"{at}: a cell holds several values; give each a column of its own, or store the examples"
                " as arrays in an .npz"
            )
        if parse_number(cell) is None:
            texts.append((row, cell))
    first = {str(cell).strip(): row for row, cell in reversed(texts)}
    reasons = {text: describe_unread_number(text) for text in first}
    unread = sorted((first[text], text) for text, reason in reasons.items() if reason)
    if len(unread) > len(first) / 2:
        row, text = unread[0]
        raise DataError(f"{where}, row {row + 1}, column '{name}': '{text}' {reasons[text]}")
    return texts


def parse_column(
    name: str, cells: Sequence[Any], where: str, categorical: bool = False
) -> tuple[Column, NDArray[np.float32]]:
    """Convert a table column's cells to numbers: a category to its position, a missing value to NaN."""
    given = [(row, cell) for row, cell in enumerate(cells) if not is_missing(cell)]
    if not given:
        raise DataError(f"{where}, column '{name}': all values are missing; leave out the column")
    texts = [] if categorical else list_text_cells(name, given, where)
    values = np.full(len(cells), np.nan, np.float32)
    if not texts and not categorical:
        with np.errstate(over="ignore"):
            values[[row for row, _ in given]] = [float(cell) for _, cell in given]
        if np.isinf(values).any():
            raise DataError(f"{where}, column '{name}': a number is infinite or too large")
        return Column(name), values
    if 0 < len(texts) < len(given) / 2:
        row, cell = texts[0]
        raise DataError(
            f"{where}, row {row + 1}, column '{name}': '{cell}' is not a number, unlike most values of the column;"
            " correct it, or leave it empty"
        )
    names = tuple(sorted({str(cell).strip() for _, cell in given}))
    if len(names) > MAX_CATEGORIES:
        raise DataError(
            f"{where}, column '{name}': {len(names)} different texts are too many for categories"
            f" (at most {MAX_CATEGORIES}); leave out the column, or set data.users to it if it names"
            " clients"
        )
    positions = {text: i for i, text in enumerate(names)}
    for row, cell in given:
        values[row] = positions[str(cell).strip()]
    return Column(name, names), values


def fit_columns(columns: Columns, x: NDArray[np.float32]) -> Columns:
    """Fit a table's columns on training rows: store the medians and the categories that occur."""
    fitted = []
    for column, values in zip(columns, x.T, strict=True):
        known = values[~np.isnan(values)]
        if column.categories:
            seen = [column.categories[int(i)] for i in np.unique(known)]
            fitted.append(replace(column, categories=tuple(seen) or column.categories[:1]))
        else:
            fitted.append(replace(column, fill=float(np.median(known)) if len(known) else 0.0))
    return Columns(fitted)


def encode_columns(raw: Columns, fitted: Columns, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Encode parsed rows as network input; a category that is missing or not in ``fitted`` becomes all zeros."""
    out = np.zeros((len(x), sum(c.width for c in fitted)), np.float32)
    at = 0
    for before, column, values in zip(raw, fitted, x.T, strict=True):
        missing = np.isnan(values)
        if column.categories:
            kept = [before.categories.index(c) for c in column.categories]
            out[:, at : at + column.width] = values[:, None] == np.array(kept, np.float32)
        else:
            out[:, at] = np.where(missing, np.float32(column.fill or 0.0), values)
        at += column.width
    return out


def encode_cells(column: Column, cells: Sequence[Any]) -> NDArray[np.float32]:
    """Encode one column of new rows as network input, using the median and categories fitted in training."""
    given = [None if is_missing(cell) else cell for cell in cells]
    if column.categories:
        texts = [None if cell is None else str(cell).strip() for cell in given]
        return np.array([[t == c for c in column.categories] for t in texts], np.float32)
    numbers = [column.fill if cell is None else parse_number(cell) for cell in given]
    for row, number in enumerate(numbers, 1):
        if number is None or isinf(number):
            raise DataError(f"row {row}, column '{column.name}': must be a finite number")
    return np.array(numbers, np.float32)[:, None]


def list_columns(rows: Any) -> dict[str, list[Any]]:
    """Return each column's cells from a table: a frame, a dict of columns, or a list of dicts."""
    if isinstance(rows, list | tuple):
        if not rows:
            raise DataError("there are no rows")
        names = list(dict.fromkeys(str(k) for row in rows for k in row))
        return {name: [row.get(name) for row in rows] for name in names}
    if isinstance(rows, Mapping):
        for name, cells in rows.items():
            if isinstance(cells, str | bytes) or not hasattr(cells, "__len__"):
                raise DataError(
                    f"column '{name}' must be a list of values; for a single row, pass a list with one"
                    " dict"
                )
        return {str(k): list(v) for k, v in rows.items()}
    names = [str(name) for name in rows.columns]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"the table has {names.count(twice[0])} columns '{twice[0]}'; rename all but one"
        )
    return {str(name): list_cells(rows[name]) for name in rows.columns}


def list_cells(column: Any) -> list[Any]:
    """Return the cells of a pandas or polars column as plain Python values."""
    cells: list[Any] = column.tolist() if hasattr(column, "tolist") else column.to_list()
    return cells


def is_frame(data: object) -> bool:
    """Return True if an object is a pandas or polars data frame."""
    return all(hasattr(data, k) for k in ("columns", "shape", "__getitem__", "dtypes"))
