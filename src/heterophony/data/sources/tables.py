"""Read users' tables, from a ``.csv`` or a frame: a column ``label``, inputs, and possibly client names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError
from ...core.files import read_regular_file, sort_names
from ..columns import (
    MAX_CATEGORIES,
    Columns,
    is_frame,
    is_missing,
    list_cells,
    list_columns,
    parse_column,
    parse_number,
)
from ..source import (
    CLIENT,
    Source,
    check_labels_given,
    decide_classes,
    name_own_clients,
    name_users,
    number_clients,
    number_text_labels,
)
from .arrays import NamedClients, Request, wrap_arrays
from .texts import encode_texts

LABEL = "label"  # the column to be predicted
TEXT_NAMES = ("text", "sentence")  # names of a column that is read as text
BYTES_LIMIT = 1 << 31
MAX_DIGITS = 18  # length of the longest label, far more than any class number needs
NUMBER = re.compile(r"(-?\d+)(?:\.(\d*))?")  # a label: whole part and fraction
INDEX_NAME = re.compile(r"|Unnamed: \d+")  # name of an index that pandas has stored as a column
DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}


@dataclass(frozen=True)
class Table:
    """Named columns of cells, from a file or a frame."""

    name: str
    where: str  # shown in messages
    columns: Mapping[str, Sequence[Any]]
    categorical: frozenset[str] = field(default_factory=frozenset)  # even if cells are numbers


class JoinedFrame:
    """A table made of a training and a test frame; separate labels become the column ``label``."""

    def __init__(self, *parts: tuple[Any, Any]) -> None:
        self._cells: dict[str, list[Any]] = {}
        counts: list[int] = []
        for frame, labels in parts:
            own = {**list_named_index(frame), **list_columns(frame)}
            if labels is not None:
                own = add_labels(own, list_labels(labels))
            counts.append(max(map(len, own.values()), default=0))
            if self._cells and own.keys() != self._cells.keys():
                raise DataError("training and test examples have different columns")
            for name, cells in own.items():
                self._cells.setdefault(name, []).extend(cells)
        chosen = frozenset[str]().union(*(list_categorical(frame) for frame, _ in parts))
        self.columns, self.shape = list(self._cells), (sum(counts), len(self._cells))
        self.dtypes = ["category" if name in chosen else "" for name in self.columns]
        self.official = counts[0] if len(counts) == 2 else None  # rows to train on, first

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.array(self._cells[name], object)


def add_labels(columns: dict[str, list[Any]], labels: list[Any]) -> dict[str, list[Any]]:
    """Add separate labels to a frame's columns; raise DataError if the counts of labels and rows differ."""
    rows = max(map(len, columns.values()), default=len(labels))
    if LABEL in columns:
        raise DataError(
            f"the table has a column '{LABEL}' in addition to the labels; drop the column"
        )
    if len(labels) != rows:
        raise DataError(f"the table has {rows} examples but {len(labels)} labels")
    return {**columns, LABEL: labels}


def list_labels(labels: Any) -> list[Any]:
    """Return labels as plain values, from a series, an array, a tensor, or a one-column frame."""
    if is_frame(labels) and len(labels.columns) == 1:
        return list(*list_columns(labels).values())
    return list_cells(labels) if hasattr(labels, "dtype") else list(labels)


def join_labels(data: Any) -> Any:
    """Join a frame and its labels into one table, client by client; return other data unchanged."""
    if is_labelled(data):
        return JoinedFrame(*zip(data[::2], data[1::2], strict=True))
    if type(data) is dict and data and all(map(is_labelled, data.values())):
        return {client: join_labels(own) for client, own in data.items()}
    if type(data) is list and data and all(map(is_labelled, data)):
        return [join_labels(own) for own in data]
    return data


def is_labelled(data: object) -> bool:
    """Return True if data are a frame and its labels, optionally followed by a test frame and its labels."""
    return isinstance(data, tuple) and len(data) in (2, 4) and all(map(is_frame, data[::2]))


def is_table(path: Path) -> bool:
    """Return True if a path has the suffix of a table: .csv or .tsv."""
    return path.suffix.lower() in DELIMITERS


def read_table(path: Path, request: Request) -> Source:
    """Read a table: each row is an example, and the first row names the columns."""
    return read_columns(load_table(path), request)


