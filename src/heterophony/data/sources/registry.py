"""The named data sets, and how to read or download one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from ...core.errors import ConfigError, DataError, match_name, suggest_or_list
from ...core.scores import TaskName
from ...core.training import Training
from ..source import Source
from . import builtin, client_sets, huggingface, image_sets, leaf
from .arrays import NO_CLIENTS, NamedClients, Request
from .download import DatasetFiles, download_to_cache
from .formats import CONVERSIONS, find_format, make_unknown_error
from .texts import TEXT_LENGTH


@dataclass(frozen=True)
class DatasetSize:
    """The published size of a named data set."""

    examples: int
    shape: tuple[int, ...]
    classes: int


GREY_SHAPE, COLOUR_SHAPE = (1, 28, 28), (3, 32, 32)


@dataclass(frozen=True)
class NamedDataset:
    """A data set with a name: its description, its reader and its files."""

    about: str
    size: DatasetSize
    read: Callable[..., Source]  # called with the path of the files, or None
    files: DatasetFiles | None = None  # None: the data are part of an installed package
    training: Training = Training()  # defaults, if the configuration does not set training
    clients: NamedClients = NO_CLIENTS  # names of its domains or subjects, if there are only a few
    partial: bool = False  # True: the files usually hold only some of its users
    accepts: tuple[str, ...] = ()  # which settings of ``Request`` apply

    @property
    def available(self) -> bool:
        """Whether the data set can be read without a download."""
        return self.files is None or self.files.find_local() is not None


def read_source(
    name: str,
    path: str | None = None,
    classes: int | Sequence[str] | None = None,
    task: TaskName = "classification",
    users: str | None = None,
    tokenizer: str | None = None,
) -> Source:
    """Read the named data set; ``name`` may also be the path of data in one of the ``FORMATS``.

    ``classes`` and ``task`` apply to users' data: named sets are for classification. ``users`` is
    the column or array that names each example's client, and ``tokenizer`` reads texts.
    """
    name, request = find_dataset_name(name), Request(classes, task, users, tokenizer)
    check_request(name, request)
    if name in SOURCES:
        known = SOURCES[name]
        read = known.read if tokenizer is None else partial(known.read, tokenizer=tokenizer)
        source = read(Path(path).expanduser() if path else None)
        remark = "" if known.partial or tokenizer else compare_with_published(source, known.size)
        return replace(source, remark=source.remark or remark)
    at = Path(name).expanduser()
    at = at if at.name.strip(".") else at.resolve()  # "." has no name
    if (known_format := find_format(at)) is not None:
        return known_format.read(at, request)
    if at.exists():
        raise make_unknown_error(at)
    if at.name != name or at.suffix.lower() in (".parquet", *CONVERSIONS):  # a path
        raise DataError(f"data.name: there is no {name}")
    raise DataError(
        f"data.name: '{name}' is neither a data set nor the path of a .npz file, a .csv file or a"
        f" folder{suggest_or_list(name, SOURCES)}"
    )


def compare_with_published(source: Source, size: DatasetSize) -> str:
    """Describe in one line how a data set differs from the published one; empty if it does not differ."""
    found, shape = len(np.unique(source.y)), tuple(source.x.shape[1:])
    differences = [
        f"{count:,} {what} instead of {published:,}"
        for what, count, published in (
            ("examples", len(source.y), size.examples),
            ("classes", found, size.classes),
        )
        if count != published and published
    ]
    if shape != size.shape:
        shapes = ["×".join(map(str, s)) for s in (shape, size.shape)]
        differences.append(f"examples of {shapes[0]} instead of {shapes[1]}")
    return f"{source.name} is not as published: {', '.join(differences)}" if differences else ""


SETTINGS_REFUSED = {
    "classes": "has its own classes",
    "task": "is for classification",
    "users": "has no such column",
    "tokenizer": "has no texts",
}


def check_request(name: str, request: Request) -> None:
    """Raise ConfigError for settings of ``[data]`` that this data set does not support.

    A missing path is reported later.
    """
    known_format = None if name in SOURCES else find_format(Path(name).expanduser())
    if known_format is None and name not in SOURCES:
        return
    accepted = known_format.accepts if known_format else SOURCES[name].accepts
    for f in fields(Request):
        if getattr(request, f.name) != f.default and f.name not in accepted:
            raise ConfigError(f"data.{f.name}: {name} {SETTINGS_REFUSED[f.name]}; leave it out")


def find_dataset_name(name: str) -> str:
    """Return the name of a registered data set, as in ``cifar10`` for ``CIFAR-10``; paths are unchanged."""
    is_path = name not in SOURCES and Path(name).expanduser().exists()
    return name if is_path else match_name(SOURCES, name) or name


def find_named_clients(name: str, users: str | None = None) -> NamedClients:
    """Return the clients that a data set names: its domains or subjects, or the clients in users' files.

    ``users`` is the column or array with the names. The result is empty if the data do not name the
    client of each example, or do not exist.
    """
    at = Path(name).expanduser()
    is_there = at.exists() or name.startswith(huggingface.HF_PREFIX)
    if name in SOURCES:
        return SOURCES[name].clients
    known_format = find_format(at) if is_there else None
    return NO_CLIENTS if known_format is None else known_format.list_clients(at, users)


def choose_default_training(name: str, shape: tuple[int, ...] | None = None) -> Training:
    """Return the default settings of local SGD for a data set.

    ``shape`` is its examples' shape, if known, which tells it from a user's file with the same name.
    """
    known = SOURCES.get(name)
    return Training() if known is None or shape not in (None, known.size.shape) else known.training


def fetch_dataset(name: str) -> Path:
    """Download a data set into the cache, unless it is on this machine; return its path."""
    name = find_dataset_name(name)
    if name.startswith(huggingface.HF_PREFIX):
        return huggingface.fetch_huggingface(name)
    files = SOURCES[name].files if name in SOURCES else None
    if files is None or not files.remote_files:
        known = ", ".join(sorted(k for k, v in SOURCES.items() if v.files and v.files.remote_files))
        how = f"; {files.hint}" if files else f"; these can: {known}"
        raise DataError(f"'{name}' cannot be downloaded{how}")
    return files.find_local() or download_to_cache(files)


def make_emnist_entry(name: str, split: str) -> NamedDataset:
    """Make the registry entry of an EMNIST split."""
    labels, count, what = image_sets.EMNIST_SPLITS[split]
    spaced = f"{count:,}".replace(",", " ")
    about = f"{spaced} {what} (EMNIST, {split}), 28x28 grey, {len(labels)} classes"
    size = DatasetSize(count, GREY_SHAPE, len(labels))
    return NamedDataset(
        about,
        size,
        partial(image_sets.read_emnist, split=split, name=name),
        image_sets.make_emnist_files(split),
    )


def make_medmnist_entry(name: str) -> NamedDataset:
    """Make the registry entry of a MedMNIST data set."""
    channels, classes, count, _ = client_sets.MEDMNIST[name]
    spaced, colour = f"{count:,}".replace(",", " "), {1: "grey", 3: "colour"}[channels]
    return NamedDataset(
        f"{spaced} medical images (MedMNIST), 28x28 {colour}, {classes} classes",
        DatasetSize(count, (channels, 28, 28), classes),
        partial(client_sets.read_medmnist_set, name=name),
        client_sets.make_medmnist_files(name),
    )


def make_small_entry(name: str, full: NamedDataset) -> NamedDataset:
    """Make the registry entry of an image data set's small version."""
    channels, *sides = full.size.shape
    height, width = (side // 2 for side in sides)
    classes = full.size.classes
    drawn = min(full.size.examples, (builtin.TRAIN_PER_CLASS + builtin.TEST_PER_CLASS) * classes)
    count = builtin.LISTED_IMAGES.get(name, drawn)
    size = DatasetSize(count, (channels, height, width), classes)
    spaced, original = f"{count:,}".replace(",", " "), name.removesuffix("-small")
    about = f"{spaced} images of {original}, {height}x{width}"
    return replace(full, about=about, size=size, read=partial(builtin.read_small, full.read, name))


SOURCES = {
    "digits": NamedDataset(
        "1,797 handwritten digits, 8x8 grey, 10 classes; embedded",
        DatasetSize(1797, (1, 8, 8), 10),
        builtin.read_digits,
        # chosen on validation examples, see docs/reference/configuration.md
        training=Training(batch=10, lr=0.1, momentum=0.0),
    ),
    "photos": NamedDataset(
        "400 patches of two photographs, 32x32 colour, 10 classes; embedded",
        DatasetSize(400, COLOUR_SHAPE, 10),
        builtin.read_photos,
    ),
    "fmnist": NamedDataset(
        "70,000 articles of clothing (Fashion-MNIST), 28x28 grey, 10 classes",
        DatasetSize(70_000, GREY_SHAPE, 10),
        image_sets.read_fmnist,
        image_sets.FMNIST_FILES,
    ),
    "mnist": NamedDataset(
        "70,000 handwritten digits (MNIST), 28x28 grey, 10 classes",
        DatasetSize(70_000, GREY_SHAPE, 10),
        image_sets.read_mnist,
        image_sets.MNIST_FILES,
    ),
    "emnist": make_emnist_entry("emnist", "balanced"),
    **{
        f"emnist-{split}": make_emnist_entry(f"emnist-{split}", split)
        for split in image_sets.EMNIST_SPLITS
    },
    "cifar10": NamedDataset(
        "60,000 photographs (CIFAR-10), 32x32 colour, 10 classes",
        DatasetSize(60_000, COLOUR_SHAPE, 10),
        image_sets.read_cifar10,
        image_sets.CIFAR10_LAYOUT.dataset_files,
    ),
    "cifar100": NamedDataset(
        "60,000 photographs (CIFAR-100), 32x32 colour, 100 classes",
        DatasetSize(60_000, COLOUR_SHAPE, 100),
        image_sets.read_cifar100,
        image_sets.CIFAR100_LAYOUT.dataset_files,
    ),
    "cifar100-coarse": NamedDataset(
        "the same with 20 coarse classes",
        DatasetSize(60_000, COLOUR_SHAPE, 20),
        image_sets.read_cifar100_coarse,
        image_sets.CIFAR100_LAYOUT.dataset_files,
    ),
    "tinyimagenet": NamedDataset(
        "110,000 photographs (Tiny ImageNet), 64x64 colour, 200 classes",
        DatasetSize(110_000, (3, 64, 64), 200),
        image_sets.read_tinyimagenet,
        image_sets.TINYIMAGENET_FILES,
    ),
    "tinyimagenet-32": NamedDataset(
        "the same, resized to 32x32",
        DatasetSize(110_000, COLOUR_SHAPE, 200),
        partial(image_sets.read_tinyimagenet, side=32, name="tinyimagenet-32"),
        image_sets.TINYIMAGENET_FILES,
    ),
    "shakespeare": NamedDataset(
        "Shakespeare's plays (LEAF): predict the character after 80; by speaking role",
        DatasetSize(4_226_158, (80,), 80),  # as LEAF counts its samples
        leaf.read_shakespeare,
        leaf.SHAKESPEARE_FILES,
        partial=True,
    ),
    "femnist": NamedDataset(
        "805,263 characters (LEAF), 28x28 grey, 62 classes; by 3,550 writers",
        DatasetSize(805_263, GREY_SHAPE, 62),
        client_sets.read_femnist,
        client_sets.FEMNIST_FILES,
        partial=True,
    ),
    "celeba": NamedDataset(
        "200,288 portraits (LEAF), 84x84 colour, smiling or not; by 9,343 celebrities",
        DatasetSize(200_288, (3, 84, 84), 2),
        client_sets.read_celeba,
        client_sets.CELEBA_FILES,
        partial=True,
    ),
    "digit5": NamedDataset(
        "145,298 digits, 32x32 colour, 10 classes; 5 domains",
        DatasetSize(145_298, COLOUR_SHAPE, 10),
        client_sets.read_digit5,
        client_sets.DIGIT5_FILES,
        clients=NamedClients(client_sets.DIGIT5_DOMAINS, has_split=True),
    ),
    "office-caltech": NamedDataset(
        "2,533 photographs (Office-Caltech-10), 64x64 colour, 10 classes; 4 domains",
        DatasetSize(2_533, (3, 64, 64), 10),
        client_sets.read_office_caltech,
        client_sets.OFFICE_FILES,
        clients=NamedClients(client_sets.OFFICE_DOMAINS),
    ),
    "domainnet": NamedDataset(
        "586,575 images (DomainNet), 64x64 colour, 345 classes; 6 domains",
        DatasetSize(586_575, (3, 64, 64), 345),
        client_sets.read_domainnet,
        client_sets.DOMAINNET_FILES,
        clients=NamedClients(client_sets.DOMAINNET_DOMAINS, has_split=True),
    ),
    "iwildcam": NamedDataset(
        "203,029 photographs of animals (WILDS), 64x64 colour, 182 classes; by 323 cameras",
        DatasetSize(203_029, (3, 64, 64), 182),
        client_sets.read_iwildcam,
        client_sets.IWILDCAM_FILES,
    ),
    "har": NamedDataset(
        "10,299 windows of a smartphone's sensors (UCI), 9x128, 6 activities; 30 subjects",
        DatasetSize(10_299, (9, 128), 6),
        client_sets.read_har_set,
        client_sets.HAR_FILES,
        clients=NamedClients(tuple(str(i) for i in range(1, 31))),
    ),
    "pamap2": NamedDataset(
        "windows of three worn sensors (PAMAP2), 27x256, 12 activities; 9 subjects",
        DatasetSize(0, (27, 256), 12),
        client_sets.read_pamap2,
        client_sets.PAMAP2_FILES,
        clients=NamedClients(tuple(str(i) for i in range(101, 110))),
    ),
    **{name: make_medmnist_entry(name) for name in client_sets.MEDMNIST},
    "agnews": NamedDataset(
        "127,600 news articles (AG News), 256 bytes as tokens, 4 classes",
        DatasetSize(127_600, (TEXT_LENGTH,), 4),
        client_sets.read_ag_news,
        client_sets.AG_NEWS_FILES,
        accepts=("tokenizer",),
    ),
}
for full_name in ("fmnist", "emnist", "cifar10", "cifar100"):
    small_name = f"{full_name}-small"
    SOURCES[small_name] = make_small_entry(small_name, SOURCES[full_name])
