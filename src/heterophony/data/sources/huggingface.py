"""Read Hugging Face data sets (by name, from files, or already loaded) and partitions of flwr-datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.records import Record
from ..columns import MAX_CATEGORIES
from ..source import (
    CLIENT,
    Source,
    check_labels_given,
    decide_classes,
    name_users,
    number_clients,
)
from .arrays import NO_CLIENTS, NamedClients, Request, wrap_arrays
from .folder import check_image
from .leaf import build_source, parse_windows, split_in_order
from .reading import summarise_error
from .tables import LABEL, TEXT_NAMES, Table, read_columns
from .texts import encode_texts

HF_PREFIX = "hf:"
TEST_SPLITS = ("test", "valid", "validation")
SHAKESPEARE_COLUMNS = {"character_id", "x", "y"}
LABEL_NAMES = (LABEL, "labels", "target", "y", "class")
LIST_FEATURES = (
    "List",
    "LargeList",
    "Sequence",
    "Array2D",
    "Array3D",
    "Array4D",
    "Array5D",
    "list",
)
NO_LABEL = -1  # in test splits whose labels were not published
NUMBER_TYPES = ("int", "uint", "float", "double", "bool", "decimal")
TEXT_TYPES = ("string", "large_string")
EACH_TEXT = (
    "a text must be in one column, called 'text', or be tokens, as a column of lists of numbers"
)

Features = Mapping[str, Any]


def read_huggingface(name: str, request: Request, classes: int | None = None) -> Source:
    """Read a data set of the Hugging Face hub; ``classes`` selects one of several columns of labels."""
    return read_splits(name, load_splits(name), request, classes)


def is_datasets_object(data: object) -> bool:
    """Return True if an object is a ``Dataset`` or ``DatasetDict`` of the ``datasets`` package."""
    if type(data) is dict and "train" not in data:  # by client
        return False
    first = next(iter(data.values()), None) if isinstance(data, Mapping) else data
    return isinstance(getattr(first, "features", None), Mapping) and hasattr(first, "__len__")


def get_splits(data: Any) -> Mapping[str, Any]:
    """Return the splits of a ``DatasetDict``; a ``Dataset`` counts as a training split."""
    return data if isinstance(data, Mapping) else {"train": data}


def read_splits(
    name: str, splits: Mapping[str, Any], request: Request, classes: int | None = None
) -> Source:
    """Read the splits of a Hugging Face data set, training before test."""
    parts = list_train_and_test_splits(name, splits)
    features = parts[0].features
    if features.keys() >= SHAKESPEARE_COLUMNS and request.users in (None, "character_id"):
        return read_shakespeare_rows(name, parts[0])
    if not sum(map(len, parts)):
        raise DataError(f"{name}: there are no examples")
    clients = find_client_column(name, features, request.users)
    others = {k: feature for k, feature in features.items() if k != clients}
    label = find_label_column(name, others, classes)
    inputs = {k: feature for k, feature in others.items() if k != label}
    source, columns = read_inputs(name, parts, inputs, label, request)
    used = {"train", *find_test_split(splits)}
    source = replace(
        source,
        official=len(parts[0]) if len(parts) > 1 else None,
        remark=describe_unused(name, columns, [k for k in splits if k not in used]),
    )
    return source if clients is None else name_users(source, list_labels(parts, clients), name)


def read_inputs(
    name: str, parts: Sequence[Any], inputs: Features, label: str, request: Request
) -> tuple[Source, list[str]]:
    """Read a data set's images if it has any, else arrays of numbers, else a text, else columns as a table.

    Return the source, and the names of the columns that are not read.
    """
    kinds = {k: type(feature).__name__ for k, feature in inputs.items()}
    images = [k for k, kind in kinds.items() if kind == "Image"]
    arrays = [k for k, kind in kinds.items() if kind in LIST_FEATURES]
    columns = [k for k, feature in inputs.items() if is_number_column(feature)]
    text = None if images or arrays else find_text_column(parts, inputs, alone=not columns)
    if not images and not arrays and not columns and text is None:
        raise DataError(
            f"{name} has no column of type Image and none of numbers; it has: {', '.join([*inputs, label])};"
            f" {EACH_TEXT}"
        )
    if not images and not arrays and text is None:
        listed = {k: collect_column(parts, k) for k in inputs}
        labels = list_labels(parts, label) if request.classes else list_stored_labels(parts, label)
        names = request.classes or getattr(parts[0].features[label], "names", None)
        own = replace(request, classes=names, users=None)
        return read_columns(Table(name, name, {**listed, LABEL: labels}), own), []
    record: Record | None = None
    x: NDArray[Any]
    if text is None and request.tokenizer is not None:
        raise DataError(f"data.tokenizer: {name} has no text; {EACH_TEXT}")
    if text is not None:
        texts = [value or "" for value in collect_column(parts, text)]
        x, record = encode_texts(texts, request.tokenizer)
    else:
        x = stack_images(name, parts, images[0]) if images else stack_lists(name, parts, arrays[0])
    names = getattr(parts[0].features[label], "names", None)
    values = list_stored_labels(parts, label)
    check_labels_given(values, name)
    source = wrap_arrays(x, np.array(values), name, task=request.task)
    source = source if record is None else replace(source, x=x, record=record)
    unused = [k for k in inputs if k != (text or [*images, *arrays][0])]
    if names is None:
        return decide_classes(source, request.classes), unused
    return replace(source, labels=tuple(map(str, names))), unused


def describe_unused(name: str, columns: Sequence[str], splits: Sequence[str]) -> str:
    """Return a note on the columns and splits that are not read; empty if all are read."""
    found = [
        f"the {word}{'s' * (len(names) > 1)} {', '.join(names)}"
        for word, names in (("column", columns), ("split", splits))
        if names
    ]
    verb = "is" if len([*columns, *splits]) == 1 else "are"
    return f"{name}: {' and '.join(found)} {verb} not used" if found else ""


def is_number_column(feature: Any) -> bool:
    """Return True if a column of a Hugging Face data set holds one number per row."""
    return str(getattr(feature, "dtype", "")).startswith(NUMBER_TYPES) and not hasattr(
        feature, "shape"
    )


def find_text_column(parts: Sequence[Any], inputs: Features, alone: bool) -> str | None:
    """Return the column with the text to train on; ``alone`` means that there are no numeric columns.

    Next to numeric columns, a column with few different texts holds categories.
    """
    texts = [k for k, f in inputs.items() if str(getattr(f, "dtype", "")) in TEXT_TYPES]
    named = next((k for k in TEXT_NAMES if k in texts), None)
    if alone:
        return texts[0] if len(texts) == 1 else named
    if named is not None and len(set(collect_column(parts, named))) > MAX_CATEGORIES:
        return named
    return None


def collect_column(parts: Sequence[Any], column: str) -> list[Any]:
    """Return the values of one Hugging Face column, in all splits."""
    return [value for part in parts for value in part[column]]


def list_labels(parts: Sequence[Any], label: str) -> list[Any]:
    """List the values of a column in all splits; class labels are replaced by their names."""
    names, values = (
        getattr(parts[0].features[label], "names", None),
        list_stored_labels(parts, label),
    )
    return values if names is None else [None if v is None else names[v] for v in values]


def list_stored_labels(parts: Sequence[Any], label: str) -> list[Any]:
    """List the values of a column in all splits as stored; unpublished class labels (-1) become None."""
    named = getattr(parts[0].features[label], "names", None) is not None
    return [None if named and v == NO_LABEL else v for v in collect_column(parts, label)]


def stack_images(name: str, parts: Sequence[Any], column: str) -> NDArray[np.uint8]:
    """Stack the images in a Hugging Face column: as grey if all are grey, else in colour."""
    pictures = load_images(name, parts, column)
    for row, picture in enumerate(pictures, 1):
        if picture is None:
            raise DataError(f"{name}: an image is missing in column '{column}'; filter it out")
        check_image(picture, f"{name}: column '{column}', row {row}")
    grey = all(picture.mode in ("1", "L") for picture in pictures)
    images = [np.asarray(picture.convert("L" if grey else "RGB")) for picture in pictures]
    if len({one.shape for one in images}) > 1:
        raise DataError(f"{name}: all images must be the same size")
    return np.stack(images)


def load_images(name: str, parts: Sequence[Any], column: str) -> list[Any]:
    """Decode a column's images; raise a DataError that names the first unreadable row."""
    try:
        return collect_column(parts, column)
    except Exception as error:  # Pillow and datasets raise errors of many types
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise DataError(
            f"{name}: column '{column}', row {count_readable(parts) + 1}: not a readable image{reason}"
        ) from None


