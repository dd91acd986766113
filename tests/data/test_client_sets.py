"""Data sets with clients of their own, each from small files in the published format, and from damaged ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from scipy.io import savemat

import heterophony as hp
from helpers.formats import leaf_part, write_leaf
from helpers.sources import refused
from heterophony.config.reading import read_config
from heterophony.data.sources import SOURCES, read_source
from heterophony.data.sources.client_sets import (
    DIGIT5_DOMAINS,
    DOMAINNET_DOMAINS,
    MEDMNIST,
    OFFICE_DOMAINS,
    cut_windows,
)

DRAW = np.random.default_rng(0)


def draw_bytes(*shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, shape, np.uint8)


def write_picture(path: Path, size: tuple[int, int] = (9, 7)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Picture.fromarray(draw_bytes(*size, 3)).save(path)
    return path


def write_celeba(folder: Path) -> Path:
    for part in ("train", "test"):
        names = [f"{part}{i}.jpg" for i in range(2)]
        for name in names:
            write_picture(folder / "raw" / "img_align_celeba" / name)
        held = {u: {"x": names, "y": [0.0, 1.0]} for u in ("5", "12")}
        (folder / part).mkdir()
        content = {"users": list(held), "num_samples": [2, 2], "user_data": held}
        (folder / part / "a.json").write_text(json.dumps(content))
    return folder


def write_digit5(folder: Path) -> Path:
    """Write the files of Digit5.zip as MATLAB has them."""
    folder.mkdir()
    one_hot = np.eye(10)[np.arange(12) % 10]
    parts = {"train": 12, "test": 10}
    mnist = {f"{p}_32": draw_bytes(n, 32, 32) for p, n in parts.items()}
    savemat(
        folder / "mnist_data.mat", mnist | {f"label_{p}": one_hot[:n] for p, n in parts.items()}
    )
    mnistm = {p: draw_bytes(n, 28, 28, 3) for p, n in parts.items()}
    labels = {f"label_{p}": one_hot[:n] for p, n in parts.items()}
    savemat(folder / "mnistm_with_label.mat", mnistm | labels)
    for name in ("svhn", "synth"):
        for p, n in parts.items():
            y = np.arange(1, n + 1)[:, None] % 10
            held = {"X": draw_bytes(32, 32, 3, n), "y": np.where(y == 0, 10, y)}
            savemat(folder / f"{name}_{p}_32x32.mat", held)
    usps = np.empty((2, 2), object)
    for at, n in enumerate(parts.values()):
        usps[at] = [DRAW.random((n, 1, 28, 28)), (np.arange(n) % 10 + 1)[:, None]]
    savemat(folder / "usps_28x28.mat", {"dataset": usps})
    return folder


def write_office(folder: Path) -> Path:
    for domain in OFFICE_DOMAINS:
        for label in ("backpack", "mug"):
            for i in range(3):
                write_picture(folder / domain / label / f"frame_{i}.jpg", (9 + i, 7))
    return folder


def write_domainnet(folder: Path) -> Path:
    for domain in DOMAINNET_DOMAINS[:2]:
        for part in ("train", "test"):
            files = [
                f"{domain}/{label}/{part}_{i}.jpg" for label in ("anvil", "ant") for i in (0, 1)
            ]
            for file in files:
                write_picture(folder / file)
            lines = [f"{file} {int('anvil' in file)}" for file in files]
            (folder / "splits").mkdir(exist_ok=True)
            (folder / "splits" / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_iwildcam(folder: Path) -> Path:
    (folder / "train").mkdir(parents=True)
    with (folder / "metadata.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, ["split", "location_remapped", "y", "datetime", "filename"])
        out.writeheader()
        for i, split in enumerate(("test", "train", "id_val", "train", "val", "train", "id_test")):
            name = write_picture(folder / "train" / f"{i}.jpg").name
            out.writerow(
                {"split": split, "location_remapped": i % 2, "y": 10 * i, "filename": name}
            )
    return folder


def write_har(folder: Path) -> Path:
    for part, subjects in (("train", [1, 1, 3, 3]), ("test", [2, 2])):
        (folder / part / "Inertial Signals").mkdir(parents=True)
        columns = {"X": [" ".join(["0.5"] * 5)] * len(subjects)}
        columns["y"] = [str(1 + i % 6) for i in range(len(subjects))]
        columns["subject"] = list(map(str, subjects))
        for name, lines in columns.items():
            (folder / part / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")
        for name in ("body_acc_x", "body_gyro_x"):
            lines = [" ".join(["0.25"] * 128)] * len(subjects)
            path = folder / part / "Inertial Signals" / f"{name}_{part}.txt"
            path.write_text("\n".join(lines) + "\n")
    return folder


def write_pamap2(folder: Path) -> Path:
    """Write subjects with 512 rows of standing, one of nothing, and 500 of ironing."""
    (folder / "Protocol").mkdir(parents=True)
    for subject in (101, 102):
        rows = np.ones((1013, 54))
        rows[:, 0], rows[:, 1] = np.arange(1013) / 100, [*[3] * 512, 0, *[17] * 500]
        rows[5, 4] = np.nan
        rows[4, 4] = 7.0
        lines = [" ".join("NaN" if np.isnan(v) else f"{v:g}" for v in row) for row in rows]
        (folder / "Protocol" / f"subject{subject}.dat").write_text("\n".join(lines) + "\n")
    return folder


def write_medmnist(folder: Path, name: str = "pathmnist") -> Path:
    folder.mkdir()
    channels, classes, _, _ = MEDMNIST[name]
    shape = (28, 28) if channels == 1 else (28, 28, 3)
    arrays = {}
    for part, size in (("train", 12), ("val", 2), ("test", 4)):
        arrays[f"{part}_images"] = draw_bytes(size, *shape)
        arrays[f"{part}_labels"] = (np.arange(size, dtype=np.uint8) % classes)[:, None]
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder


# name: how to write it, examples, training examples, users, shape
def write_ag_news(folder: Path) -> Path:
    folder.mkdir()
    for part, count in (("train", 4), ("test", 2)):
        rows = [(i % 4 + 1, f"Title {i}", f'It said, "{part}"') for i in range(count)]
        with (folder / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return folder


WRITTEN = {
    "femnist": (lambda f: write_leaf(f, 784), 15, 10, ("f2", "f10"), (1, 28, 28)),
    "celeba": (write_celeba, 8, 4, ("5", "12"), (3, 84, 84)),
    "digit5": (write_digit5, 110, 60, DIGIT5_DOMAINS, (3, 32, 32)),
    "office-caltech": (write_office, 24, None, OFFICE_DOMAINS, (3, 64, 64)),
    "domainnet": (write_domainnet, 16, 8, DOMAINNET_DOMAINS[:2], (3, 64, 64)),
    "iwildcam": (write_iwildcam, 7, 3, ("0", "1"), (3, 64, 64)),
    "har": (write_har, 6, 4, ("1", "2", "3"), (2, 128)),
    "pamap2": (write_pamap2, 8, None, ("101", "102"), (27, 256)),
    "pathmnist": (write_medmnist, 18, 14, (), (3, 28, 28)),
    "agnews": (write_ag_news, 6, 4, (), (256,)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_set_is_read_from_its_files_and_refused_if_they_are_damaged(tmp_path, name):
    write, examples, official, users, shape = WRITTEN[name]
    folder = write(tmp_path / "set")
    made = read_source(name, str(folder))
    assert (made.name, len(made.y), made.official) == (name, examples, official)
    assert (made.user_names, made.x.shape[1:]) == (users, shape)
    size = SOURCES[name].size
    assert len(made.labels) == (2 if name in ("office-caltech", "domainnet") else size.classes)
    assert made.remark.startswith(f"{name} is not as published") or SOURCES[name].partial
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    last = files[-1]
    content = last.read_bytes()
    cut = content[: len(content) // 2] if name != "agnews" else content[:-3]
    last.write_bytes(cut if last.suffix != ".dat" else b"1 2\n")
    assert str(last.parent) in refused(read_source, name, str(folder))
    assert "data.path" in refused(read_source, name, str(tmp_path))


def test_every_set_with_clients_is_tested():
    tested = {*WRITTEN, *MEDMNIST, "shakespeare"}
    named = {n for n, known in SOURCES.items() if known.clients.names or known.partial}
    assert named <= tested


@pytest.mark.parametrize("name", sorted(MEDMNIST))
def test_sets_of_medmnist_have_the_shape_of_their_name(tmp_path, name):
    made = read_source(name, str(write_medmnist(tmp_path / "set", name)))
    assert made.x.shape[1:] == SOURCES[name].size.shape
    assert "examples instead of" in made.remark


@pytest.mark.filterwarnings("ignore:.*is not as published")
@pytest.mark.parametrize("name", ["digit5", "office-caltech"])
def test_domains_are_clients_by_default(tmp_path, name):
    write, *_ = WRITTEN[name]
    folder = write(tmp_path / "set")
    config = read_config(None, [f"data.name={name}", f"data.path={folder}"])
    assert config.data.clients == len(SOURCES[name].clients.names)
    made = config.build_federation()
    assert made.clients == SOURCES[name].clients.names
    assert hp.federate(name, path=str(folder)).sha256 == made.sha256
    if name == "digit5":
        assert {c: len(rows) for c, rows in made.test.items()} == dict.fromkeys(DIGIT5_DOMAINS, 10)
    mixed = hp.federate(name, path=str(folder), clients=2, partition="iid")
    assert mixed.clients == ("0", "1")


def test_digits_of_all_domains_have_their_labels(tmp_path):
    made = read_source("digit5", str(write_digit5(tmp_path / "set")))
    by_domain = {
        d: made.y[:60][made.users[:60] == i].tolist() for i, d in enumerate(made.user_names)
    }
    assert by_domain["mnist"] == by_domain["mnistm"] == [i % 10 for i in range(12)]
    assert by_domain["svhn"] == by_domain["syn"] == [i % 10 for i in range(1, 13)]
    assert by_domain["usps"] == [i % 10 for i in range(1, 13)]


def test_windows_of_pamap2_have_one_activity_and_no_gap(tmp_path):
    made = read_source("pamap2", str(write_pamap2(tmp_path / "set")))
    # windows start every 128 rows: those of rows 384 and 512 have two activities
    names = [made.labels[label] for label in made.y]
    assert names == ["standing", "standing", "standing", "ironing"] * 2
    assert made.x[0, 0, 4] == made.x[0, 0, 5] == np.float32(0.7)
    short = np.zeros((255, 27), np.float32), np.zeros(255, np.int64)
    assert [len(part) for part in cut_windows(*short)] == [0, 0]


def test_domainnet_with_an_absurd_class_is_refused_before_names_are_made(tmp_path):
    folder = write_domainnet(tmp_path / "set")
    lists = folder / "splits" / f"{DOMAINNET_DOMAINS[0]}_train.txt"
    for label in ("9" * 5, "9" * 12, "9" * 5000):
        lists.write_text(f"clipart/ant/train_0.jpg {label}\n")
        said = refused(read_source, "domainnet", str(folder))
        assert said == f"{lists}:1: must be a file and the number of its class"


def test_femnist_of_whole_numbers_takes_little_memory(tmp_path):
    folder = write_leaf(tmp_path / "set", 784)
    part = leaf_part({"f1": 2}, 784)
    part["user_data"]["f1"]["x"][1] = [0.5] * 783
    (folder / "train" / "more.json").write_text(json.dumps(part))
    assert "x must be lists of numbers of equal length" in refused(
        read_source, "femnist", str(folder)
    )
