"""What every client brings itself: where it lies, and that it is of the kind the run speaks of.

A client's name is that of its folder or file. All that is drawn for it depends on the seed and
that name alone: a device that holds one client has the bits of a simulation that holds them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError, suggest_or_list
from ..core.names import NAME_PATTERN, NAME_RULE
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from .federation import Federation
from .partitioning import split_into_clients
from .source import Source
from .sources.arrays import make_natural_sort_key, read_npz
from .sources.folder import list_images, list_train_and_test_images
from .sources.images import decode_image, read_image_header

OWN_DATA = "own"  # in a configuration, the name of data that every client has of its own


@dataclass(frozen=True)
class ExampleSpec:
    """What all clients' examples are: nobody who sees one client alone could tell."""

    shape: tuple[int, ...]
    labels: tuple[str, ...]

    @classmethod
    def from_config(cls, shape: list[int] | None, classes: list[str] | int | None) -> ExampleSpec:
        """From a configuration; says what is missing or wrong in it."""
        if classes is None:
            raise ConfigError(
                "data.classes: missing; name the classes of the clients' own data in their order,"
                " or say how many there are"
            )
        if shape is None:
            raise ConfigError(
                "data.shape: missing; say what one example of the clients' own data is, as in"
                " [3, 32, 32] (channels, height, width) or [561]"
            )
        if not shape or not all(type(n) is int and n > 0 for n in shape):
            raise ConfigError(f"data.shape: must be whole numbers above 0, not {shape!r}")
        names = [str(i) for i in range(classes)] if isinstance(classes, int) else classes
        if not names or not all(isinstance(n, str) and n for n in names):
            raise ConfigError(f"data.classes: must be names or a number, not {classes!r}")
        if len(set(names)) < len(names):
            raise ConfigError("data.classes: a name is there twice")
        return cls(tuple(shape), tuple(names))


# Where it lies ------------------------------------------------------------------------------


def find_client_data(
    path: Path, names: Sequence[str] = (), alone: str | None = None
) -> dict[str, Path]:
    """Where the data of these clients lie, or of all there are, by name.

    ``alone`` is the name of a single client, whose data lie in the folder or file itself.
    """
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"there is no {path}; give a folder with data, or an .npz file")
    if is_single_client(path):
        if alone is None or len(names) > 1:
            raise DataError(
                f"{path} holds the data of one client;"
                " give a folder with one folder or .npz file per client"
            )
        return {check_client_name(names[0] if names else alone): path}
    found = list_client_paths(path)
    for name in names:
        if name not in found:
            raise DataError(
                f"{path} holds no data of client '{name}'{suggest_or_list(name, found)}"
            )
    return {check_client_name(n): found[n] for n in sort_client_names(names or found)}


def is_single_client(path: Path) -> bool:
    """Are these the data of one client?"""
    return path.suffix == ".npz" or any(list_images(p) for p in (path, path / "train"))


def list_client_paths(path: Path) -> dict[str, Path]:
    """One folder or ``.npz`` file per client, by name."""
    within = sorted(path.iterdir()) if path.is_dir() else []
    files = [p for p in within if p.suffix == ".npz"]
    folders = [p for p in within if p.is_dir() and p not in files and p.name[0] != "."]
    found = {p.stem: p for p in files}
    for p in folders:
        if p.name in found:
            raise DataError(f"{p} and {found[p.name]} are data of one client; which?")
        found[p.name] = p
    if not found:
        raise DataError(
            f"{path} holds no data: neither folders of images, one per class,"
            " nor folders or .npz files, one per client"
        )
    return found


def check_client_name(client: str) -> str:
    """A client's name, if it can be one."""
    if not NAME_PATTERN.fullmatch(client):
        raise DataError(f"'{client}' cannot be a client's name; {NAME_RULE}")
    return client


def sort_client_names(names: Iterable[str]) -> list[str]:
    """Clients in the order of a run: as people count."""
    return sorted(names, key=lambda name: (make_natural_sort_key(name), name))


# What it is ---------------------------------------------------------------------------------


def load_own_federation(
    paths: Mapping[str, Path],
    kind: ExampleSpec,
    train_fraction: float,
    seed: int,
    validation_fraction: float = 0.0,
) -> Federation:
    """The clients whose data lie there; a test part of their own, or else a random one."""
    found = {c: read_client_data(path, kind) for c, path in paths.items()}
    first, types = next(iter(found)), {c: s.x.dtype for c, s in found.items()}
    for client, dtype in types.items():
        if dtype != types[first]:
            raise DataError(
                f"client {client} has examples of type {dtype}, client {first} of {types[first]}"
            )
    x, y = (np.concatenate([getattr(s, k) for s in found.values()]) for k in ("x", "y"))
    made = split_into_clients(
        Source(OWN_DATA, x, y, found[first].scale, kind.labels),
        [len(s.y) for s in found.values()],
        [s.official for s in found.values()],
        train_fraction,
        seed,
        validation_fraction,
        list(found),
    )
    for client, rows in made.validation.items():
        if not len(rows):
            raise DataError(
                f"client {client} has one example to train, and none to hold out;"
                " leave data.validation_fraction out"
            )
    return made


def read_client_data(path: Path, kind: ExampleSpec) -> Source:
    """One client's data, of this kind or refused."""
    if path.suffix == ".npz":
        return read_client_npz(path, kind)
    train, test = list_train_and_test_images(path)
    if not train:
        raise DataError(f"{path} holds no folders of images, one per class")
    files = [*train, *test]
    for file in files:
        if file.parent.name not in kind.labels:
            raise DataError(
                f"{file.parent}: '{file.parent.name}' is not among data.classes"
                f"{suggest_or_list(file.parent.name, kind.labels)}"
            )
    y = np.array([kind.labels.index(f.parent.name) for f in files], np.int64)
    official = len(train) if test else None
    return Source(
        str(path),
        read_images_of_shape(files, kind.shape),
        y,
        BYTES_TO_PLUS_MINUS_ONE,
        kind.labels,
        official,
    )


def read_client_npz(path: Path, kind: ExampleSpec) -> Source:
    """Of an ``.npz``: its labels are positions among the classes."""
    found = read_npz(path)
    if found.x.shape[1:] != kind.shape:
        raise DataError(
            f"{path} has examples of {format_shape(found.x.shape[1:])};"
            f" those of the run are {format_shape(kind.shape)} (data.shape)"
        )
    if found.y.max() >= len(kind.labels):
        raise DataError(
            f"{path} has label {found.y.max()}; data.classes are {len(kind.labels)}, counted from 0"
        )
    return Source(str(path), found.x, found.y, found.scale, kind.labels, found.official)


def read_images_of_shape(files: list[Path], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Images as bytes, all of that shape; grey ones may be among those in colour."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"{files[0]} is an image; data.shape is {format_shape(shape)},"
            " not 1 or 3 channels, height and width"
        )
    channels, high, wide = shape
    x = np.empty((len(files), *shape), np.uint8)
    for at, file in enumerate(files):
        size, grey = read_image_header(file)
        if size != (wide, high) or (channels == 1 and not grey):
            has = format_shape((1 if grey else 3, size[1], size[0]))
            raise DataError(
                f"{file} is {has}; examples of the run are {format_shape(shape)} (data.shape)"
            )
        x[at] = decode_image(file.read_bytes(), file, channels == 1)
    return x


def format_shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))
