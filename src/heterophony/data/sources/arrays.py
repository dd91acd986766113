"""Users' arrays: ``.npz`` files, MedMNIST, and torch data sets, with the clients that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ...core.errors import DataError
from ...core.files import UnsuitableFileError, make_natural_sort_key, open_regular_file
from ...core.records import Record
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ...core.scores import TaskName
from ..packing import move_channels_first, pack_examples
from ..source import (
    CLIENT,
    Source,
    decide_classes,
    name_users,
    number_clients,
    number_labels,
    parse_targets,
)
from .reading import list_files, load_npz, summarise_error


@dataclass(frozen=True)
class Request:
    """How to read a user's data: ``data.classes``, ``data.task``, ``data.users`` and ``data.tokenizer``."""

    classes: int | Sequence[str] | None = None
    task: TaskName = "classification"
    users: str | None = None  # the column or array that names each example's client
    tokenizer: str | None = None  # tokenizer of texts, by name or folder; None: tokens are bytes


@dataclass(frozen=True)
class NamedClients:
    """The clients that a data set itself names, such as its users or domains."""

    names: tuple[str, ...]
    has_split: bool = False  # whether clients have their own test examples


NO_CLIENTS = NamedClients(())


Arrays = dict[str, NDArray[Any]]


def read_npz(
    path: Path,
    shape: tuple[int, ...] | None = None,
    task: TaskName = "classification",
    users: str | None = None,
) -> Source:
    """Read an ``.npz`` with x and y, or with x_train, y_train, x_test and y_test.

    Examples with several arrays have ``x.NAME`` in place of x, as in ``x.image`` and ``x.table``.
    ``client``, if it exists, has the name of each example's client; ``users`` is another name for
    that array. Numbers are not rearranged if an example already has the given shape.
    """
    arrays, record = load_npz_arrays(path, users or CLIENT)
    try:
        x = np.concatenate([arrays[k] for k in ("x", "x_train", "x_test") if k in arrays])
        y = np.concatenate([arrays[k] for k in ("y", "y_train", "y_test") if k in arrays])
    except ValueError:
        raise DataError(f"{path}: training and test examples have different shapes") from None
    official = len(arrays["y_train"]) if "x_test" in arrays else None
    source = wrap_arrays(x, y, path.stem, official, shape, task, path)
    source = source if record is None else replace(source, x=x, record=record)
    clients = join_client_names(arrays, path, users)
    return source if clients is None else name_users(source, clients, str(path))


def read_clients_of_npz(path: Path, users: str | None = None) -> tuple[str, ...]:
    """Return the names of the clients in an ``.npz``; empty if the file does not name each example's client."""
    wanted = list_name_arrays(users or CLIENT)
    try:
        arrays = load_npz(path, wanted.__contains__)
        return number_clients((c for names in arrays.values() for c in names.tolist()), "")[1]
    except Exception:  # reading the examples will report what is wrong with the file
        return ()


def list_name_arrays(name: str) -> tuple[str, str, str]:
    """Return the keys under which an ``.npz`` can hold client names: for all, training or test examples."""
    return (name, f"{name}_train", f"{name}_test")


def join_client_names(arrays: Arrays, path: Path, users: str | None) -> list[Any] | None:
    """Return the client name of every example in an ``.npz``; None if it has no names."""
    name = users or CLIENT
    parts = [k[1:] for k in ("x", "x_train", "x_test") if k in arrays]
    if not any(f"{name}{part}" in arrays for part in parts):
        if users is None:
            return None
        raise DataError(f"data.users: {path} has no array '{name}{parts[0]}'")
    names: list[Any] = []
    for part in parts:
        own = arrays.get(f"{name}{part}", np.empty(0))
        if own.shape != arrays[f"x{part}"].shape[:1]:
            raise DataError(
                f"{path}: {name}{part} must have one name per example:"
                f" {len(arrays[f'x{part}'])} examples, {name}{part} {own.shape}"
            )
        names += own.tolist()
    return names


MEDMNIST_PARTS = ("train", "val", "test")


def is_medmnist(path: Path) -> bool:
    """Return True if an ``.npz`` has the arrays of MedMNIST."""
    return path.suffix == ".npz" and {"train_images", "test_images"} <= list_arrays(path)


