"""Data sets divided by writer, celebrity, domain, subject or camera, which become the clients."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.files import DATA_LIMIT, read_regular_file
from ...core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from ..source import Source, name_users
from .arrays import Request, read_medmnist
from .client_files import read_har
from .download import DatasetFiles, RemoteFile, find_or_download
from .folder import IMAGES, decode_image, read_image_file
from .leaf import read_leaf
from .reading import summarise_error
from .texts import encode_texts

# LEAF -------------------------------------------------------------------------------------------

LEAF_LAYOUTS = (("train/*.json", "test/*.json"), ("all_data*.json",), ("all_data/*.json",))
LEAF_HINT = (
    "make it with LEAF (data/{} of github.com/TalwalkarLab/leaf) and set data.path to the folder"
)
FEMNIST_FILES = DatasetFiles("femnist", LEAF_LAYOUTS, hint=LEAF_HINT.format("femnist"))
CELEBA_FILES = DatasetFiles("celeba", LEAF_LAYOUTS, hint=LEAF_HINT.format("celeba"))
FEMNIST_LABELS = (*digits, *ascii_uppercase, *ascii_lowercase)


def read_femnist(path: Path | None = None) -> Source:
    """Read FEMNIST, LEAF's handwritten characters, by writer."""
    source = read_leaf(find_or_download(FEMNIST_FILES, path), Request(FEMNIST_LABELS))
    return replace(source, name="femnist", remark="")


def read_celeba(path: Path | None = None) -> Source:
    """Read CelebA, LEAF's portraits, by celebrity."""
    request = Request(("not smiling", "smiling"))
    source = read_leaf(find_or_download(CELEBA_FILES, path), request)
    return replace(source, name="celeba", remark="")


# MedMNIST ---------------------------------------------------------------------------------------

MEDMNIST_URL = "https://zenodo.org/record/6496656/files/"
MEDMNIST = {  # channels, classes, images, md5
    "bloodmnist": (3, 8, 17_092, "7053d0359d879ad8a5505303e11de1dc"),
    "breastmnist": (1, 2, 780, "750601b1f35ba3300ea97c75c52ff8f6"),
    "dermamnist": (3, 7, 10_015, "0744692d530f8e62ec473284d019b0c7"),
    "octmnist": (1, 4, 109_309, "c68d92d5b585d8d81f7112f81e2d0842"),
    "pathmnist": (3, 9, 107_180, "a8b06965200029087d5bd730944a56c1"),
    "pneumoniamnist": (1, 2, 5_856, "28209eda62fecd6e6a2d98b1501bb15f"),
    "retinamnist": (3, 5, 1_600, "bd4c0672f1bba3e3a89f0e4e876791e4"),
    "tissuemnist": (1, 8, 236_386, "ebe78ee8b05294063de985d821c1c34b"),
}


def make_medmnist_files(name: str) -> DatasetFiles:
    """Return the file of a MedMNIST data set, and where to download it."""
    remote = RemoteFile(f"{MEDMNIST_URL}{name}.npz", MEDMNIST[name][3])
    hint = f"get {name}.npz from medmnist.com and set data.path to it"
    return DatasetFiles("medmnist", ((f"{name}.npz",),), (remote,), hint)


def read_medmnist_set(path: Path | None = None, name: str = "pathmnist") -> Source:
    """Read a MedMNIST data set; its validation images count as training images."""
    local = find_or_download(make_medmnist_files(name), path)
    return replace(read_medmnist(local, Request(MEDMNIST[name][1])), name=name)


# Domains ----------------------------------------------------------------------------------------

DIGIT5_DOMAINS = ("mnist", "mnistm", "svhn", "syn", "usps")
DIGIT5_MATS = {
    "mnist": ("mnist_data.mat",),
    "mnistm": ("mnistm_with_label.mat",),
    "svhn": ("svhn_train_32x32.mat", "svhn_test_32x32.mat"),
    "syn": ("synth_train_32x32.mat", "synth_test_32x32.mat"),
    "usps": ("usps_28x28.mat",),
}
DIGIT5_NAMES = tuple(name for names in DIGIT5_MATS.values() for name in names)
DIGIT5_FILES = DatasetFiles(
    "digit5",
    (DIGIT5_NAMES, tuple(f"Digit5/{name}" for name in DIGIT5_NAMES)),
    hint="unpack Digit5.zip (linked from github.com/FengHZ/KD3A) and set data.path to its folder",
)
DIGIT5_SIDE = 32
DIGIT5_DRAWN = (25_000, 9_000)  # training and test images per domain, as in KD3A's protocol


