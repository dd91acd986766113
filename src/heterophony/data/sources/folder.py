"""Read images (PNG, JPEG, …) and texts from folders, one per class, or one per client and class."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import make_natural_sort_key, open_regular_file, read_regular_file
from ...core.records import Record
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ..source import Source, check_client_name
from .arrays import NamedClients
from .texts import encode_texts

IMAGE_SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"]
)
IMAGE_LIMIT = TEXT_LIMIT = 1 << 28  # size limit of a file, in bytes
GREY_MODES = ("1", "L")


def decode_image(
    blob: bytes, where: Path, grey: bool = False, side: int | None = None
) -> NDArray[np.uint8]:
    """Decode an image file to a uint8 array C×H×W; ``side`` resizes the image to a square."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(blob)) as image:
            check_image(image, where)
            plain = image.convert("L" if grey else "RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow can raise almost any error for a damaged file
        raise make_image_error(where, error) from None
    if side is not None and plain.size != (side, side):
        plain = plain.resize((side, side), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain, np.uint8)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def read_image_header(path: Path) -> tuple[tuple[int, int], bool]:
    """Read an image's width and height, and whether it is grey, without decoding its pixels."""
    from PIL import Image

    try:
        with open_regular_file(path) as file, Image.open(file) as image:
            check_image(image, path)
            return image.size, image.mode in GREY_MODES
    except DataError:
        raise
    except Exception as error:
        raise make_image_error(path, error) from None


def check_image(image: Any, where: object) -> None:
    """Raise DataError for an image with more than 8 bits per pixel, or a file with several images."""
    if image.mode[0] in "IF":  # Pillow would clip larger values
        bits = 16 if image.mode.startswith("I;16") else 32
        raise DataError(
            f"{where} has {bits} bits per pixel; convert it to 8 bits, or store arrays of floats in an"
            " .npz"
        )
    count = getattr(image, "n_frames", 1)
    if count > 1 and image.format != "MPO":  # a photograph with its preview
        raise DataError(f"{where} holds {count} images; store each in a file of its own")


def read_image_file(path: Path) -> bytes:
    """Read the undecoded bytes of an image file; raise DataError if it cannot be read."""
    try:
        return read_regular_file(path, IMAGE_LIMIT)
    except OSError as error:
        raise DataError(f"{path} is not a readable image ({error.strerror})") from None


def make_image_error(where: Path, error: Exception) -> DataError:
    """Return the error for a file that Pillow cannot decode."""
    damaged = isinstance(error, SyntaxError | OSError)
    reason = "cut short, or not an image" if damaged else error
    return DataError(f"{where} is not a readable image ({reason})")


TEST_FOLDERS = ("test", "val")


@dataclass(frozen=True)
class ExampleFiles:
    """Image or text files with one example each, in folders by class, or by client and class."""

    plural: str  # shown in messages
    suffixes: frozenset[str]
    read: Callable[[list[Path]], tuple[NDArray[Any], Record | None]]
    scale: Scale

    def list_in(self, folder: Path) -> list[Path]:
        """List the example files in the subfolders, ordered by class and name."""
        found = (p for p in folder.glob("*/*") if p.suffix.lower() in self.suffixes)
        return sorted(p for p in found if not {p.name[0], p.parent.name[:1]} & {"."})

    def list_train_and_test(self, path: Path) -> tuple[list[Path], list[Path]]:
        """List training files and, if there is a folder for them, test files."""
        train = self.list_in(path / "train")
        if not train:
            return self.list_in(path), []
        return train, next(filter(None, (self.list_in(path / name) for name in TEST_FOLDERS)), [])

    def has_classes(self, path: Path) -> bool:
        """Return True if the subfolders, one per class, hold example files."""
        return bool(self.list_train_and_test(path)[0])

    def has_clients(self, path: Path) -> bool:
        """Return True if the subfolders, one per client, hold example files by class."""
        return path.is_dir() and any(map(self.has_classes, list_client_folders(path)))

    def list_clients(self, path: Path, users: str | None = None) -> NamedClients:
        """Return the clients, which are named after their folders."""
        found = [(p.name, *self.list_train_and_test(p)) for p in list_client_folders(path)]
        names = tuple(name for name, train, _ in found if train)
        return NamedClients(names, has_split=all(test for _, train, test in found if train))

    def read_by_class(self, path: Path) -> Source:
        """Read all example files below a folder; the names of their folders are the classes."""
        train, test = self.list_train_and_test(path)
        x, record, y, labels = self._read_labelled([*train, *test])
        if len(labels) < 2:
            raise DataError(
                f"{path}: all {self.plural} are in one folder, '{labels[0]}'; there must be a folder for"
                " each class"
            )
        source = Source(path.name, x, y, self.scale, labels, len(train) if test else None)
        return replace(source, record=record, remark=self.describe_unused([path]))

    def read_by_client(self, path: Path) -> Source:
        """Read the example files of all clients, with training files first."""
        folders = [p for p in list_client_folders(path) if self.has_classes(p)]
        both = [self.list_train_and_test(p) for p in folders]
        if len({bool(test) for _, test in both}) > 1:
            alone = folders[[bool(test) for _, test in both].index(False)]
            raise DataError(
                f"{alone} has no test {self.plural}, but other clients have some; give them to all"
                " clients or to none"
            )
        parts = [(i, files) for k in (0, 1) for i, files in enumerate(pair[k] for pair in both)]
        x, record, y, labels = self._read_labelled([f for _, own in parts for f in own])
        trained = sum(len(train) for train, _ in both)
        return Source(
            path.name,
            x,
            y,
            self.scale,
            labels,
            trained if trained < len(y) else None,
            users=np.repeat([i for i, _ in parts], [len(own) for _, own in parts]).astype(np.int64),
            user_names=tuple(check_client_name(p.name, str(p)) for p in folders),
            record=record,
            remark=self.describe_unused(folders),
        )

    def describe_unused(self, folders: list[Path]) -> str:
        """Return a note if a folder ``val`` is not read because there is a folder ``test``; else empty."""
        unused = [
            folder / TEST_FOLDERS[1]
            for folder in folders
            if all(self.list_in(folder / name) for name in ("train", *TEST_FOLDERS))
        ]
        return f"{unused[0]} is not used, because there is a folder test" if unused else ""

    def _read_labelled(
        self, files: list[Path]
    ) -> tuple[NDArray[Any], Record | None, NDArray[np.int64], tuple[str, ...]]:
        """Read example files; return the examples, their record, their labels, and the class names."""
        labels = sorted({f.parent.name for f in files})
        y = np.array([labels.index(f.parent.name) for f in files], np.int64)
        return *self.read(files), y, tuple(labels)


def list_client_folders(path: Path) -> list[Path]:
    """List the visible subfolders, in the natural order of their names."""
    folders = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]
    return sorted(folders, key=lambda p: make_natural_sort_key(p.name))


