"""Read data sets: by name (``registry.py``), from users' files, or from the Hugging Face hub."""

from .arrays import read_npz, wrap_arrays
from .registry import (
    SOURCES,
    DatasetSize,
    NamedDataset,
    choose_default_training,
    fetch_dataset,
    find_dataset_name,
    find_named_clients,
    read_source,
)

__all__ = [
    "SOURCES",
    "DatasetSize",
    "NamedDataset",
    "choose_default_training",
    "fetch_dataset",
    "find_dataset_name",
    "find_named_clients",
    "read_npz",
    "read_source",
    "wrap_arrays",
]
