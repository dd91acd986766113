"""Read data that clients have in their own folders; write federations in other platforms' formats."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError, FolderError, suggest_or_list
from ..core.files import sort_names, translate_disk_errors, write_atomically, write_json
from ..core.records import Record
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from .federation import Federation
from .partitioning import split_into_clients
from .source import Source, check_plain_name, parse_class_names
from .sources.arrays import read_npz
from .sources.folder import IMAGES, decode_image, read_image_file, read_image_header
from .sources.leaf import ALPHABET, FEMNIST_SHAPE, LABELS

OWN_DATA = "own"  # the value of data.name


@dataclass(frozen=True)
class ExampleSpec:
    """The configured shape and classes of all examples; a single client may lack some classes."""

    shape: tuple[int, ...]
    labels: tuple[str, ...]

    @classmethod
    def from_config(cls, shape: list[int] | None, classes: list[str] | int | None) -> ExampleSpec:
        """Check and convert ``data.shape`` and ``data.classes``."""
        if classes is None:
            raise ConfigError(
                "data.classes: missing; set it to the names of the classes in their order, or to their"
                " number"
            )
        if shape is None:
            raise ConfigError(
                "data.shape: missing; set it to the shape of one example, as in"
                " [3, 32, 32] (channels, height, width) or [561]"
            )
        if not shape or not all(type(n) is int and n > 0 for n in shape):
            raise ConfigError(f"data.shape: must be whole numbers above 0, not {shape!r}")
        return cls(tuple(shape), parse_class_names(classes))


# Find the data ------------------------------------------------------------------------------


def find_client_data(
    path: Path, names: Sequence[str] = (), alone: str | None = None
) -> dict[str, Path]:
    """Find the folder or file of each named client; without names, those of all clients.

    ``alone`` is the client's name if ``path`` itself holds the data of a single client.
    """
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"there is no {path}; give the path of a folder with data or an .npz file")
    if is_single_client(path):
        if alone is None or len(names) > 1:
            raise DataError(
                f"{path} holds the data of one client;"
                " give the path of a folder with one folder or .npz file per client"
            )
        return {check_plain_name(names[0] if names else alone): path}
    paths = list_client_paths(path)
    for name in names:
        if name not in paths:
            raise DataError(
                f"{path} holds no data of client '{name}'{suggest_or_list(name, paths)}"
            )
    return {check_plain_name(n): paths[n] for n in sort_names(names or paths)}


def is_single_client(path: Path) -> bool:
    """Return True if the path itself holds the data of one client."""
    return path.suffix == ".npz" or any(IMAGES.list_in(p) for p in (path, path / "train"))


def list_client_paths(path: Path) -> dict[str, Path]:
    """List the folders and ``.npz`` files below a path, one per client, by name."""
    within = sorted(path.iterdir()) if path.is_dir() else []
    files = [p for p in within if p.suffix == ".npz"]
    folders = [p for p in within if p.is_dir() and p not in files and p.name[0] != "."]
    paths = {p.stem: p for p in files}
    for p in folders:
        if p.name in paths:
            raise DataError(f"{p} and {paths[p.name]} name the same client; remove one of them")
        paths[p.name] = p
    if not paths:
        raise DataError(
            f"{path} holds no data: neither folders of images, one per class,"
            " nor folders or .npz files, one per client"
        )
    return paths


# Read the data ------------------------------------------------------------------------------


def load_own_federation(
    paths: Mapping[str, Path],
    spec: ExampleSpec,
    train_fraction: float,
    seed: int,
    validation_fraction: float = 0.0,
) -> Federation:
    """Read the data of these clients; without a test set, split each client's data at random."""
    sources = {c: read_client_data(path, spec) for c, path in paths.items()}
    first, types = next(iter(sources)), {c: s.x.dtype for c, s in sources.items()}
    for client, dtype in types.items():
        if dtype != types[first]:
            raise DataError(
                f"client {client} has examples of type {dtype}, but client {first} of type {types[first]}"
            )
    x, y = (np.concatenate([getattr(s, k) for s in sources.values()]) for k in ("x", "y"))
    federation = split_into_clients(
        Source(OWN_DATA, x, y, sources[first].scale, spec.labels),
        [len(s.y) for s in sources.values()],
        [s.official for s in sources.values()],
        train_fraction,
        seed,
        validation_fraction,
        list(sources),
    )
    for client, rows in federation.validation.items():
        if not len(rows):
            raise DataError(
                f"client {client} has only one training example, so none can be held out;"
                " remove data.validation_fraction"
            )
    return federation


