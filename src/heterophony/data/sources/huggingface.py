"""Image data sets of the Hugging Face hub, by name: ``hf:uoft-cs/cifar10``; and Shakespeare."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DataError
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source
from .archives import summarise_error
from .arrays import wrap_arrays
from .shakespeare import build_source, parse_windows, split_in_order

HF_PREFIX = "hf:"
TEST_SPLITS = ("test", "valid", "validation")


def read_huggingface(name: str) -> Source:
    """Read the named data set of the hub."""
    return read_splits(name, load_splits(name))


def is_datasets_object(data: object) -> bool:
    """Tell whether an object is a ``Dataset`` or ``DatasetDict`` of the ``datasets`` package."""
    first = next(iter(data.values()), None) if isinstance(data, Mapping) else data
    return isinstance(getattr(first, "features", None), Mapping) and hasattr(first, "__len__")


def read_datasets_object(data: Any) -> Source:
    """Read a loaded ``Dataset``, or the splits of a ``DatasetDict``."""
    return read_splits("datasets", data if isinstance(data, Mapping) else {"train": data})


def read_splits(name: str, splits: Mapping[str, Any]) -> Source:
    """Read images and labels, training split before test split."""
    if "train" not in splits:
        raise DataError(f"{name} has no split 'train'; it has: {', '.join(splits)}")
    test = next((splits[k] for k in TEST_SPLITS if k in splits), None)
    parts = [splits["train"], *([] if test is None else [test])]
    columns = parts[0].features
    if {"character_id", "x", "y"} <= columns.keys():
        return read_shakespeare_rows(name, parts[0])
    image, label = find_column(name, columns, "Image"), find_column(name, columns, "ClassLabel")
    rows = [(row[image], row[label]) for part in parts for row in part]
    grey = all(picture.mode in ("1", "L") for picture, _ in rows)
    images = [np.asarray(picture.convert("L" if grey else "RGB")) for picture, _ in rows]
    if not images:
        raise DataError(f"{name}: there are no examples")
    if len({one.shape for one in images}) > 1:
        raise DataError(f"{name}: images must all have one size")
    official = len(parts[0]) if test is not None else None
    source = wrap_arrays(np.stack(images), np.array([y for _, y in rows]), name, official)
    labels = tuple(columns[label].names)
    return Source(name, source.x, source.y, BYTES_TO_PLUS_MINUS_ONE, labels, official)


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


def find_column(name: str, columns: Mapping[str, Any], kind: str) -> str:
    """Return the name of the first column of this type."""
    matching = [k for k, feature in columns.items() if type(feature).__name__ == kind]
    if not matching:
        raise DataError(f"{name} has no column of type {kind}; it has: {', '.join(columns)}")
    return matching[0]


def read_shakespeare_rows(name: str, rows: Any) -> Source:
    """Make a source of LEAF's Shakespeare, where a row is a window of a role's text."""
    users: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        user = users.setdefault(str(row["character_id"]), {"x": [], "y": []})
        user["x"].append(row["x"])
        user["y"].append(row["y"])
    windows = {u: parse_windows(texts, f"{name}: user '{u}'") for u, texts in users.items()}
    return build_source(Path(name), *split_in_order(windows))