def count_readable(parts: Sequence[Any]) -> int:
    """Count the rows of a Hugging Face data set before the first one that cannot be decoded."""
    count = 0
    try:
        for part in parts:
            for _ in part:
                count += 1
    except Exception:
        return count
    return count


def stack_lists(name: str, parts: Sequence[Any], column: str) -> NDArray[Any]:
    """Stack the arrays in a column of a Hugging Face data set, one per row."""
    try:
        x = np.array(collect_column(parts, column))
    except ValueError:
        raise DataError(f"{name}: the lists in column '{column}' have different lengths") from None
    if not np.issubdtype(x.dtype, np.number):
        raise DataError(f"{name}: column '{column}' holds no numbers; {EACH_TEXT}")
    return x


@contextmanager
def hide_progress(package: Any) -> Iterator[None]:
    """Hide the progress bars and log lines of ``datasets`` inside the block."""
    shown, level = not package.are_progress_bars_disabled(), package.logging.get_verbosity()
    package.disable_progress_bars()
    package.logging.set_verbosity_error()
    try:
        yield
    finally:
        package.logging.set_verbosity(level)
        if shown:
            package.enable_progress_bars()


def list_train_and_test_splits(name: str, splits: Mapping[str, Any]) -> list[Any]:
    """Return the training split and, if there is one, the test split."""
    if "train" not in splits:
        raise DataError(f"{name} has no split 'train'; it has: {', '.join(splits)}")
    parts = [splits["train"], *[splits[k] for k in find_test_split(splits)]]
    # a format, as set by with_format("torch"), changes what rows contain
    return [p.with_format(None) if hasattr(p, "with_format") else p for p in parts]


