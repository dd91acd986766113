"""Write federations in other platforms' formats, from which they can be read back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError, FolderError
from ..core.files import translate_disk_errors, write_atomically, write_json
from ..core.records import Record
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from .federation import Federation
from .source import check_plain_name, make_number_names
from .sources.formats import CLASS_NAMES
from .sources.leaf import ALPHABET, FEMNIST_SHAPE, LABELS

PARTS = ("train", "test")
Examples = tuple[NDArray[Any], NDArray[Any]]


def export_federation(federation: Federation, to: str, folder: Path) -> None:
    """Write the data of all clients, including new ones, into an empty folder in another platform's format."""
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
    whole = federation.include_new_clients()
    WRITERS[to](whole, folder)
    if to != "pfllib" and needs_class_names(whole):
        write_json(folder / CLASS_NAMES, list(whole.labels))


def needs_class_names(federation: Federation) -> bool:
    """Return True if exported examples do not contain all class names, so that a file must list them."""
    if federation.task == "regression":
        return False
    counts = federation.count_labels() + federation.count_labels("test")
    return has_named_classes(federation) or not counts.any(axis=0).all()


def has_named_classes(federation: Federation) -> bool:
    """Return True if classes have names rather than only numbers."""
    return federation.labels != make_number_names(federation.classes)


def get_network_inputs(federation: Federation, client: str, part: str) -> Examples:
    """Return a client's examples as network input, without random transforms, and their targets."""
    samples = federation.samples(client, part)
    return samples.scale(samples.get_all_stored().clone()).numpy(), samples.labels.numpy()


def get_stored_examples(federation: Federation, client: str, part: str) -> Examples:
    """Return a client's examples as stored, images as uint8, and their targets.

    If uint8 examples are not scaled like images, readers of the file would misinterpret them: they are then
    returned as network input.
    """
    if federation.scale not in (BYTES_TO_PLUS_MINUS_ONE, Scale()):
        return get_network_inputs(federation, client, part)
    samples = federation.samples(client, part)
    return samples.get_all_stored().numpy(), samples.labels.numpy()


def write_npz(path: Path, **arrays: Any) -> None:
    """Write arrays to a compressed ``.npz`` atomically."""
    whole = io.BytesIO()
    np.savez_compressed(whole, **arrays)
    write_atomically(path, whole.getvalue(), durable=False)


def export_pfllib(federation: Federation, folder: Path) -> None:
    """Export a federation for PFLlib: ``train/0.npz`` and ``test/0.npz`` for client 0, …, and ``config.json``."""
    if federation.task != "classification":
        raise DataError(f"PFLlib is for classification, not for {federation.task}; use --to npz")
    held = list(federation.clients)
    numbered = held == [str(i) for i in range(len(held))]
    for number, client in enumerate(held):
        for part in PARTS:
            x, y = get_network_inputs(federation, client, part)
            if "News" in folder.name and x.ndim == 2 and x.dtype == np.int64:
                x = pair_tokens_with_length(x)
            write_npz(folder / part / f"{number}.npz", data={"x": x, "y": y})
    counts = federation.count_labels() + federation.count_labels("test")
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
    if has_named_classes(federation):
        about["class_names"] = list(federation.labels)
    write_json(folder / "config.json", about if numbered else {**about, "client_names": held})


def pair_tokens_with_length(x: NDArray[np.int64]) -> NDArray[Any]:
    """Pair each text's tokens with the token count, as PFLlib expects in a folder whose name contains News."""
    pairs = np.empty((len(x), 2), object)
    for at, row in enumerate(x.tolist()):
        pairs[at, 0], pairs[at, 1] = row, len(row)
    return pairs


def export_leaf(federation: Federation, folder: Path) -> None:
    """Export a federation for LEAF: ``train/all_data_train.json`` and ``test/all_data_test.json``."""
    stored = federation.x.dtype
    is_number = stored.is_floating_point or stored == torch.uint8
    if not is_number and federation.labels != LABELS:
        raise DataError(
            "LEAF's files hold numbers or Shakespeare's text, but no tokens; use --to npz or"
            " --to huggingface"
        )
    for part in PARTS:
        users: dict[str, Any] = {}
        for client in federation.clients:
            x, y = get_network_inputs(federation, client, part)
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
    """Return examples in LEAF's format: text, or numbers with the fewest digits that identify them."""
    if federation.labels == LABELS:
        return ["".join(ALPHABET[i] for i in row) for row in x]
    x = x.reshape(len(x), -1) if federation.shape == FEMNIST_SHAPE else x
    shortest = x.astype(str).astype(np.float64) if x.dtype == np.float32 else x
    return list(shortest.tolist())


def list_leaf_labels(federation: Federation, y: NDArray[Any]) -> list[Any]:
    """Return labels in LEAF's format: characters if the examples are text, else numbers."""
    if federation.labels == LABELS:
        return [ALPHABET[i] for i in y]
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return list(y.tolist())


def export_npz(federation: Federation, folder: Path) -> None:
    """Export a federation as one ``.npz`` per client, named after the client."""
    for client in federation.clients:
        try:
            check_plain_name(client)
        except DataError as error:
            raise DataError(f"{error}; --to huggingface, leaf or pfllib keep any name") from None
    for client in federation.clients:
        arrays: dict[str, Any] = {}
        for part in PARTS:
            x, arrays[f"y_{part}"] = get_stored_examples(federation, client, part)
            arrays |= name_inputs(federation.record, x, f"x_{part}")
        write_npz(folder / f"{client}.npz", **arrays)


def name_inputs(record: Record | None, x: NDArray[Any], key: str) -> dict[str, Any]:
    """Return a client's examples as arrays of an ``.npz``: ``key``, or ``key.NAME`` for each input of a dict."""
    if record is None:
        return {key: x}
    inputs = record.unpack(torch.from_numpy(x), as_stored=True)
    assert isinstance(inputs, dict)
    return {f"{key}.{name}": values.numpy() for name, values in inputs.items()}


def export_huggingface(federation: Federation, folder: Path) -> None:
    """Export a federation for ``datasets.load_dataset``: PNG files for images, otherwise JSON lines."""
    shape, is_bytes = federation.shape, federation.scale == BYTES_TO_PLUS_MINUS_ONE
    is_image = is_bytes and len(shape) == 3 and shape[0] in (1, 3)
    # uint8 examples that are no images would be read as tokens
    get = get_network_inputs if is_bytes and not is_image else get_stored_examples
    for part in PARTS:
        lines: list[dict[str, Any]] = []
        for client in federation.clients:
            x, y = get(federation, client, part)
            targets = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
            for example, label in zip(x, targets.tolist(), strict=True):
                row: dict[str, Any] = {"client": client, "label": label}
                if is_image:
                    name = f"{len(lines):07}.png"
                    write_atomically(folder / part / name, encode_png(example), durable=False)
                    lines.append({"file_name": name, **row})
                else:
                    lines.append({"x": example.tolist(), **row})
        path = folder / (f"{part}/metadata.jsonl" if is_image else f"{part}.jsonl")
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        write_atomically(path, text.encode(), durable=False)


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