def read_frame(
    frame: Any, request: Request, name: str = "table", where: str = "the table"
) -> Source:
    """Make a source from a pandas or polars data frame."""
    columns = {**list_named_index(frame, request.users), **list_columns(frame)}
    source = read_columns(Table(name, where, columns, list_categorical(frame)), request)
    return replace(source, official=getattr(frame, "official", None))


def list_named_index(frame: Any, users: str | None = None) -> dict[str, list[Any]]:
    """Return the level of a frame's index that names the clients, as a column; empty if there is none."""
    index, name = getattr(frame, "index", None), (users or CLIENT).casefold()
    levels = [n for n in getattr(index, "names", ()) if isinstance(n, str) and n.casefold() == name]
    return {level: list_cells(frame.index.get_level_values(level)) for level in levels}


def list_categorical(frame: Any) -> frozenset[str]:
    """List a frame's columns of categorical type; a dict of columns has none."""
    if isinstance(frame, Mapping):
        return frozenset()
    dtypes = frame.dtypes
    kinds = dtypes if isinstance(dtypes, list) else [str(d) for d in dtypes]
    pairs = zip(frame.columns, kinds, strict=True)
    return frozenset(str(n) for n, kind in pairs if str(kind).casefold().startswith("categor"))


def read_frames(
    frames: Mapping[str, Any], request: Request, name: str = "table", where: str = "the table"
) -> Source:
    """Make a source from one table per client, all with the same columns."""
    columns = {client: list_columns(frame) for client, frame in frames.items()}
    first, names = next((client, list(own)) for client, own in columns.items())
    for client, own in columns.items():
        if set(own) != set(names):
            raise DataError(
                f"client {client} has the columns {', '.join(own)}; client {first} has"
                f" {', '.join(names)}"
            )
    counts = {client: len(own[names[0]]) for client, own in columns.items()}
    trained = {c: getattr(f, "official", None) or counts[c] for c, f in frames.items()}
    if 0 < sum(trained[c] < counts[c] for c in frames) < len(frames):
        raise DataError(
            "some clients have test examples, others have none; give them to all clients or to none"
        )
    spans = [(c, slice(trained[c])) for c in frames]  # training rows of all clients come first
    spans += [(c, slice(trained[c], None)) for c in frames]
    joined = {n: [cell for c, rows in spans for cell in columns[c][n][rows]] for n in names}
    if request.users is None:  # the keys name the clients
        joined.pop(find_column(Table(name, where, joined), CLIENT) or "", None)
    chosen = frozenset[str]().union(*map(list_categorical, frames.values()))
    source = read_columns(Table(name, where, joined, chosen), request)
    if trained != counts:
        source = replace(source, official=sum(trained.values()))
    if request.users is not None:
        return source
    owners = [c for c, rows in spans for _ in range(*rows.indices(counts[c]))]
    return name_users(source, owners, "clients")


def read_columns(table: Table, request: Request) -> Source:
    """Make a source from a table; the column ``request.users``, by default ``client``, names the clients."""
    if request.task not in ("classification", "regression"):
        raise ConfigError(
            f"data.task: {table.where} has one label per row; store {request.task} data as .npz"
        )
    if not any(map(len, table.columns.values())):
        raise DataError(f"{table.where} has no rows")
    label = find_column(table, LABEL)
    if label is None:
        raise DataError(
            f"{table.where} has no column '{LABEL}'; rename the column to be predicted. It has:"
            f" {', '.join(table.columns)}"
        )
    client = find_client_column(table, request.users)
    names = [name for name in table.columns if name not in (label, client)]
    for name in names:
        if INDEX_NAME.fullmatch(name):
            raise DataError(
                f"{table.where}: column {list(table.columns).index(name) + 1} has no name; if it is the"
                " index of a frame, store the table without it (to_csv(…, index=False))"
            )
    if (text := find_text_column(table, names)) is not None:
        source = read_text_column(table, text, label, request)
        cells = None if client is None else table.columns[client]
        return source if cells is None else name_users(source, map(strip_text, cells), table.where)
    if request.tokenizer is not None:
        raise DataError(
            f"data.tokenizer: {table.where} has no text, that is, no column '{TEXT_NAMES[0]}' with"
            f" more than {MAX_CATEGORIES} different values"
        )
    if not names:
        raise DataError(
            f"{table.where} has no column to learn from besides '{LABEL}' and"
            f" '{request.users or CLIENT}'"
        )
    parsed = [parse_column(n, table.columns[n], table.where, n in table.categorical) for n in names]
    x = np.stack([values for _, values in parsed], axis=1)
    source = label_rows(table, np.nan_to_num(x), table.columns[label], request)
    source = replace(source, x=x, columns=Columns(column for column, _ in parsed))
    if client is None:
        return source
    return name_users(source, map(strip_text, table.columns[client]), table.where)