def find_test_split(splits: Mapping[str, Any]) -> list[str]:
    """Return the name of the test split; empty if there is none."""
    return [k for k in TEST_SPLITS if k in splits][:1]


def find_client_column(name: str, columns: Features, users: str | None) -> str | None:
    """Return the column of a Hugging Face data set that names clients; None if there is none."""
    if users is not None and users not in columns:
        raise DataError(f"data.users: {name} has no column '{users}'; it has: {', '.join(columns)}")
    return users or (CLIENT if CLIENT in columns else None)


def list_clients(splits: Mapping[str, Any], users: str | None) -> NamedClients:
    """Return the clients in a Hugging Face data set's splits; none if no column names them."""
    parts = list_train_and_test_splits("datasets", splits)
    column = find_client_column("datasets", parts[0].features, users)
    if column is None:
        return NO_CLIENTS
    names = number_clients(list_labels(parts, column), "datasets")[1]
    held = [set(map(str, list_labels([part], column))) for part in parts]
    return NamedClients(names, has_split=len(held) > 1 and held[0] == held[1])


def list_clients_of_hub(name: str, users: str | None) -> NamedClients:
    """Return the clients in a Hugging Face hub data set; none if it cannot be read here."""
    try:
        return list_clients(load_splits(name), users)
    except DataError:  # reading the examples will report what is wrong
        return NO_CLIENTS


def fetch_huggingface(name: str) -> Path:
    """Download a data set into the cache of the ``datasets`` package; return that cache."""
    load_splits(name)
    return Path(import_datasets(name).config.HF_DATASETS_CACHE)


