"""Image sets: MNIST, Fashion-MNIST and EMNIST (idx files), CIFAR-10 and -100, Tiny ImageNet."""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import decompress_gzip
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE
from ..source import Source, make_number_names
from .arrays import Request, read_npz
from .download import DatasetFiles, RemoteFile, find_or_download
from .folder import decode_image
from .huggingface import HF_PREFIX, read_huggingface
from .reading import ArchiveFiles, open_archive, unpickle_safely

FMNIST_LABELS = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
IDX_FILES = tuple(
    f"{p}-{f}-ubyte" for p in ("train", "t10k") for f in ("images-idx3", "labels-idx1")
)
FMNIST_MD5 = (  # MD5 of the decompressed bytes, because compressed copies differ
    *("f4a8712d7a061bf5bd6d2ca38dc4d50a", "9018921c3c673c538a1fc5bad174d6f9"),
    *("8181f5470baa50b63fa0f6fddb340f0a", "15d484375f8d13e6eb1aabb0c3f46965"),
)
MNIST_MD5 = (
    *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
    *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
)
FMNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MANUAL_HINT = "put the four idx files into a folder and set data.path"
FMNIST_FILES = DatasetFiles(
    "fmnist",
    (IDX_FILES,),
    tuple(
        RemoteFile(f"{FMNIST_URL}{f}.gz", m, True)
        for f, m in zip(IDX_FILES, FMNIST_MD5, strict=True)
    ),
    f"install Debian's package dataset-fashion-mnist, or {MANUAL_HINT}",
    "fashion-mnist",
)
MNIST_FILES = DatasetFiles(
    "mnist",
    (IDX_FILES,),
    tuple(RemoteFile(f"{MNIST_URL}{f}.gz", m) for f, m in zip(IDX_FILES, MNIST_MD5, strict=True)),
    MANUAL_HINT,
)

# letters whose capital looks the same are one class in bymerge and balanced
MERGED_LABELS = digits + ascii_uppercase + "abdefghnqrt"
EMNIST_SPLITS = {
    "balanced": (MERGED_LABELS, 131_600, "characters"),
    "byclass": (digits + ascii_uppercase + ascii_lowercase, 814_255, "characters"),
    "bymerge": (MERGED_LABELS, 814_255, "characters"),
    "letters": (ascii_lowercase, 145_600, "letters of either case"),
    "digits": (digits, 280_000, "digits"),
    "mnist": (digits, 70_000, "digits"),
}
EMNIST_ARCHIVE = RemoteFile(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"
)


def read_fmnist(path: Path | None = None) -> Source:
    """Read Fashion-MNIST, training before test."""
    return read_idx_dataset(
        "fmnist", find_or_download(FMNIST_FILES, path), IDX_FILES, FMNIST_LABELS
    )


def read_mnist(path: Path | None = None) -> Source:
    """Read MNIST, training before test."""
    return read_idx_dataset("mnist", find_or_download(MNIST_FILES, path), IDX_FILES, tuple(digits))


def make_emnist_files(split: str) -> DatasetFiles:
    """Return the files of an EMNIST split; all splits are in one archive."""
    files = list_emnist_names(split)
    unpacked = tuple(f"gzip/{f}" for f in files)
    hint = "get NIST's gzip.zip from www.nist.gov/itl/products-and-services/emnist-dataset and set data.path to it"
    return DatasetFiles("emnist", (("gzip.zip",), unpacked, files), (EMNIST_ARCHIVE,), hint)


def list_emnist_names(split: str) -> tuple[str, ...]:
    """Return the names of an EMNIST split's four idx files."""
    return tuple(f"emnist-{split}-{f.replace('t10k', 'test')}" for f in IDX_FILES)


def read_emnist(path: Path | None = None, split: str = "balanced", name: str = "emnist") -> Source:
    """Read an EMNIST split, training before test, with the images turned upright."""
    local = find_or_download(make_emnist_files(split), path)
    source = read_idx_dataset(
        name, local, list_emnist_names(split), tuple(EMNIST_SPLITS[split][0]), split == "letters"
    )
    return replace(source, x=np.ascontiguousarray(source.x.transpose(0, 1, 3, 2)))