def read_digit5(path: Path | None = None) -> Source:
    """Read Digit-Five: digits from five domains, at most ``DIGIT5_DRAWN`` images of each."""
    local = find_or_download(DIGIT5_FILES, path)
    folder = local / "Digit5" if (local / "Digit5").is_dir() else local
    parts: list[list[tuple[NDArray[np.uint8], NDArray[np.int64]]]] = [[], []]
    for number, domain in enumerate(DIGIT5_DOMAINS):
        draw = np.random.default_rng(number)
        for part, (x, y), count in zip(
            parts, read_digit_domain(folder, domain), DIGIT5_DRAWN, strict=True
        ):
            rows = np.sort(draw.permutation(len(y))[:count])
            part.append((to_colour(x[rows]), y[rows].astype(np.int64)))
    both = [*parts[0], *parts[1]]
    domains = [
        d for part in parts for d, (_, y) in zip(DIGIT5_DOMAINS, part, strict=True) for _ in y
    ]
    source = Source(
        "digit5",
        np.concatenate([x for x, _ in both]),
        np.concatenate([y for _, y in both]),
        BYTES_TO_PLUS_MINUS_ONE,
        tuple(digits),
        sum(len(y) for _, y in parts[0]),
    )
    return name_users(source, domains, str(folder))


def read_digit_domain(folder: Path, domain: str) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Read the training and test images of a Digit-Five domain, N×H×W or N×H×W×3, with labels from 0."""
    mats = [load_mat(folder / name) for name in DIGIT5_MATS[domain]]
    where = folder / DIGIT5_MATS[domain][0]
    try:
        if domain == "mnist":
            pairs = [(mats[0][f"{p}_32"], mats[0][f"label_{p}"]) for p in ("train", "test")]
            found = [(x.reshape(-1, 32, 32), y.argmax(1)) for x, y in pairs]
        elif domain == "mnistm":
            found = [(mats[0][p], mats[0][f"label_{p}"].argmax(1)) for p in ("train", "test")]
        elif domain == "usps":
            rows = mats[0]["dataset"]
            found = [(x[:, 0] * 255, y.reshape(-1) % 10) for x, y in rows]
        else:  # a 0 is written as 10
            found = [(m["X"].transpose(3, 0, 1, 2), m["y"].reshape(-1) % 10) for m in mats]
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            f"{where} is not one of Digit5's files ({summarise_error(error)})"
        ) from None
    for x, y in found:
        if x.ndim not in (3, 4) or y.shape != x.shape[:1]:
            raise DataError(f"{where}: images {x.shape} and labels {y.shape} do not match")
    return found


def load_mat(path: Path) -> dict[str, Any]:
    """Load the arrays of a MATLAB file of Digit-Five."""
    from scipy.io import loadmat  # type: ignore[import-untyped]  # slow

    try:
        content: dict[str, Any] = loadmat(io.BytesIO(read_regular_file(path, DATA_LIMIT)))
    except Exception as error:  # a damaged file can raise almost any error
        raise DataError(f"{path} cannot be read ({summarise_error(error)})") from None
    return content


def to_colour(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert images to uint8 N×3×32×32; grey images get three equal channels."""
    from PIL import Image

    x = np.asarray(x).astype(np.uint8)
    x = np.repeat(x[..., None], 3, axis=3) if x.ndim == 3 else x
    side = (DIGIT5_SIDE, DIGIT5_SIDE)
    if x.shape[1:3] != side:
        resized = [Image.fromarray(one).resize(side, Image.Resampling.BILINEAR) for one in x]
        x = np.stack([np.asarray(one) for one in resized])
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Picture:
    """An image file, its class and its client."""

    path: Path
    label: int
    client: str


SIDE = 64  # images of different sizes are resized to this


def read_pictures(
    name: str, train: Sequence[Picture], test: Sequence[Picture], labels: Iterable[str]
) -> Source:
    """Make a source from image files of any size, resized; without test images it has no official split."""
    both = [*train, *test]
    x = np.empty((len(both), 3, SIDE, SIDE), np.uint8)  # filled one by one, to avoid a second copy
    for at, picture in enumerate(both):
        x[at] = decode_image(read_image_file(picture.path), picture.path, side=SIDE)
    y = np.array([p.label for p in both], np.int64)
    official = len(train) if test else None
    source = Source(name, x, y, BYTES_TO_PLUS_MINUS_ONE, tuple(labels), official)
    return name_users(source, [p.client for p in both], name)


OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
OFFICE_FILES = DatasetFiles(
    "office-caltech",
    (tuple(f"{d}/*/*" for d in OFFICE_DOMAINS),),
    hint="unpack Office-Caltech-10 (folders amazon, caltech, dslr and webcam, each with a folder per"
    " class) and set data.path to its folder",
)