def find_text_column(table: Table, names: Sequence[str]) -> str | None:
    """Return the column with the texts to train on, ``text`` or ``sentence``; None if there is none.

    Next to other columns, a column with few different texts holds categories.
    """
    found = [name for name in names if name.casefold() in TEXT_NAMES]
    if not found or found[0] in table.categorical:
        return None
    cells = [cell for cell in table.columns[found[0]] if not is_missing(cell)]
    if not cells or all(parse_number(cell) is not None for cell in cells):
        return None
    if len(names) > 1 and len({str(cell) for cell in cells}) <= MAX_CATEGORIES:
        return None
    return found[0]


def read_text_column(table: Table, column: str, label: str, request: Request) -> Source:
    """Make a source from a table's column of texts, as tokens; other columns are left out."""
    texts = ["" if is_missing(cell) else str(cell) for cell in table.columns[column]]
    x, record = encode_texts(texts, request.tokenizer)
    source = label_rows(table, x, table.columns[label], request)
    return source if record is None else replace(source, x=x, record=record)


def label_rows(table: Table, x: Any, labels: Sequence[Any], request: Request) -> Source:
    """Make a source from a table's inputs and its labels, which are numbers or class names."""
    check_labels_given(labels, table.where)
    classes, path = request.classes, Path(table.where)
    if request.task == "regression":
        numbers = [parse_number(label) for label in labels]
        for row, number in enumerate(numbers, 1):
            if number is None:
                raise DataError(
                    f"{table.where}, row {row}, column '{LABEL}': '{labels[row - 1]}' is not a number"
                )
        targets = np.array(numbers, np.float32)
        return decide_classes(
            wrap_arrays(x, targets, table.name, task="regression", path=path), classes
        )
    texts = [str(label).strip() for label in labels]
    if (whole := parse_whole_labels(table, texts, classes)) is not None:
        source = decide_classes(wrap_arrays(x, np.array(whole), table.name, path=path), classes)
    else:
        y, names = number_text_labels(texts, classes, table.where)
        source = decide_classes(wrap_arrays(x, y, table.name, path=path), names)
    if classes is None and len(source.labels) == 1:
        raise DataError(
            f"{table.where}: all rows have the label '{texts[0]}'; there must be two classes (list them in"
            " data.classes if only one occurs here)"
        )
    return source


def parse_whole_labels(
    table: Table, texts: Sequence[str], classes: int | Sequence[str] | None
) -> list[int] | None:
    """Parse a table's labels as whole numbers, written as 1 or 1.0; None if they are names of classes."""
    found = [match for text in texts if (match := NUMBER.fullmatch(text))]
    as_names = isinstance(classes, Sequence) and set(texts) <= set(classes)
    if len(found) < len(texts) or (as_names and any("." in text for text in texts)):
        return None
    numbers = [match[1] for match in found]
    for row, match in enumerate(found, 1):
        if (match[2] or "").strip("0"):
            raise DataError(
                f"{table.where}, row {row}, column '{LABEL}': '{match[0]}' is not a whole number; for"
                " numbers set task='regression' (data.task), for names list them in data.classes"
            )
    for row, number in enumerate(numbers, 1):
        if len(number) > MAX_DIGITS:
            raise DataError(
                f"{table.where}, row {row}, column '{LABEL}': a number of {len(number)} digits is"
                " too large; number the labels 0, 1, …"
            )
    return [int(number) for number in numbers]


def list_clients_of_file(path: Path, users: str | None = None) -> tuple[str, ...]:
    """Return the names of the clients in a .csv or .tsv; empty if no column names them."""
    return list_clients_of_columns(load_table(path), users)