def read_idx_dataset(
    name: str, path: Path, files: tuple[str, ...], labels: tuple[str, ...], first: int = 0
) -> Source:
    """Read a data set from idx files, training before test; ``first`` is the smallest label."""
    x, y, x_test, y_test = (read_idx(path, f) for f in files)
    for some in (x, x_test):
        if some.ndim != 3 or some.shape[1:] != x.shape[1:]:
            raise DataError(f"{path}: the images of {name} must all have the same height and width")
    if y.shape != x.shape[:1] or y_test.shape != x_test.shape[:1]:
        raise DataError(f"{path}: {name} must have one label per image")
    return Source(
        name,
        np.concatenate([x, x_test])[:, None],
        np.concatenate([y, y_test]).astype(np.int64) - first,
        BYTES_TO_PLUS_MINUS_ONE,
        labels,
        official=len(y),
    )


def read_idx(path: Path, name: str) -> NDArray[np.uint8]:
    """Read one idx file, compressed or not, from a folder or from NIST's zip."""
    with open_archive(path, "gzip") as files:
        file, blob = files.read_first(name, f"{name}.gz")
    try:
        blob = decompress_gzip(blob) if file.suffix == ".gz" else blob
        zeros, kind, dims = struct.unpack(">HBB", blob[:4])
        shape = struct.unpack(f">{dims}I", blob[4 : 4 + 4 * dims])
        content = np.frombuffer(blob, np.uint8, offset=4 + 4 * dims)
    except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
        raise DataError(f"{file} is not a readable idx file ({error})") from None
    if zeros or kind != 8 or content.size != prod(shape):
        raise DataError(f"{file} is not an idx file of bytes, or was cut short")
    return content.reshape(shape)


BASE_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class CifarLayout:
    """The archive of one of the two CIFAR data sets, and the files in it."""

    name: str
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str

    @property
    def dataset_files(self) -> DatasetFiles:
        """Where to find the data set: on this machine, or on its authors' site."""
        files = (*self.train, self.test, self.meta)
        inner = tuple(f"{self.folder}/{f}" for f in files)
        alternatives = ((self.archive,), inner, files, (f"{self.name}.npz",))
        hint = f"get {self.archive} from {BASE_URL[8:]}cifar.html and set data.path to it"
        remote = RemoteFile(BASE_URL + self.archive, self.md5)
        return DatasetFiles(self.name, alternatives, (remote,), hint)


CIFAR10_LAYOUT = CifarLayout(
    "cifar10",
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py",
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test_batch",
    "batches.meta",
)
CIFAR100_LAYOUT = CifarLayout(
    "cifar100",
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python",
    ("train",),
    "test",
    "meta",
)


def read_cifar10(path: Path | None = None) -> Source:
    """Read CIFAR-10, training before test."""
    return read_cifar("cifar10", CIFAR10_LAYOUT, path, "labels", "label_names", 10)


def read_cifar100(path: Path | None = None) -> Source:
    """Read CIFAR-100 with its 100 fine labels, training before test."""
    return read_cifar("cifar100", CIFAR100_LAYOUT, path, "fine_labels", "fine_label_names", 100)


def read_cifar100_coarse(path: Path | None = None) -> Source:
    """Read CIFAR-100 with its 20 coarse labels, training before test."""
    return read_cifar(
        "cifar100-coarse", CIFAR100_LAYOUT, path, "coarse_labels", "coarse_label_names", 20
    )


def read_cifar(
    name: str, layout: CifarLayout, path: Path | None, labels: str, names: str, classes: int
) -> Source:
    """Read one of the CIFAR data sets; ``labels`` and ``names`` are keys in its pickles.

    The path ``hf:uoft-cs/cifar10`` stands for the copy on the Hugging Face hub.
    """
    if path is not None and str(path).startswith(HF_PREFIX):
        source = read_huggingface(str(path), Request(), classes)
        return replace(source, name=name, remark="")
    local = find_or_download(layout.dataset_files, path)
    if local.suffix == ".npz":
        numbers = make_number_names(classes)
        return replace(read_npz(local), name=name, labels=numbers)  # checks the labels again
    with open_archive(local, layout.folder) as files:
        class_names = unpickle_file(files, layout.meta).get(names)
        if not isinstance(class_names, list) or len(class_names) != classes:
            raise DataError(f"{files.path / layout.meta} must name {classes} classes in {names}")
        parts = [read_batch(files, f, labels) for f in (*layout.train, layout.test)]
    return Source(
        name,
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        BYTES_TO_PLUS_MINUS_ONE,
        tuple(n.decode() if isinstance(n, bytes) else str(n) for n in class_names),
        official=sum(len(y) for _, y in parts[:-1]),
    )