def read_office_caltech(path: Path | None = None) -> Source:
    """Read Office-Caltech-10: photographs of objects from four domains."""
    folder = find_or_download(OFFICE_FILES, path)
    files = [(d, file) for d in OFFICE_DOMAINS for file in IMAGES.list_in(folder / d)]
    labels = sorted({file.parent.name for _, file in files})
    pictures = [Picture(file, labels.index(file.parent.name), d) for d, file in files]
    return read_pictures("office-caltech", pictures, (), labels)


LABEL_DIGITS = 4  # DomainNet has 345 classes; a larger number would create that many names
DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAINNET_FILES = DatasetFiles(
    "domainnet",
    (("splits/*_train.txt", "splits/*_test.txt"), ("*_train.txt", "*_test.txt")),
    hint="unpack the domains of ai.bu.edu/M3SDA next to their lists DOMAIN_train.txt and"
    " DOMAIN_test.txt, and set data.path to the folder",
)


def read_domainnet(path: Path | None = None) -> Source:
    """Read DomainNet: images of objects; the folder may contain only some of its six domains."""
    folder = find_or_download(DOMAINNET_FILES, path)
    names: dict[int, str] = {}
    parts: dict[str, list[Picture]] = {"train": [], "test": []}
    for domain in DOMAINNET_DOMAINS:
        for part, pictures in parts.items():
            name = f"{domain}_{part}.txt"
            lists = [p for p in (folder / "splits" / name, folder / name) if p.is_file()]
            for number, line in enumerate(lists[0].read_text().splitlines() if lists else (), 1):
                file, _, label = line.strip().rpartition(" ")
                if not file or not label.isdecimal() or len(label) > LABEL_DIGITS:
                    raise DataError(
                        f"{lists[0]}:{number}: must be a file and the number of its class"
                    )
                names[int(label)] = Path(file).parent.name
                pictures.append(Picture(folder / file, int(label), domain))
    if not parts["train"]:
        raise DataError(f"{folder} has no list of a domain: {', '.join(DOMAINNET_DOMAINS)}")
    labels = [names.get(i, str(i)) for i in range(max(names) + 1)]
    return read_pictures("domainnet", parts["train"], parts["test"], labels)


IWILDCAM_ROOT = "iwildcam_v2.0"
IWILDCAM_FILES = DatasetFiles(
    "iwildcam",
    (("metadata.csv", "train"), (f"{IWILDCAM_ROOT}/metadata.csv", f"{IWILDCAM_ROOT}/train")),
    hint="download it with the package wilds (get_dataset('iwildcam', download=True)) and set"
    f" data.path to the folder {IWILDCAM_ROOT}",
)
IWILDCAM_CLASSES = 182


def read_iwildcam(path: Path | None = None) -> Source:
    """Read iWildCam: photographs of animals, by camera; images outside the training split are for test."""
    local = find_or_download(IWILDCAM_FILES, path)
    folder = local / IWILDCAM_ROOT if (local / IWILDCAM_ROOT).is_dir() else local
    table = folder / "metadata.csv"
    parts: tuple[list[Picture], list[Picture]] = ([], [])
    try:
        with table.open(newline="") as file:
            for row in csv.DictReader(file):
                picture = Picture(
                    folder / "train" / row["filename"], int(row["y"]), row["location_remapped"]
                )
                parts[row["split"] != "train"].append(picture)
    except (KeyError, ValueError, csv.Error) as error:
        raise DataError(f"{table} is not iWildCam's table ({summarise_error(error)})") from None
    return read_pictures("iwildcam", *parts, map(str, range(IWILDCAM_CLASSES)))


# Sensors ----------------------------------------------------------------------------------------

HAR_ROOT = "UCI HAR Dataset"
HAR_NAMES = ("train/X_train.txt", "train/y_train.txt", "test/X_test.txt", "test/y_test.txt")
HAR_FILES = DatasetFiles(
    "har",
    (HAR_NAMES, tuple(f"{HAR_ROOT}/{name}" for name in HAR_NAMES)),
    hint=f"unpack '{HAR_ROOT}.zip' of archive.ics.uci.edu/dataset/240 and set data.path to its folder",
)


def read_har_set(path: Path | None = None) -> Source:
    """Read UCI HAR: windows of a smartphone's sensors, by subject."""
    local = find_or_download(HAR_FILES, path)
    folder = local / HAR_ROOT if (local / HAR_ROOT).is_dir() else local
    return replace(read_har(folder, Request()), name="har")