def read_client_data(path: Path, spec: ExampleSpec) -> Source:
    """Read one client's data, and check its shape and classes."""
    if path.suffix == ".npz":
        return read_client_npz(path, spec)
    train, test = IMAGES.list_train_and_test(path)
    if not train:
        raise DataError(f"{path} holds no folders of images, one per class")
    files = [*train, *test]
    for file in files:
        if file.parent.name not in spec.labels:
            raise DataError(
                f"{file.parent}: '{file.parent.name}' is not among data.classes"
                f"{suggest_or_list(file.parent.name, spec.labels)}"
            )
    y = np.array([spec.labels.index(f.parent.name) for f in files], np.int64)
    official = len(train) if test else None
    return Source(
        str(path),
        read_images_of_shape(files, spec.shape),
        y,
        BYTES_TO_PLUS_MINUS_ONE,
        spec.labels,
        official,
    )


def read_client_npz(path: Path, spec: ExampleSpec) -> Source:
    """Read one client's ``.npz``. Labels are indices into ``data.classes``."""
    source = read_npz(path, spec.shape)
    if source.x.shape[1:] != spec.shape:
        raise DataError(
            f"{path} has examples of {format_shape(source.x.shape[1:])};"
            f" those of the run are {format_shape(spec.shape)} (data.shape)"
        )
    if source.y.max() >= len(spec.labels):
        raise DataError(
            f"{path} has label {source.y.max()}, but data.classes has {len(spec.labels)} classes,"
            " counted from 0"
        )
    return Source(str(path), source.x, source.y, source.scale, spec.labels, source.official)


def read_images_of_shape(files: list[Path], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read images of exactly this shape; grey images may be among colour ones."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"{files[0]} is an image; data.shape is {format_shape(shape)},"
            " not 1 or 3 channels, height and width"
        )
    channels, height, width = shape
    x = np.empty((len(files), *shape), np.uint8)
    for at, file in enumerate(files):
        size, grey = read_image_header(file)
        if size != (width, height) or (channels == 1 and not grey):
            actual = format_shape((1 if grey else 3, size[1], size[0]))
            raise DataError(
                f"{file} is {actual}; examples of the run are {format_shape(shape)} (data.shape)"
            )
        x[at] = decode_image(read_image_file(file), file, channels == 1)
    return x


def format_shape(shape: Iterable[int]) -> str:
    """Return the shape of an example as text, as in ``3×32×32``."""
    return "×".join(map(str, shape))


PARTS = ("train", "test")
Examples = tuple[NDArray[Any], NDArray[Any]]


def export_federation(federation: Federation, to: str, folder: Path) -> None:
    """Write all clients, including those that join later, into a new or empty folder."""
    if federation.validation:
        raise ConfigError(
            "data.validation_fraction: other platforms do not support validation examples of clients;"
            " remove it"
        )
    with translate_disk_errors(folder):
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise FolderError(f"{folder} is not empty; choose another folder")
    record = federation.record
    if record is not None and (to != "npz" or record.form != "dict"):
        raise DataError(
            f"examples of {record.describe()} cannot be written as {to}; only dicts of arrays can be"
            " written, with --to npz"
        )
    WRITERS[to](federation.whole(), folder)


def get_inputs(federation: Federation, client: str, part: str) -> Examples:
    """Return a client's examples as network input, without random transforms, and their targets."""
    samples = federation.samples(client, part)
    return samples.scale(samples.get_all_stored().clone()).numpy(), samples.labels.numpy()


def get_stored(federation: Federation, client: str, part: str) -> Examples:
    """Return a client's examples as they are stored, images as bytes, and their targets.

    If bytes are not scaled like images, readers of the file would misinterpret them: the examples are
    then returned as network input.
    """
    if federation.scale not in (BYTES_TO_PLUS_MINUS_ONE, Scale()):
        return get_inputs(federation, client, part)
    samples = federation.samples(client, part)
    return samples.get_all_stored().numpy(), samples.labels.numpy()


def write_npz(path: Path, **arrays: Any) -> None:
    """Write an ``.npz`` atomically; a dict is stored in NumPy's format."""
    whole = io.BytesIO()
    np.savez_compressed(whole, **arrays)
    write_atomically(path, whole.getvalue(), durable=False)


def export_pfllib(federation: Federation, folder: Path) -> None:
    """Write ``train/0.npz`` and ``test/0.npz`` for client 0, and ``config.json``."""
    if federation.task != "classification":
        raise DataError(f"PFLlib is for classification, not for {federation.task}; use --to npz")
    held = list(federation.clients)
    numbered = held == [str(i) for i in range(len(held))]
    for number, client in enumerate(held):
        for part in PARTS:
            x, y = get_inputs(federation, client, part)
            x = (
                pair_texts(x)
                if "News" in folder.name and x.ndim == 2 and x.dtype == np.int64
                else x
            )
            write_npz(folder / part / f"{number}.npz", data={"x": x, "y": y})
    counts = federation.counts() + federation.counts("test")
    sizes = [[[int(c), int(row[c])] for c in np.flatnonzero(row)] for row in counts]
    about: dict[str, Any] = {
        "num_clients": len(held),
        "num_classes": federation.classes,
        "non_iid": True,
        "balance": False,
        "partition": "heterophony",
        "Size of samples for labels in clients": sizes,
        "alpha": None,
        "batch_size": 10,
    }
    write_json(folder / "config.json", about if numbered else {**about, "client_names": held})


