"""Folders of LEAF for any task: numbers, names of images, or text of which the next character is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import sort_names
from ...core.scores import TaskName
from ..source import Source, check_client_name, decide_classes
from .arrays import wrap_arrays
from .folder import IMAGE_SUFFIXES, decode_image, read_image_file
from .leaf_files import KEYS, UserExamples, list_leaf_files, load_users
from .request import NamedClients, Request
from .shakespeare import build_source, parse_all_windows, split_in_order

FEMNIST_PIXELS, FEMNIST_SHAPE = 784, (1, 28, 28)
IMAGE_FOLDERS = ("raw/img_align_celeba", "img_align_celeba", ".")  # below the folder or beside it
IMAGE_SIDE = 84  # LEAF's own models resize CelebA so
HEAD_BYTES = 1 << 16

Users = Mapping[str, UserExamples]


def is_leaf(path: Path) -> bool:
    """Return True if a folder has JSON files with LEAF's keys."""
    train, test = list_leaf_files(path)
    return any(has_leaf_keys(p) for p in (train + test)[:1])


def has_leaf_keys(path: Path) -> bool:
    """Return True if a JSON file names one of LEAF's keys at its beginning."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return any(f'"{key}"'.encode() in head for key in KEYS)


def list_clients(path: Path, users: str | None = None) -> NamedClients:
    """Return the users; those with training and test examples if there are any such."""
    train, test = (load_users(files) for files in list_leaf_files(path))
    both = [u for u, held in train.items() if held.y and u in test and test[u].y]
    if both:
        return NamedClients(tuple(sort_names(both)), has_split=True)
    return NamedClients(tuple(sort_names(u for u, held in (train | test).items() if held.y)))


def read_leaf(path: Path, request: Request) -> Source:
    """Read the examples of all users; if there are folders train and test, the split is kept."""
    files, test_files = list_leaf_files(path)
    train, test = load_users(files), load_users(test_files)
    everything = [held for part in (train, test) for held in part.values() if held.y]
    if not everything:
        raise DataError(f"{path} has no user with examples")
    if is_next_character(everything[0]):
        windows = [parse_all_windows(part) for part in (train, test)]
        source = build_source(path, *(windows if test_files else split_in_order(windows[0])))
        return replace(source, name=path.name)
    names = sort_names(check_client_name(u, str(path)) for u in train.keys() | test.keys())
    parts = [(i, part[u]) for part in (train, test) for i, u in enumerate(names) if u in part]
    parts = [(i, held) for i, held in parts if held.y]
    x = np.concatenate([parse_examples(path, names[i], held) for i, held in parts])
    y = np.concatenate([parse_labels(names[i], held, request.task) for i, held in parts])
    x = x.reshape(-1, *FEMNIST_SHAPE) if x.shape[1:] == (FEMNIST_PIXELS,) else x
    source = wrap_arrays(x, y, path.name, shape=x.shape[1:], task=request.task, path=path)
    if request.classes is not None:
        source = decide_classes(source, request.classes)
    return replace(
        source,
        official=sum(len(held.y) for held in train.values()) if test_files else None,
        users=np.concatenate([np.full(len(held.y), i, np.int64) for i, held in parts]),
        user_names=tuple(names),
    )


def is_next_character(held: UserExamples) -> bool:
    """Return True if examples are texts, and labels are single characters."""
    return all(isinstance(v, str) for v in (held.x[0], held.y[0])) and len(held.y[0]) == 1


def parse_examples(path: Path, user: str, held: UserExamples) -> NDArray[Any]:
    """Convert one user's examples: lists of numbers, or names of images."""
    where = f"{held.file}: user '{user}'"
    if all(isinstance(v, str) for v in held.x):
        return read_named_images(path, held.x, where)
    try:
        x = np.array(held.x, np.float32)
    except (ValueError, TypeError):
        raise DataError(
            f"{where}: x must be lists of numbers of one length, names of images, or strings with"
            " the next character as y; store other text as numbers in an .npz"
        ) from None
    return x[:, None] if x.ndim == 1 else x


def read_named_images(path: Path, names: Sequence[str], where: str) -> NDArray[np.uint8]:
    """Read the images that CelebA's examples name."""
    if any(Path(n).suffix.lower() not in IMAGE_SUFFIXES or Path(n).name != n for n in names):
        raise DataError(
            f"{where}: x is text, but neither names of images nor strings with the next character as"
            " y; store it as numbers in an .npz"
        )
    folders = [base / f for base in (path, path.parent) for f in IMAGE_FOLDERS]
    at = next((f for f in folders if (f / names[0]).is_file()), None)
    if at is None:
        raise DataError(f"{where}: there is no {names[0]}; put the images into {folders[0]}")
    images = [decode_image(read_image_file(at / n), at / n, side=IMAGE_SIDE) for n in names]
    return np.stack(images)


def parse_labels(user: str, held: UserExamples, task: TaskName) -> NDArray[Any]:
    """Convert one user's labels; whole numbers may be written as 3.0."""
    try:
        y = np.array(held.y)
        if not np.issubdtype(y.dtype, np.number):
            raise ValueError
    except ValueError:
        raise DataError(f"{held.file}: user '{user}': y must be numbers") from None
    whole = task in ("classification", "sequence") and y.dtype.kind == "f"
    return y.astype(np.int64) if whole and (y == np.floor(y)).all() else y
