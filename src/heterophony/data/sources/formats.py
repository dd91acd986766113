"""The formats of users' data: how each format is recognised and read, and which clients it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.errors import DataError, FolderError, StorageError
from ...core.files import read_json
from ..source import Source, decide_classes
from . import arrays, client_files, huggingface, leaf, tables
from .arrays import NO_CLIENTS, NamedClients, Request
from .client_files import PARTS
from .folder import IMAGES, TEXTS, list_client_folders, make_text_files
from .reading import list_files


@dataclass(frozen=True)
class Format:
    """One format of users' data: its name, the files by which it is recognised, and its readers."""

    name: str
    looks: str  # the files by which it is recognised, for messages
    recognise: Callable[[Path], bool]
    read: Callable[[Path, Request], Source]
    list_clients: Callable[[Path, str | None], NamedClients]
    accepts: tuple[str, ...] = ()  # which settings of ``Request`` apply


def find_format(path: Path) -> Format | None:
    """Return the first format that recognises the data at a path; None if none does."""
    return next((f for f in FORMATS if f.recognise(path)), None)


# what to do with files of other formats, by their suffix
CONVERSIONS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv in UTF-8"),
    **dict.fromkeys((".gz", ".zip", ".tar", ".tgz", ".xz", ".bz2", ".7z"), "unpack it"),
    **dict.fromkeys(
        (".npy", ".pt", ".pth", ".pkl", ".pickle", ".mat", ".h5", ".hdf5"),
        "store its arrays as .npz: np.savez(path, x=x, y=y)",
    ),
    **dict.fromkeys((".feather", ".arrow"), "save it as .parquet"),
    ".jsonl": "call it train.jsonl, in a folder of its own, and give the path of the folder",
    ".txt": "call it .csv, or .tsv, if it is a table",
}


def suggest_format(path: Path) -> str:
    """Suggest what to do with data in an unknown format; empty if there is nothing to suggest."""
    if path.is_file():
        return CONVERSIONS.get(path.suffix.lower(), "")
    for suffix in (".npz", ".json"):
        held = [part for part in PARTS if list_files(path / part, suffix)]
        if len(held) == 1:
            other = PARTS[1 - PARTS.index(held[0])]
            return f"it has {held[0]}/*{suffix}, but no {other}/*{suffix}"
    for folder in list_client_folders(path):
        if folder.name not in PARTS and (known := find_format(folder)) is not None:
            return f"but {folder} is data of the format {known.name}: give its path"
    return ""


def make_unknown_error(path: Path) -> DataError:
    """Return the error for a path in an unknown format; it lists the known ones."""
    if suggestion := suggest_format(path):
        return DataError(f"data.name: {path} is in none of the known formats; {suggestion}")
    looked_for = "; ".join(f"{f.name} ({f.looks})" for f in FORMATS if f.looks)
    return DataError(f"data.name: {path} is in none of the known formats. Looked for: {looked_for}")


def read_npz_file(path: Path, request: Request) -> Source:
    """Read an ``.npz`` with the examples of all clients, and check its classes."""
    source = arrays.read_npz(path, task=request.task, users=request.users)
    return decide_classes(source, request.classes)


def read_folder_of_npz(path: Path, request: Request) -> Source:
    """Read a folder with one ``.npz`` per client, and check its classes."""
    if path.name in PARTS and client_files.is_pfllib(path.parent):
        raise DataError(
            f"data.name: {path} is a part of PFLlib's data; give the path {path.parent}"
        )
    return decide_classes(arrays.read_npz_per_client(path, request.task), request.classes)


def list_files_of_clients(path: Path, users: str | None) -> NamedClients:
    """Return the clients of a folder with one ``.npz`` per client."""
    files = list_files(path, ".npz")
    has_split = any("y_test" in arrays.list_arrays(p) for p in files[:1])
    return NamedClients(tuple(p.stem for p in files), has_split)


CLASS_NAMES = "class_names.json"  # next to exported data whose labels do not name all classes


def take_stored_class_names(
    read: Callable[[Path, Request], Source],
) -> Callable[[Path, Request], Source]:
    """Return a reader that takes the classes from ``class_names.json``, unless they are given."""

    def read_with_names(path: Path, request: Request) -> Source:
        return read(path, replace(request, classes=request.classes or read_class_names(path)))

    return read_with_names


def read_class_names(path: Path) -> list[str] | None:
    """Return the names in ``class_names.json``; None if there is no list of names."""
    try:
        names = read_json(path / CLASS_NAMES)
    except (FolderError, StorageError):
        return None
    is_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_names and names else None


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
        huggingface.is_saved_dataset,
        take_stored_class_names(huggingface.read_saved_dataset),
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
        lambda path, users: NamedClients(tables.list_clients_of_file(path, users)),
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
        take_stored_class_names(leaf.read_leaf),
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
        lambda path: bool(list_files(path, ".npz")),
        take_stored_class_names(read_folder_of_npz),
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
    Format(
        "table of each client",
        "CLIENT.csv or CLIENT.tsv with a column label, two or more; or train.csv and test.csv",
        lambda path: bool(tables.list_tables(path)),
        tables.read_folder_of_tables,
        tables.list_clients_of_folder,
        COLUMN_SETTINGS,
    ),
)