PAMAP2_ROOT = "PAMAP2_Dataset"
PAMAP2_FILES = DatasetFiles(
    "pamap2",
    (("Protocol", "Protocol/subject*.dat"), (PAMAP2_ROOT, f"{PAMAP2_ROOT}/Protocol/subject*.dat")),
    hint="unpack PAMAP2_Dataset.zip of archive.ics.uci.edu/dataset/231 and set data.path to its folder",
)
PAMAP2_ACTIVITIES = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "Nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
    24: "rope jumping",
}
PAMAP2_COLUMNS = 54
PAMAP2_ROWS = 2_872_533  # rows of all nine files
# acceleration (16 g), rotation and magnetic field from each of three sensors, scaled to similar sizes
PAMAP2_SIGNALS = [
    base + at + axis for base in (3, 20, 37) for at in (1, 7, 10) for axis in range(3)
]
PAMAP2_SIZES = np.tile(np.repeat(np.array([10, 1, 50], np.float32), 3), 3)
PAMAP2_WINDOW, PAMAP2_STEP = 256, 128  # at 100 Hz


def read_pamap2(path: Path | None = None) -> Source:
    """Read PAMAP2: half-overlapping 2.56-second windows of one activity, by subject."""
    local = find_or_download(PAMAP2_FILES, path)
    folder = local / PAMAP2_ROOT if (local / PAMAP2_ROOT).is_dir() else local
    xs, ys, subjects, rows = [], [], [], 0
    for file in sorted((folder / "Protocol").glob("subject*.dat")):
        x, activity = read_recording(file)
        rows += len(x)
        x, y = cut_windows(x, activity)
        xs.append(x)
        ys.append(y)
        subjects += [file.stem.removeprefix("subject")] * len(y)
    labels = tuple(PAMAP2_ACTIVITIES.values())
    source = Source("pamap2", np.concatenate(xs), np.concatenate(ys), Scale(), labels)
    if rows != PAMAP2_ROWS:
        remark = f"pamap2 is not as published: {rows:,} rows instead of {PAMAP2_ROWS:,}"
        source = replace(source, remark=remark)
    return name_users(source, subjects, str(folder))


def read_recording(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read the signals and activities of a PAMAP2 file; missing values are replaced by the previous row's."""
    try:
        text = read_regular_file(path, DATA_LIMIT).decode()
        table = np.loadtxt(io.StringIO(text), np.float32, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a table of numbers ({summarise_error(error)})") from None
    if table.shape[1:] != (PAMAP2_COLUMNS,):
        raise DataError(f"{path} must have {PAMAP2_COLUMNS} columns")
    x = table[:, PAMAP2_SIGNALS]
    rows = np.arange(len(x))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), 0, rows), axis=0)
    x = np.take_along_axis(x, last, axis=0)
    return np.nan_to_num(x) / PAMAP2_SIZES, table[:, 1].astype(np.int64)


def cut_windows(
    x: NDArray[np.float32], activity: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Cut PAMAP2 signals into windows of a single activity; return the windows and their classes."""
    if len(x) < PAMAP2_WINDOW:
        return np.empty((0, x.shape[1], PAMAP2_WINDOW), np.float32), np.empty(0, np.int64)
    slide = np.lib.stride_tricks.sliding_window_view
    kinds = slide(activity, PAMAP2_WINDOW)[::PAMAP2_STEP]
    known = list(PAMAP2_ACTIVITIES)
    kept = (kinds == kinds[:, :1]).all(axis=1) & np.isin(kinds[:, 0], known)
    windows = slide(x, PAMAP2_WINDOW, axis=0)[::PAMAP2_STEP][kept]
    return windows.copy(), np.array([known.index(k) for k in kinds[kept, 0]], np.int64)


# Texts ------------------------------------------------------------------------------------------

AG_NEWS_FILES = DatasetFiles(
    "agnews",
    (("train.csv", "test.csv"), ("ag_news_csv/train.csv", "ag_news_csv/test.csv")),
    hint="get ag_news_csv (train.csv and test.csv, of class, title and description) and set data.path"
    " to the folder",
)
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def read_ag_news(path: Path | None = None, tokenizer: str | None = None) -> Source:
    """Read AG News: title and description of each article as one text."""
    folder = find_or_download(AG_NEWS_FILES, path)
    folder = folder if (folder / "train.csv").exists() else folder / "ag_news_csv"
    parts = [read_articles(folder / f"{part}.csv") for part in ("train", "test")]
    labels, texts = zip(*(row for rows in parts for row in rows), strict=True)
    y, (x, record) = np.array(labels, np.int64), encode_texts(list(texts), tokenizer)
    source = Source("agnews", x, y, Scale(), AG_NEWS_CLASSES, len(parts[0]))
    return replace(source, record=record)


def read_articles(path: Path) -> list[tuple[int, str]]:
    """Read an AG News file; return each article's class (from 0) and text."""
    found = []
    try:
        text = read_regular_file(path, DATA_LIMIT).decode()
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        for row in rows:
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise DataError(
                    f"{path}:{rows.line_num}: must be a class from 1 to 4, a title and a description"
                )
            found.append((int(row[0]) - 1, f"{row[1]} {row[2]}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({summarise_error(error)})") from None
    if not found:
        raise DataError(f"{path} has no articles")
    return found
