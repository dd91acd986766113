"""The formats of users' data: how each is recognised and read, and which clients it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import DataError
from ..source import Source, decide_classes
from . import arrays, client_files, huggingface, leaf, tables
from .arrays import NO_CLIENTS, NamedClients, Request
from .folder import IMAGES, TEXTS, make_text_files


@dataclass(frozen=True)
class Format:
    """One format of data: its name, the files that identify it, and its functions."""

    name: str
    looks: str  # the files by which it is recognised, for messages
    recognise: Callable[[Path], bool]
    read: Callable[[Path, Request], Source]
    list_clients: Callable[[Path, str | None], NamedClients]
    accepts: tuple[str, ...] = ()  # which settings of ``Request`` apply


def find_format(path: Path) -> Format | None:
    """Return the first format that recognises the data at a path; None if none does."""
    return next((f for f in FORMATS if f.recognise(path)), None)


def make_unknown_error(path: Path) -> DataError:
    """Return the error for a path in no known format; it lists the formats."""
    looked_for = "; ".join(f"{f.name} ({f.looks})" for f in FORMATS if f.looks)
    return DataError(f"data.name: {path} is in none of the known formats. Looked for: {looked_for}")


def read_npz_file(path: Path, request: Request) -> Source:
    """Read an ``.npz`` with the examples of all clients, and check its classes."""
    source = arrays.read_npz(path, task=request.task, users=request.users)
    return decide_classes(source, request.classes)


def read_folder_of_npz(path: Path, request: Request) -> Source:
    """Read a folder with one ``.npz`` per client, and check its classes."""
    return decide_classes(arrays.read_npz_per_client(path, request.task), request.classes)


def list_files_of_clients(path: Path, users: str | None) -> NamedClients:
    """Return the clients of a folder with one ``.npz`` per client."""
    files = sorted(path.glob("*.npz"))
    has_split = any("y_test" in arrays.list_arrays(p) for p in files[:1])
    return NamedClients(tuple(p.stem for p in files), has_split)


ALL_SETTINGS = ("classes", "task", "users")
COLUMN_SETTINGS = (*ALL_SETTINGS, "tokenizer")

# the first format that recognises a path reads it
FORMATS = (
    Format(
        "Hugging Face",
        "",  # a name, not a file
        lambda path: str(path).startswith(huggingface.HF_PREFIX),
        lambda path, request: huggingface.read_huggingface(str(path), request),
        lambda path, users: huggingface.list_clients_of_hub(str(path), users),
        COLUMN_SETTINGS,
    ),
    Format(
        "Hugging Face files",
        "a folder of save_to_disk, .parquet, train.jsonl, or train/metadata.jsonl beside images",
        huggingface.is_saved,
        huggingface.read_saved,
        huggingface.list_clients_of_saved,
        COLUMN_SETTINGS,
    ),
    Format(
        "MedMNIST",
        "an .npz with train_images, train_labels, test_images, test_labels",
        arrays.is_medmnist,
        arrays.read_medmnist,
        lambda path, users: NO_CLIENTS,
        ("classes", "task"),
    ),
    Format(
        "arrays",
        "an .npz with x and y, or x_train, y_train, x_test, y_test",
        lambda path: path.suffix == ".npz",
        read_npz_file,
        lambda path, users: NamedClients(arrays.read_clients_of_npz(path, users)),
        ALL_SETTINGS,
    ),
    Format(
        "table",
        "a .csv or .tsv with a column label",
        tables.is_table,
        tables.read_table,
        lambda path, users: NamedClients(tables.read_clients_of_table(path, users)),
        COLUMN_SETTINGS,
    ),
    Format(
        "PFLlib",
        "train/0.npz, test/0.npz, …",
        client_files.is_pfllib,
        client_files.read_pfllib,
        client_files.list_pfllib_clients,
        ("classes", "task"),
    ),
    Format(
        "LEAF",
        "train/*.json and test/*.json, or *.json, with users, num_samples, user_data",
        leaf.is_leaf,
        leaf.read_leaf,
        leaf.list_clients,
        ("classes", "task"),
    ),
    Format(
        "UCI HAR",
        "train/X_train.txt, y_train.txt, subject_train.txt, and the same for test",
        client_files.is_har,
        client_files.read_har,
        client_files.list_har_clients,
    ),
    Format(
        "arrays of each client",
        "CLIENT.npz with x and y, or x_train, y_train, x_test, y_test",
        lambda path: path.is_dir() and any(path.glob("*.npz")),
        read_folder_of_npz,
        list_files_of_clients,
        ("classes", "task"),
    ),
    Format(
        "images by class",
        "CLASS/IMAGE.png, or train/CLASS/IMAGE.png and test/CLASS/IMAGE.png",
        IMAGES.has_classes,
        lambda path, request: IMAGES.read_by_class(path),
        lambda path, users: NO_CLIENTS,
    ),
    Format(
        "images by client and class",
        "CLIENT/CLASS/IMAGE.png, or CLIENT/train/CLASS/IMAGE.png and CLIENT/test/CLASS/IMAGE.png",
        IMAGES.has_clients,
        lambda path, request: IMAGES.read_by_client(path),
        IMAGES.list_clients,
    ),
    Format(
        "texts by class",
        "CLASS/TEXT.txt, or train/CLASS/TEXT.txt and test/CLASS/TEXT.txt",
        TEXTS.has_classes,
        lambda path, request: make_text_files(request.tokenizer).read_by_class(path),
        lambda path, users: NO_CLIENTS,
        ("tokenizer",),
    ),
    Format(
        "texts by client and class",
        "CLIENT/CLASS/TEXT.txt, or CLIENT/train/CLASS/TEXT.txt and CLIENT/test/CLASS/TEXT.txt",
        TEXTS.has_clients,
        lambda path, request: make_text_files(request.tokenizer).read_by_client(path),
        TEXTS.list_clients,
        ("tokenizer",),
    ),
)