SAVED_FILES = ("dataset_dict.json", "state.json")  # written by save_to_disk
LINES_FILES = ("train.jsonl", "train/metadata.jsonl")  # written by export and by imagefolder


def is_saved_dataset(path: Path) -> bool:
    """Return True if a path holds a Hugging Face data set: from save_to_disk, Parquet, or JSON lines."""
    if path.suffix == ".parquet":
        return path.exists()
    names = (*SAVED_FILES, *LINES_FILES)
    return any((path / n).is_file() for n in names) or any(path.glob("**/train*.parquet"))


def load_saved_dataset(path: Path) -> Mapping[str, Any]:
    """Load the splits of a Hugging Face data set from its files."""
    package = import_datasets(str(path))
    try:
        with hide_progress(package):
            if any((path / n).is_file() for n in SAVED_FILES):
                return get_splits(package.load_from_disk(str(path)))
            if path.is_file():
                return get_splits(package.load_dataset("parquet", data_files=str(path)))
            return get_splits(package.load_dataset(str(path)))
    except Exception as error:  # errors of Arrow and of datasets have many types
        reason = summarise_error(error)
        raise DataError(f"data.name: cannot read {path}: {reason}") from None


def read_saved_dataset(path: Path, request: Request) -> Source:
    """Read a Hugging Face data set from its files."""
    return read_splits(path.name, load_saved_dataset(path), request)


def list_clients_of_saved(path: Path, users: str | None) -> NamedClients:
    """Return the clients in the files of a Hugging Face data set."""
    return list_clients(load_saved_dataset(path), users)


def import_datasets(name: str) -> Any:
    """Import the ``datasets`` package; raise DataError if it is not installed."""
    try:
        return import_module("datasets")  # large and optional: imported only here
    except ImportError:
        raise DataError(
            f"{name} needs the datasets package: pip install 'heterophony[hf]'"
        ) from None


def load_splits(name: str) -> Mapping[str, Any]:
    """Load all splits of a data set from the Hugging Face hub."""
    package, hub_name = import_datasets(name), name.removeprefix(HF_PREFIX)
    try:
        with hide_progress(package):
            splits: Mapping[str, Any] = package.load_dataset(hub_name)
    except Exception as error:  # the hub's errors have many types
        raise DataError(
            f"{name} could not be read ({type(error).__name__}: {summarise_error(error)}); check the"
            " name (as on huggingface.co/datasets) and the network"
        ) from None
    return splits


def find_label_column(name: str, columns: Features, classes: int | None = None) -> str:
    """Return the column of labels: one of type ClassLabel (with ``classes`` classes, if given), or one called label."""
    numbered = [k for k, feature in columns.items() if type(feature).__name__ == "ClassLabel"]
    if classes is not None:
        numbered = [k for k in numbered if len(columns[k].names) == classes]
        if not numbered:
            raise DataError(f"{name} has no labels of {classes} classes")
    named = [k for k in LABEL_NAMES if k in columns]
    if not numbered and not named:
        raise DataError(
            f"{name} has no column of type ClassLabel and none called {LABEL}; it has:"
            f" {', '.join(columns)}"
        )
    return (numbered or named)[0]


def read_shakespeare_rows(name: str, rows: Any) -> Source:
    """Make a source from the hub's copy of LEAF's Shakespeare, whose rows are windows of a role's text."""
    users: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        user = users.setdefault(str(row["character_id"]), {"x": [], "y": []})
        user["x"].append(row["x"])
        user["y"].append(row["y"])
    windows = {
        u: parse_windows(texts["x"], texts["y"], f"{name}: user '{u}'")
        for u, texts in users.items()
    }
    return build_source(Path(name), *split_in_order(windows))