def list_arrays(path: Path) -> set[str]:
    """List the names of the arrays in an ``.npz``; return none if it cannot be read."""
    try:
        with open_regular_file(path) as opened, ZipFile(opened) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, BadZipFile):  # reading the arrays will report what is wrong
        return set()


def read_medmnist(path: Path, request: Request) -> Source:
    """Read a MedMNIST ``.npz``; its validation images count as training images."""
    try:
        arrays = load_npz(path, lambda name: name.startswith(MEDMNIST_PARTS))
    except Exception as error:  # numpy and zipfile raise almost anything for a damaged file
        raise DataError(f"data.name: cannot read {path}: {summarise_error(error)}") from None
    parts = [part for part in MEDMNIST_PARTS if f"{part}_images" in arrays]
    xs = [arrays[f"{part}_images"] for part in parts]
    ys = [arrays.get(f"{part}_labels", np.empty(0)) for part in parts]
    for part, x, y in zip(parts, xs, ys, strict=True):
        if x.shape[:1] != y.shape[:1] or (x.shape[1:], y.shape[1:]) != (
            xs[0].shape[1:],
            ys[0].shape[1:],
        ):
            raise DataError(
                f"{path}: {part}_images {x.shape} and {part}_labels {y.shape} do not match each other"
                " or the training images"
            )
    y = np.concatenate(ys)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    official = sum(len(y) for part, y in zip(parts, ys, strict=True) if part != "test")
    source = wrap_arrays(np.concatenate(xs), y, path.stem, official, task=request.task, path=path)
    return decide_classes(source, request.classes)


def load_npz_arrays(path: Path, users: str = CLIENT) -> tuple[Arrays, Record | None]:
    """Load and check an ``.npz``'s arrays of examples and labels.

    Examples with several arrays are packed; the record describes how.
    """
    wanted = list_name_arrays(users)
    try:
        arrays = load_npz(path, lambda name: name.startswith(("x", "y")) or name in wanted)
    except Exception as error:  # numpy and zipfile raise almost anything for a damaged file
        missing = isinstance(error, FileNotFoundError)
        reason = "no such file" if missing else summarise_error(error)
        if isinstance(error, UnsuitableFileError):
            reason = str(error.strerror)
        raise DataError(f"data.name: cannot read {path}: {reason}") from None
    record = pack_inputs(arrays, path)
    xs = [k[1:] for k in ("x", "x_train", "x_test") if k in arrays]
    ys = [k[1:] for k in ("y", "y_train", "y_test") if k in arrays]
    if xs != ys or xs not in ([""], ["_train"], ["_train", "_test"]):
        raise DataError(
            f"{path} must hold x and y, or x_train, y_train, x_test, y_test; it holds: "
            f"{', '.join(sorted(list_arrays(path))) or 'no arrays'}"
        )
    for part in xs:
        x, y = arrays[f"x{part}"], arrays[f"y{part}"]
        if x.shape[:1] != y.shape[:1]:
            raise DataError(f"{path}: x{part} has {len(x)} examples but {len(y)} labels")
    return arrays, record