def read_images(files: list[Path]) -> tuple[NDArray[Any], None]:
    """Read images of equal size: as grey if all are grey, else in colour."""
    headers = [read_image_header(f) for f in files]
    size, grey = headers[0][0], all(g for _, g in headers)
    for file, (other, _) in zip(files, headers, strict=True):
        if other != size:
            raise DataError(
                f"all images must be the same size: {files[0]} is {size[0]}×{size[1]},"
                f" {file} is {other[0]}×{other[1]}"
            )
    x = np.empty((len(files), 1 if grey else 3, size[1], size[0]), np.uint8)
    for at, file in enumerate(files):
        x[at] = decode_image(read_image_file(file), file, grey)
    return x, None


def read_texts(files: list[Path]) -> list[str]:
    """Read a data set's text files in UTF-8."""
    texts = []
    for file in files:
        try:
            texts.append(read_regular_file(file, TEXT_LIMIT).decode())
        except OSError as error:
            raise DataError(f"{file} is not a readable text ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not text in UTF-8 (byte {error.start})") from None
    return texts


def make_text_files(tokenizer: str | None = None) -> ExampleFiles:
    """Return the ``ExampleFiles`` for text files, converted to tokens by a tokenizer if one is given."""

    def read(files: list[Path]) -> tuple[NDArray[Any], Record | None]:
        return encode_texts(read_texts(files), tokenizer)

    return ExampleFiles("texts", frozenset([".txt"]), read, Scale())


IMAGES = ExampleFiles("images", IMAGE_SUFFIXES, read_images, BYTES_TO_PLUS_MINUS_ONE)
TEXTS = make_text_files()