def pair_texts(x: NDArray[np.int64]) -> NDArray[Any]:
    """Pair tokens with their length; PFLlib reads texts in this form if the folder's name contains News."""
    pairs = np.empty((len(x), 2), object)
    for at, row in enumerate(x.tolist()):
        pairs[at, 0], pairs[at, 1] = row, len(row)
    return pairs


def export_leaf(federation: Federation, folder: Path) -> None:
    """Write the users' examples to ``train/all_data_train.json`` and ``test/all_data_test.json``."""
    for part in PARTS:
        users: dict[str, Any] = {}
        for client in federation.clients:
            x, y = get_inputs(federation, client, part)
            users[client] = {
                "x": list_leaf_examples(federation, x),
                "y": list_leaf_labels(federation, y),
            }
        content = {
            "users": list(users),
            "num_samples": [len(held["y"]) for held in users.values()],
            "user_data": users,
        }
        path = folder / part / f"all_data_{part}.json"
        write_atomically(path, json.dumps(content).encode(), durable=False)


def list_leaf_examples(federation: Federation, x: NDArray[Any]) -> list[Any]:
    """Return examples in LEAF's format: text, or numbers with as few digits as identify them exactly."""
    if federation.labels == LABELS:
        return ["".join(ALPHABET[i] for i in row) for row in x]
    x = x.reshape(len(x), -1) if federation.shape == FEMNIST_SHAPE else x
    if x.dtype != np.float32:
        return list(x.tolist())
    return list(x.astype(str).astype(np.float64).tolist())


def list_leaf_labels(federation: Federation, y: NDArray[Any]) -> list[Any]:
    """Return labels in LEAF's format: characters if the examples are text, else numbers."""
    if federation.labels == LABELS:
        return [ALPHABET[i] for i in y]
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return list(y.tolist())


def export_npz(federation: Federation, folder: Path) -> None:
    """Write one ``.npz`` per client, with the client's name."""
    for client in federation.clients:
        check_plain_name(client)
    for client in federation.clients:
        arrays: dict[str, Any] = {}
        for part in PARTS:
            x, arrays[f"y_{part}"] = get_stored(federation, client, part)
            arrays |= name_inputs(federation.record, x, f"x_{part}")
        write_npz(folder / f"{client}.npz", **arrays)


def name_inputs(record: Record | None, x: NDArray[Any], key: str) -> dict[str, Any]:
    """Return the arrays to write under a key: one, or ``key.NAME`` for each input of a dict."""
    if record is None:
        return {key: x}
    inputs = record.unpack(torch.from_numpy(x), as_stored=True)
    assert isinstance(inputs, dict)
    return {f"{key}.{name}": values.numpy() for name, values in inputs.items()}


def export_huggingface(federation: Federation, folder: Path) -> None:
    """Write a folder for ``datasets.load_dataset``: PNG files if examples are images, otherwise JSON lines."""
    is_image = federation.scale == BYTES_TO_PLUS_MINUS_ONE and federation.shape[0] in (1, 3)
    for part in PARTS:
        lines: list[dict[str, Any]] = []
        for client in federation.clients:
            x, y = get_stored(federation, client, part)
            targets = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
            for example, label in zip(x, targets.tolist(), strict=True):
                row: dict[str, Any] = {"client": client, "label": label}
                if is_image and len(federation.shape) == 3:
                    name = f"{len(lines):07}.png"
                    write_atomically(folder / part / name, encode_png(example), durable=False)
                    lines.append({"file_name": name, **row})
                else:
                    lines.append({"x": example.tolist(), **row})
        at = (
            folder / part / "metadata.jsonl"
            if "file_name" in lines[0]
            else folder / f"{part}.jsonl"
        )
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        write_atomically(at, text.encode(), durable=False)


def encode_png(example: NDArray[np.uint8]) -> bytes:
    """Encode an image C×H×W as the bytes of a PNG file."""
    from PIL import Image

    whole = io.BytesIO()
    pixels = example[0] if len(example) == 1 else example.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(pixels)).save(whole, "PNG")
    return whole.getvalue()


WRITERS: dict[str, Callable[[Federation, Path], None]] = {
    "pfllib": export_pfllib,
    "leaf": export_leaf,
    "huggingface": export_huggingface,
    "npz": export_npz,
}