def pack_inputs(arrays: Arrays, path: Path) -> Record | None:
    """Replace the arrays ``x.image``, ``x.table``, … by packed rows ``x``; return their record, or None."""
    inputs = dict[str, dict[str, NDArray[Any]]]()
    for key in [k for k in arrays if "." in k]:
        part, _, name = key.partition(".")
        inputs.setdefault(part, {})[name] = arrays.pop(key)
    if not inputs:
        return None
    parts = [k for k in ("x", "x_train", "x_test") if k in inputs]
    counts = [len(arrays.get(f"y{part[1:]}", ())) for part in parts]
    if len(parts) < len(inputs) or arrays.keys() & inputs.keys():
        raise DataError(
            f"{path}: examples of several arrays are x.NAME, or x_train.NAME and x_test.NAME, and"
            f" nothing else; it holds: {', '.join(sorted({*arrays, *inputs}))}"
        )
    try:
        rows, record = pack_examples([inputs[part] for part in parts], counts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    arrays |= dict(zip(parts, np.split(rows, np.cumsum(counts)[:-1]), strict=True))
    return record


def wrap_arrays(
    x: NDArray[np.generic],
    y: NDArray[np.generic],
    name: str = "arrays",
    official: int | None = None,
    shape: tuple[int, ...] | None = None,
    task: TaskName = "classification",
    path: Path | None = None,
) -> Source:
    """Make a source from arrays: uint8 arrays are images (N×H×W or N×H×W×C), others are used unchanged.

    Other arrays N×H×W×C with up to 4 channels are images too, unless examples must have ``shape``.
    Errors about labels name the ``path``, if there is one.
    """
    x, y = np.asarray(x), np.asarray(y)
    y, names = parse_targets(y, task, name if path is None else str(path))
    if x.dtype.kind in "US" or (x.dtype == object and x.size and isinstance(x.flat[0], str)):
        raise DataError(
            f"{name}: the examples are texts; pass a frame with the columns text and label"
        )
    if x.ndim < 2:
        raise DataError(
            f"{name}: examples must have at least one dimension besides the first (examples)"
        )
    if 0 in x.shape[1:]:
        shape_text = "×".join(map(str, x.shape))
        raise DataError(f"{path or name}: x is {shape_text}: its examples have no values")
    if x.dtype == np.uint8:
        x = move_channels_first(x)
    elif np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
        if has_channels_last(x.shape[1:]) and x.shape[1:] != shape:
            x = x.transpose(0, 3, 1, 2)
    elif np.issubdtype(x.dtype, np.integer):
        x = x.astype(np.int64)
    else:
        raise DataError(
            f"{name}: examples of type {x.dtype} cannot be used; convert them to bytes or numbers"
        )
    if task == "sequence" and x.size and np.issubdtype(x.dtype, np.integer):
        names = max(names, number_labels(x, name), key=len)  # a token may occur only in x
    scale = BYTES_TO_PLUS_MINUS_ONE if x.dtype == np.uint8 else Scale()
    return Source(name, np.ascontiguousarray(x), y, scale, names, official, task=task)


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Return True if a float example with this shape is an image H×W×C."""
    if len(shape) != 3 or shape[2] > 4:
        return False
    return min(shape[:2]) > 4 or shape[0] == shape[1] != shape[2]


def read_npz_per_client(folder: Path, task: TaskName = "classification") -> Source:
    """Read a folder with one ``.npz`` per client, named after the client."""
    paths = sorted(list_files(folder, ".npz"), key=lambda p: make_natural_sort_key(p.stem))
    loaded = [load_npz_arrays(p) for p in paths]
    files, record = [arrays for arrays, _ in loaded], loaded[0][1]
    for path, (_, own) in zip(paths, loaded, strict=True):
        if own != record:
            raise DataError(
                f"{path}: its examples have different arrays from those of {paths[0].name}"
            )
    if len({"x_test" in f for f in files}) > 1:
        raise DataError(f"{folder}: either all clients have x_test and y_test, or none")
    first, first_y = (files[0][k if k in files[0] else f"{k}_train"] for k in ("x", "y"))
    parts = []
    for part in ("", "_train", "_test"):
        for user, (path, file) in enumerate(zip(paths, files, strict=True)):
            if (x := file.get(f"x{part}")) is None:
                continue
            y = file[f"y{part}"]
            same = (x.shape[1:], x.dtype) == (first.shape[1:], first.dtype)
            if not same or x.ndim < 2 or y.shape[1:] != first_y.shape[1:]:
                raise DataError(
                    f"{path}: x{part} {x.dtype} {x.shape} with y{part} {y.shape} does not match"
                    f" {paths[0].name}, whose examples are {first.dtype} {first.shape[1:]}"
                )
            parse_targets(y, task, str(path))  # raises an error with the file's name
            parts.append((part, user, x, y))
    x, y = (np.concatenate([p[i] for p in parts]) for i in (2, 3))
    source = wrap_arrays(x, y, folder.name, task=task)
    users = np.concatenate([np.full(len(y), user) for _, user, _, y in parts])
    official = sum(len(y) for part, _, _, y in parts if part != "_test")
    return replace(
        source if record is None else replace(source, x=x, record=record),
        official=official if official < len(y) else None,
        users=users.astype(np.int64),
        user_names=tuple(p.stem for p in paths),
    )


ARRAYS = (np.ndarray, torch.Tensor)


def unpack_datasets(data: Any, task: TaskName = "classification") -> Any:
    """Convert a ``Dataset`` to (x, y), and a pair of them to (x_train, y_train, x_test, y_test).

    A ``DataLoader`` is replaced by its data set. Anything else is returned unchanged.
    """
    if isinstance(data, dict) and data.keys() == {"train", "test"}:
        data = (data["train"], data["test"])
    if isinstance(data, dict) and data.keys() == {"x", "y"}:
        data = (data["x"], data["y"])
    if isinstance(data, tuple | list) and len(data) == 2:
        data = tuple(d.dataset if isinstance(d, DataLoader) else d for d in data)
        if all(type(d) is tuple and len(d) == 2 and isinstance(d[1], ARRAYS) for d in data):
            return (*data[0], *data[1])  # (x_train, y_train), (x_test, y_test), as from Keras
    data = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(data, Dataset):
        return stack_examples(data, task)
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(d, Dataset) for d in data):
        return (*stack_examples(data[0], task), *stack_examples(data[1], task))
    return data


def to_array(value: Any) -> NDArray[Any]:
    """Convert a value to a NumPy array, even a tensor that requires a gradient or is on a GPU."""
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def stack_examples(data: Any, task: TaskName) -> tuple[NDArray[Any], NDArray[Any]]:
    """Stack all examples and targets of a ``Dataset``, in order."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DataError(
            f"{type(data).__name__} has no length; pass a Dataset with a length, not a stream"
        )
    xs, ys = [], []
    for i in range(len(data)):
        try:
            x, y = split_example(data[i])
            xs.append(x if isinstance(x, Mapping | tuple) else to_array(x))
            ys.append(parse_label(y) if task == "classification" else to_array(y))
        except OSError as error:
            raise DataError(f"{type(data).__name__}: cannot read example {i}: {error}") from None
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{type(data).__name__}: example {i} is not a pair of an array and an integer label ({error})"
            ) from None
        if describe_example(xs[i]) != describe_example(xs[0]):
            raise DataError(
                f"{type(data).__name__}: example {i} is {describe_example(xs[i])},"
                f" example 0 is {describe_example(xs[0])}"
            )
    if not xs:
        raise DataError(f"{type(data).__name__}: there are no examples")
    return stack_parts(xs), np.array(ys)


