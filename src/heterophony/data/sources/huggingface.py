"""Image data sets of the Hugging Face hub, by name: ``hf:uoft-cs/cifar10``; and Shakespeare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import CLIENT, Source, name_users, number_clients
from .arrays import wrap_arrays
from .reading import summarise_error
from .shakespeare import build_source, parse_windows, split_in_order

HF_PREFIX = "hf:"
TEST_SPLITS = ("test", "valid", "validation")
SHAKESPEARE_COLUMNS = {"character_id", "x", "y"}


def read_huggingface(name: str, users: str | None = None, classes: int | None = None) -> Source:
    """Read the named data set of the hub.

    ``users`` is the column that names clients; ``classes`` says which of several labels is meant.
    """
    return read_splits(name, load_splits(name), users, classes)


def is_datasets_object(data: object) -> bool:
    """Return True if an object is a ``Dataset`` or ``DatasetDict`` of the ``datasets`` package."""
    first = next(iter(data.values()), None) if isinstance(data, Mapping) else data
    return isinstance(getattr(first, "features", None), Mapping) and hasattr(first, "__len__")


def read_datasets_object(data: Any, users: str | None = None) -> Source:
    """Read a loaded ``Dataset``, or the splits of a ``DatasetDict``."""
    return read_splits("datasets", get_splits(data), users)


def get_splits(data: Any) -> Mapping[str, Any]:
    """Return the splits of a ``DatasetDict``; a ``Dataset`` is one to train on."""
    return data if isinstance(data, Mapping) else {"train": data}


def read_splits(
    name: str, splits: Mapping[str, Any], users: str | None = None, classes: int | None = None
) -> Source:
    """Read images and labels, training split before test split."""
    parts = list_parts(name, splits)
    columns = parts[0].features
    if columns.keys() >= SHAKESPEARE_COLUMNS and users in (None, "character_id"):
        return read_shakespeare_rows(name, parts[0])
    clients = find_client_column(name, columns, users)
    others = {k: feature for k, feature in columns.items() if k != clients}
    image = find_column(name, others, "Image")
    label = find_column(name, others, "ClassLabel", classes)
    rows = [(row[image], row[label]) for part in parts for row in part]
    grey = all(picture.mode in ("1", "L") for picture, _ in rows)
    images = [np.asarray(picture.convert("L" if grey else "RGB")) for picture, _ in rows]
    if not images:
        raise DataError(f"{name}: there are no examples")
    if len({one.shape for one in images}) > 1:
        raise DataError(f"{name}: images must all have one size")
    official = len(parts[0]) if len(parts) > 1 else None
    source = wrap_arrays(np.stack(images), np.array([y for _, y in rows]), name, official)
    labels = tuple(columns[label].names)
    source = Source(name, source.x, source.y, BYTES_TO_PLUS_MINUS_ONE, labels, official)
    return source if clients is None else name_users(source, list_names(parts, clients), name)


def list_parts(name: str, splits: Mapping[str, Any]) -> list[Any]:
    """Return the split to train on and, if there is one, the split to test on."""
    if "train" not in splits:
        raise DataError(f"{name} has no split 'train'; it has: {', '.join(splits)}")
    return [splits["train"], *[splits[k] for k in TEST_SPLITS if k in splits][:1]]


def find_client_column(name: str, columns: Mapping[str, Any], users: str | None) -> str | None:
    """Return the column that names clients; None if there is none."""
    if users is not None and users not in columns:
        raise DataError(f"data.users: {name} has no column '{users}'; it has: {', '.join(columns)}")
    return users or (CLIENT if CLIENT in columns else None)


def list_names(parts: Sequence[Any], column: str) -> list[Any]:
    """List what names the client of every example."""
    texts = getattr(parts[0].features[column], "names", None)  # of a column of numbered names
    values = [value for part in parts for value in part[column]]
    return values if texts is None else [texts[value] for value in values]


def read_clients_of_datasets(splits: Mapping[str, Any], users: str | None) -> tuple[str, ...]:
    """Return the names of the clients in the splits of a data set; none if no column names them."""
    parts = list_parts("datasets", splits)
    column = find_client_column("datasets", parts[0].features, users)
    return () if column is None else number_clients(list_names(parts, column), "datasets")[1]


def read_clients_of_hub(name: str, users: str | None) -> tuple[str, ...]:
    """Return the names of the clients in a data set of the hub; none if it cannot be read here."""
    try:
        return read_clients_of_datasets(load_splits(name), users)
    except DataError:  # reading the examples will say what is wrong
        return ()


def fetch_huggingface(name: str) -> Path:
    """Download a data set into the cache of the ``datasets`` package; return that cache."""
    load_splits(name)
    return Path(import_datasets(name).config.HF_DATASETS_CACHE)


def import_datasets(name: str) -> Any:
    try:
        return import_module("datasets")  # large and optional: imported only here
    except ImportError:
        raise DataError(
            f"{name} needs the datasets package: pip install 'heterophony[hf]'"
        ) from None


def load_splits(name: str) -> Mapping[str, Any]:
    """Load all splits of a data set."""
    hub_name = name.removeprefix(HF_PREFIX)
    try:
        splits: Mapping[str, Any] = import_datasets(name).load_dataset(hub_name)
    except DataError:
        raise
    except Exception as error:  # the hub's errors have many types
        raise DataError(
            f"{name} could not be read ({type(error).__name__}: {summarise_error(error)}); check the"
            " name (as on huggingface.co/datasets) and the network"
        ) from None
    return splits


def find_column(
    name: str, columns: Mapping[str, Any], kind: str, classes: int | None = None
) -> str:
    """Return the name of the first column of this type, with so many classes if that is given."""
    matching = [k for k, feature in columns.items() if type(feature).__name__ == kind]
    if not matching:
        raise DataError(f"{name} has no column of type {kind}; it has: {', '.join(columns)}")
    if classes is None:
        return matching[0]
    fitting = [k for k in matching if len(columns[k].names) == classes]
    if not fitting:
        raise DataError(f"{name} has no labels of {classes} classes")
    return fitting[0]


def read_shakespeare_rows(name: str, rows: Any) -> Source:
    """Make a source of LEAF's Shakespeare, where a row is a window of a role's text."""
    users: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        user = users.setdefault(str(row["character_id"]), {"x": [], "y": []})
        user["x"].append(row["x"])
        user["y"].append(row["y"])
    windows = {u: parse_windows(texts, f"{name}: user '{u}'") for u, texts in users.items()}
    return build_source(Path(name), *split_in_order(windows))