# Partitions of flwr-datasets ------------------------------------------------------------------


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several Hugging Face data sets, one after another, with the interface of one."""

    parts: Sequence[Any]

    @property
    def features(self) -> Features:
        """The columns of the data sets, with their types."""
        features: Features = self.parts[0].features
        return features

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, column: str) -> list[Any]:
        return collect_column(self.parts, column)

    def __iter__(self) -> Iterator[Any]:
        return (row for part in self.parts for row in part)


def is_flower_data(data: object) -> bool:
    """Return True if an object is a partitioner or a ``FederatedDataset`` of flwr-datasets."""
    # look only at the class: properties of the object may download the data
    known = ("num_partitions", "partitioners")
    return hasattr(type(data), "load_partition") and any(hasattr(type(data), k) for k in known)


def read_flower_data(data: Any, request: Request) -> Source:
    """Read partitions of flwr-datasets as clients; partitions of the test split become their test examples."""
    if request.users is not None:
        raise DataError(
            "users: the partitioner already names the client of each example; remove users"
        )
    splits = load_flower_partitions(data)
    clients = list(splits["train"])
    parts = {k: [named[client] for client in clients] for k, named in splits.items()}
    return read_joined("flwr-datasets", parts, clients, request)


def read_joined(
    name: str, splits: Mapping[str, list[Any]], clients: Sequence[object], request: Request
) -> Source:
    """Make a source from splits that hold one Hugging Face data set per client, in client order."""
    parts = {
        k: [list_train_and_test_splits(name, {"train": rows})[0] for rows in v]
        for k, v in splits.items()
    }
    source = read_splits(name, {k: JoinedRows(rows) for k, rows in parts.items()}, request)
    owners = [
        client
        for rows in splits.values()
        for client, own in zip(clients, rows, strict=True)
        for _ in range(len(own))
    ]
    return name_users(source, owners, name)


def read_datasets_by_client(data: Mapping[str, Any], request: Request) -> Source:
    """Make a source from one ``Dataset`` or ``DatasetDict`` per client; test splits are kept."""
    if request.users is not None:
        raise DataError("users: the keys already name the client of each example; remove users")
    held = {client: get_splits(own) for client, own in data.items()}
    train, tests = {}, {}
    for client, splits in held.items():
        train[client], *test = list_train_and_test_splits(f"client {client}", splits)
        if test:
            tests[client] = test[0]
        if train[client].features != next(iter(train.values())).features:
            raise DataError(
                f"client {client} has different columns from client {next(iter(train))}"
            )
    if tests and len(tests) < len(train):
        alone = next(client for client in train if client not in tests)
        raise DataError(
            f"client {alone} has no test split, but others have; give one to all clients or to none"
        )
    parts = {"train": list(train.values()), **({"test": list(tests.values())} if tests else {})}
    return read_joined("datasets", parts, list(train), request)


def load_flower_partitions(data: Any) -> dict[str, dict[Any, Any]]:
    """Load the training partitions of flwr-datasets and, if the test split is partitioned, its partitions.

    Partitions by a column are named by its values; others are numbered.
    """
    try:
        rules = dict(data.partitioners) if hasattr(data, "partitioners") else {"train": data}
        splits = {
            split: [rules[split].load_partition(i) for i in range(rule.num_partitions)]
            for split, rule in rules.items()
        }
        names = {k: getattr(rule, "partition_id_to_natural_id", {}) for k, rule in rules.items()}
    except Exception as error:  # the partitioner, the hub and the network raise many types
        raise DataError(f"flwr-datasets: {summarise_error(error)}") from None
    if "train" not in splits or not splits.keys() <= {"train", "test"}:
        raise DataError(
            f"flwr-datasets: partition 'train' and optionally 'test', not {', '.join(splits)}"
        )
    counts = {k: len(v) for k, v in splits.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"flwr-datasets: {counts['train']} training but {counts['test']} test partitions; make"
            " them equal"
        )
    parts = [k for k in ("train", "test") if k in splits]
    named = all(len(ids) == counts["train"] for ids in names.values())
    found = {
        k: {names[k][i] if named else i: rows for i, rows in enumerate(splits[k])} for k in parts
    }
    for client in found["train"]:
        if client not in found[parts[-1]]:
            raise DataError(
                f"flwr-datasets: client '{client}' has no test partition; partition both splits into the"
                " same clients, or only train"
            )
    return found