def split_example(item: Any) -> tuple[Any, Any]:
    """Split an item of a ``Dataset``, a pair or a dict with ``labels``, into example and label."""
    if not isinstance(item, Mapping):
        x, y = item
        return x, y
    label = next((k for k in ("labels", "label") if k in item), None)
    if label is None:
        raise KeyError("a dict needs 'labels'")
    return {k: v for k, v in item.items() if k != label}, item[label]


def describe_example(x: Any) -> str:
    """Describe the type and shape that all examples of a ``Dataset`` must share; sequence lengths may differ."""
    if isinstance(x, Mapping):
        return f"a dict of {', '.join(x)}"
    if isinstance(x, tuple):
        return f"a tuple of {len(x)}"
    return f"{x.dtype} {x.shape}" if x.ndim != 1 or x.dtype.kind not in "iu" else f"{x.dtype} (…)"


def stack_parts(xs: Sequence[Any]) -> Any:
    """Stack the examples of a ``Dataset``: each array of a dict or tuple separately; sequences stay in a list."""
    if isinstance(xs[0], Mapping):
        return {k: stack_parts([np.asarray(x[k]) for x in xs]) for k in xs[0]}
    if isinstance(xs[0], tuple):
        return tuple(stack_parts([np.asarray(x[i]) for x in xs]) for i in range(len(xs[0])))
    return np.stack(xs) if len({x.shape for x in xs}) == 1 else list(xs)


def parse_label(label: Any) -> int:
    """Convert a label (a number, NumPy number or tensor) to int; raise ValueError for fractions."""
    if (number := int(label)) != label:
        raise ValueError(f"label {label}")
    return number