def list_clients_of_columns(table: Table, users: str | None) -> tuple[str, ...]:
    """Return the names of the clients in a table; empty if no column names them."""
    column = find_client_column(table, users)
    if column is None:
        return ()
    return number_clients(map(strip_text, table.columns[column]), table.where)[1]


def list_tables(folder: Path) -> list[Path]:
    """List the tables in a folder; return none if there are fewer than two."""
    found = [p for p in folder.iterdir() if is_table(p)] if folder.is_dir() else []
    found = [p for p in found if p.is_file() and not p.name.startswith(".")]
    return found if len(found) > 1 else []


def load_tables(folder: Path) -> dict[str, Mapping[str, Sequence[Any]]]:
    """Load the columns of every table in a folder, by file name, in natural order."""
    return name_own_clients((path.stem, load_table(path).columns) for path in list_tables(folder))


def read_folder_of_tables(folder: Path, request: Request) -> Source:
    """Read a folder with one table per client, named after the client; tables train and test are a split."""
    tables, where = load_tables(folder), f"{folder} (its tables joined)"
    if tables.keys() == {"train", "test"}:
        joined = JoinedFrame((tables["train"], None), (tables["test"], None))
        return read_frame(joined, request, folder.name, where)
    return read_frames(tables, request, folder.name, where)


def list_clients_of_folder(folder: Path, users: str | None) -> NamedClients:
    """Return the clients of a folder with one table per client, or those that a column names."""
    tables = load_tables(folder)
    if users is None and tables.keys() != {"train", "test"}:
        return NamedClients(tuple(tables))
    held = [
        list_clients_of_columns(Table(stem, str(folder / stem), columns), users)
        for stem, columns in tables.items()
    ]
    has_split = tables.keys() == {"train", "test"} and held[0] == held[1]
    return NamedClients(tuple(sort_names(set().union(*held))), has_split)


def strip_text(value: Any) -> Any:
    """Strip spaces around a cell's text; numbers are unchanged."""
    return value.strip() if isinstance(value, str) else value


def load_table(path: Path) -> Table:
    """Load a .csv or .tsv; raise DataError for rows of different lengths or columns with equal names."""
    text = read_table_text(path)
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS[path.suffix.lower()], key=first.count)
    try:
        # a cell in quotes may hold line breaks
        lines = [r for r in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if r]
    except csv.Error as error:
        raise DataError(f"data.name: cannot read {path}: {error}") from None
    if len(lines) < 2:
        raise DataError(f"{path} has no row below the names of its columns")
    header = [name.strip() for name in lines[0]]
    for number, row in enumerate(lines[1:], 1):
        if len(row) != len(header):
            raise DataError(f"{path}, row {number}: {len(row)} values for {len(header)} columns")
    for name in header:
        if header.count(name) > 1:
            raise DataError(f"{path} has {header.count(name)} columns '{name}'; rename all but one")
    columns = {name: [row[i] for row in lines[1:]] for i, name in enumerate(header)}
    return Table(path.stem, str(path), columns)


def read_table_text(path: Path) -> str:
    """Read the text of a table, which must be UTF-8."""
    try:
        blob = read_regular_file(path, BYTES_LIMIT)
        text = blob.decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"data.name: cannot read {path}: no such file") from None
    except OSError as error:
        raise DataError(f"data.name: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        code = "utf-16" if blob[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        raise DataError(
            f"data.name: cannot read {path}: it is not text in UTF-8; save it as UTF-8 (iconv -f {code}"
            f" -t utf-8 {path.name})"
        ) from None
    if "\0" in text:
        raise DataError(f"data.name: cannot read {path}: it holds a zero byte, so it is damaged")
    return text


def find_client_column(table: Table, users: str | None) -> str | None:
    """Return the name of the table's column that names clients; None if there is none."""
    column = find_column(table, (users or CLIENT).casefold())
    if column is None and users is not None:
        raise DataError(
            f"data.users: {table.where} has no column '{users}'; it has: {', '.join(table.columns)}"
        )
    return column


def find_column(table: Table, name: str) -> str | None:
    """Return the title of a table's column, ignoring case; None if it does not exist."""
    found = [title for title in table.columns if title.casefold() == name]
    if len(found) > 1:
        raise DataError(f"{table.where} has {len(found)} columns '{name}'; rename all but one")
    return found[0] if found else None
