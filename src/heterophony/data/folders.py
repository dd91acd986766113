"""Read local data: each client's own folder or ``.npz`` file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError, suggest_or_list
from ..core.files import sort_names
from ..core.samples import BYTES_TO_PLUS_MINUS_ONE
from .federation import Federation
from .partitioning import split_into_clients
from .source import Source, check_plain_name, parse_class_names
from .sources.arrays import read_npz
from .sources.folder import IMAGES, decode_image, read_image_file, read_image_header

OWN_DATA = "own"  # the value of data.name


@dataclass(frozen=True)
class ExampleSpec:
    """The example shape and the classes that all clients have in common, from the configuration."""

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
    """Find each named client's folder or ``.npz`` of local data; without names, that of every client.

    If ``path`` itself holds the data of a single client, this client has the name ``alone``.
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
    """Return True if a path holds the local data of one client rather than of several."""
    return path.suffix == ".npz" or any(IMAGES.list_in(p) for p in (path, path / "train"))


def list_client_paths(path: Path) -> dict[str, Path]:
    """List the folders and ``.npz`` files below a path, one per client, by name."""
    inside = path.iterdir() if path.is_dir() else ()
    within = sorted(p for p in inside if not p.name.startswith("."))
    files = [p for p in within if p.suffix == ".npz"]
    folders = [p for p in within if p.is_dir() and p not in files]
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
    """Read these clients' local data; without a test set, split each client's data at random."""
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
    """Read one client's local data, and check its shape and classes."""
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
    """Read one client's local ``.npz``, whose labels are indices into ``data.classes``."""
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
    """Read images of exactly this shape; grey images are converted if the shape is for colour images."""
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