def read_batch(
    files: ArchiveFiles, name: str, labels: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images and labels of one CIFAR file; a row has 1024 red bytes, then green, then blue."""
    content = unpickle_file(files, name)
    x, y = content.get("data"), content.get(labels)
    if not isinstance(x, np.ndarray) or x.shape[1:] != (3072,) or x.dtype.hasobject:
        raise DataError(f"{files.path / name} must hold images of 3072 bytes each, as 'data'")
    if not isinstance(y, list) or not all(map(is_byte_label, y)) or len(y) != len(x):
        raise DataError(f"{files.path / name} must hold one number per image, as '{labels}'")
    return x.reshape(-1, 3, 32, 32), np.array(y, np.int64)


def unpickle_file(files: ArchiveFiles, name: str) -> dict[str, Any]:
    """Read one of CIFAR's pickles with the restricted unpickler."""
    path, blob = files.read_first(name)
    return unpickle_safely(blob, path)


def is_byte_label(label: object) -> bool:
    """Return True if a label of CIFAR is a whole number from 0 to 255."""
    return type(label) is int and 0 <= label < 256


ARCHIVE_FOLDER = "tiny-imagenet-200"
REQUIRED_FILES = ("wnids.txt", "train", "val/val_annotations.txt")
TINYIMAGENET_FILES = DatasetFiles(
    "tinyimagenet",
    (
        ("tiny-imagenet-200.zip",),
        tuple(f"{ARCHIVE_FOLDER}/{f}" for f in REQUIRED_FILES),
        REQUIRED_FILES,
    ),
    (
        RemoteFile(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"
        ),
    ),
    "get tiny-imagenet-200.zip from cs231n.stanford.edu and set data.path to it",
)


def read_tinyimagenet(
    path: Path | None = None, side: int = 64, name: str = "tinyimagenet"
) -> Source:
    """Read Tiny ImageNet: training images, then *val* as test images, as *test* has no published labels."""
    with open_archive(find_or_download(TINYIMAGENET_FILES, path), ARCHIVE_FOLDER) as files:
        ids = files.read_text("wnids.txt").split()
        label = {wnid: i for i, wnid in enumerate(ids)}
        images = [*list_training_images(files, label), *list_validation_images(files, label)]
        # filled one image at a time, to avoid a second copy
        x = np.empty((len(images), 3, side, side), np.uint8)
        for at, (file, _) in enumerate(images):
            x[at] = decode_image(files.read_first(file)[1], files.path / file, side=side)
        labels = read_tinyimagenet_class_names(files, ids)
    official = sum(file.startswith("train/") for file, _ in images)
    y = np.array([label for _, label in images], np.int64)
    return Source(name, x, y, BYTES_TO_PLUS_MINUS_ONE, labels, official)


def list_training_images(files: ArchiveFiles, label: dict[str, int]) -> list[tuple[str, int]]:
    """List Tiny ImageNet's files below ``train`` with their labels, ordered by class and name."""
    pattern = re.compile(r"train/([^/]+)/images/[^/]+\.JPEG")
    images = [(m[0], m[1]) for name in files.list_names() if (m := pattern.fullmatch(name))]
    for file, wnid in images:
        if wnid not in label:
            raise DataError(f"{files.path / file}: wnids.txt does not have {wnid}")
    if not images:
        raise DataError(f"{files.path} has no train/…/images/….JPEG")
    return sorted((file, label[wnid]) for file, wnid in images)


def list_validation_images(files: ArchiveFiles, label: dict[str, int]) -> list[tuple[str, int]]:
    """List Tiny ImageNet's files below ``val`` with their labels, ordered by name."""
    lines = files.read_text("val/val_annotations.txt").splitlines()
    images = []
    for number, line in enumerate(lines, 1):
        file, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in label:
            raise DataError(f"{files.path / 'val/val_annotations.txt'}:{number}: no known class")
        images.append((f"val/images/{file}", label[wnid]))
    return sorted(images)


def read_tinyimagenet_class_names(files: ArchiveFiles, ids: list[str]) -> tuple[str, ...]:
    """Return each class's first word in words.txt, or its id if it has none or shares it with another class."""
    pairs = (line.partition("\t") for line in files.read_text("words.txt").splitlines())
    words = {wnid: name.split(",")[0].strip() for wnid, _, name in pairs}
    names = [words.get(wnid) or wnid for wnid in ids]
    return tuple(w if names.count(w) == 1 else i for w, i in zip(names, ids, strict=True))
