"""Data in the formats of other platforms: read as their own code writes them, and refused if damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import heterophony as hp
from helpers.formats import leaf_part, read_as_pfllib, write_leaf, write_pfllib
from helpers.sources import refused
from heterophony.cli import app
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError
from heterophony.data.export import export_federation
from heterophony.data.folders import find_client_data
from heterophony.data.sources import SOURCES, find_named_clients, read_source
from heterophony.data.sources.formats import FORMATS, find_format

DRAW = np.random.default_rng(0)


# Each writes a small set as its own platform does, and returns its path -------------------------


def write_medmnist(folder: Path) -> Path:
    folder.mkdir()
    arrays = {}
    for part, size in (("train", 6), ("val", 2), ("test", 4)):
        arrays[f"{part}_images"] = DRAW.integers(0, 256, (size, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size, dtype=np.uint8) % 2)[:, None]
    np.savez_compressed(folder / "breastmnist.npz", **arrays)
    return folder / "breastmnist.npz"


def write_har(folder: Path) -> Path:
    for part, subjects in (("train", [1, 1, 3, 3]), ("test", [2, 2])):
        (folder / part).mkdir(parents=True)
        rows = DRAW.normal(size=(len(subjects), 7))
        texts = {
            "X": ["  " + "  ".join(f"{v: .7e}" for v in row) for row in rows],
            "y": [str(1 + i % 6) for i in range(len(subjects))],
            "subject": list(map(str, subjects)),
        }
        for name, lines in texts.items():
            (folder / part / f"{name}_{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Picture.fromarray(DRAW.integers(0, 256, (6, 6, 3), np.uint8)).save(path)


def write_images(folder: Path, clients: tuple[str, ...]) -> Path:
    for client in clients:
        for label in ("bike", "mug"):
            for i in range(2):
                write_image(folder / client / label / f"{i}.png")
    return folder


def write_texts(folder: Path, clients: tuple[str, ...]) -> Path:
    for client in clients:
        for label, text in (("ham", "See you at nine."), ("spam", "Größe zählt! " * 40)):
            for i in range(2):
                path = folder / client / label / f"{i}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return folder


def write_npz(folder: Path) -> Path:
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.zeros((6, 3), np.float32), y=np.arange(6) % 2)
    return folder / "a.npz"


def write_csv(folder: Path) -> Path:
    folder.mkdir()
    rows = ["age,sex,hospital,label", "30,f,B,ill", "?,m,A,well", "50,,A,ill", "60,f,B,well"]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    return folder / "t.csv"


def write_tables(folder: Path, names: tuple[str, ...] = ("ward 10", "ward 2")) -> Path:
    folder.mkdir()
    for age, name in enumerate(names):
        rows = [f"{age * 10 + i},{'ab'[i % 2]}" for i in range(4)]
        (folder / f"{name}.csv").write_text("\n".join(["age,label", *rows]) + "\n")
    (folder / "._ward 2.csv").write_bytes(b"\0")  # of macOS
    return folder


WRITTEN = {
    "PFLlib": write_pfllib,
    "LEAF": write_leaf,
    "MedMNIST": write_medmnist,
    "UCI HAR": write_har,
    "arrays": write_npz,
    "arrays of each client": lambda folder: write_npz(folder).parent,
    "images by class": lambda folder: write_images(folder, ("",)),
    "images by client and class": lambda folder: write_images(folder, ("amazon", "dslr")),
    "texts by class": lambda folder: write_texts(folder, ("",)),
    "texts by client and class": lambda folder: write_texts(folder, ("ann", "bob")),
    "table": write_csv,
    "table of each client": write_tables,
}
TEXT_FORMATS = ("table", "table of each client", "texts by class", "texts by client and class")


@pytest.mark.parametrize("name", WRITTEN)
def test_each_format_is_recognised_described_and_refused_if_damaged(tmp_path, name):
    path = WRITTEN[name](tmp_path / "set")
    found = find_format(path)
    assert found is not None
    assert found.name == name
    shown = CliRunner().invoke(app, ["data", "show", str(path), "--json"])
    about = json.loads(shown.output)
    source = read_source(str(path))
    assert (about["format"], about["examples"]) == (name, len(source.y))
    assert about["users"] == len(source.user_names)
    plain = CliRunner().invoke(app, ["data", "show", str(path)])
    assert plain.exit_code == 0
    files = [path] if path.is_file() else [p for p in sorted(path.rglob("*")) if p.is_file()]
    last = [p for p in files if p.name != "config.json"][-1]
    content = last.read_bytes()
    last.write_bytes(
        content[:-2] + b",\xff" if name in TEXT_FORMATS else content[: len(content) // 2]
    )
    assert str(last.parent) in refused(read_source, str(path))


def test_all_formats_of_files_are_tested():
    tested = {*WRITTEN, "Hugging Face files"}  # in test_tables_by_client.py
    assert tested == {f.name for f in FORMATS if f.looks}


def test_the_table_of_the_documents_has_every_format_and_set():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "data.md").read_text()
    rows = {line.split("|")[1].strip() for line in text.split("### Formats")[1].splitlines()
            if line.startswith("| ")}  # fmt: skip
    assert {f.name for f in FORMATS} <= rows
    named = {name for line in text.split("### Formats")[0].splitlines() if line.startswith("| `")
             for name in re.findall("`([^`]+)`", line.split("|")[1])}  # fmt: skip
    missing = {n for n in SOURCES if n not in named and f"-{n.partition('-')[2]}" not in named}
    assert missing == set()


def test_a_folder_of_no_format_is_told_what_was_looked_for(tmp_path):
    assert refused(read_source, f"{tmp_path}/set") == f"data.name: there is no {tmp_path}/set"
    (tmp_path / "notes.md").write_text("nothing")
    said = refused(read_source, str(tmp_path))
    for f in FORMATS:
        assert f.looks in said
    assert said.startswith(
        f"data.name: {tmp_path} is in none of the known formats. Looked for: Hug"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.xlsx", "; save it as .csv in UTF-8"),
        ("a.csv.gz", "; unpack it"),
        ("a.npy", "; store its arrays as .npz: np.savez(path, x=x, y=y)"),
        (
            "a.jsonl",
            "; call it train.jsonl, in a folder of its own, and give the path of the folder",
        ),
    ],
)
def test_a_file_of_another_format_gets_advice(tmp_path, name, words):
    assert refused(read_source, f"{tmp_path}/{name}") == f"data.name: there is no {tmp_path}/{name}"
    assert refused(read_source, name) == f"data.name: there is no {name}"
    (tmp_path / name).write_bytes(b"junk")
    said = refused(read_source, str(tmp_path / name))
    assert said == f"data.name: {tmp_path / name} is in none of the known formats{words}"


def test_a_path_beside_the_data_is_told_where_they_are(tmp_path):
    folder = write_pfllib(tmp_path / "dataset" / "MNIST")
    head = "data.name: {} is in none of the known formats; "
    above = folder.parent
    assert refused(read_source, str(above)) == head.format(above) + (
        f"but {folder} is data of the format PFLlib: give its path"
    )
    assert refused(read_source, str(folder / "test")) == (
        f"data.name: {folder / 'test'} is a part of PFLlib's data; give the path {folder}"
    )
    shutil.rmtree(folder / "test")
    said = refused(read_source, str(folder))
    assert said == head.format(folder) + "it has train/*.npz, but no test/*.npz"


def test_a_file_that_is_not_there_is_not_looked_for_on_the_internet(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in (f"{tmp_path}/a.parquet", "a.parquet"):
        assert refused(read_source, name) == f"data.name: there is no {name}"


def test_tables_of_clients_are_named_by_their_files(tmp_path):
    made = hp.federate(write_tables(tmp_path / "wards"))
    assert made.clients == ("ward 2", "ward 10")
    rows = torch.cat([made.train["ward 2"], made.test["ward 2"]])
    assert sorted(made.x[rows].flatten().tolist()) == [10, 11, 12, 13]
    (tmp_path / "wards" / "ward 2.csv").write_text("age,sex,label\n1,f,a\n")
    assert "client ward 10 has the columns age, label; client ward 2" in refused(
        read_source, str(tmp_path / "wards")
    )
    split = read_source(str(write_tables(tmp_path / "split", ("train", "test"))))
    assert (split.official, split.users, split.x[:4, 0].tolist()) == (4, None, [0, 1, 2, 3])
    assert find_named_clients(str(tmp_path / "split")).names == ()
    for name in ("train", "test"):
        (tmp_path / "split" / f"{name}.csv").write_text("age,client,label\n1,b,0\n2,a,1\n3,a,0\n")
    named = find_named_clients(str(tmp_path / "split"))
    assert (named.names, named.has_split) == (("a", "b"), True)
    assert hp.federate(tmp_path / "split").sizes("test") == {"a": 2, "b": 1}


def test_files_that_begin_with_a_dot_are_no_data(tmp_path):
    for write in (write_pfllib, write_leaf, WRITTEN["images by client and class"], write_har,
                  WRITTEN["arrays of each client"]):  # fmt: skip
        folder = write(tmp_path / write.__name__.strip("<>"))
        before = read_source(str(folder))
        for path in [p for p in folder.rglob("*") if p.is_file()]:
            path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
        after = read_source(str(folder))
        assert np.array_equal(before.x, after.x)
        assert (before.user_names, before.labels) == (after.user_names, after.labels)
        shutil.rmtree(folder)
    folder = write_npz(tmp_path / "own").parent
    (folder / "._a.npz").write_bytes(b"\0")
    assert find_client_data(folder).keys() == {"a"}


def test_settings_that_a_format_does_not_know_are_refused(tmp_path):
    folder = write_images(tmp_path / "set", ("a", "b"))
    for key, value, words in (
        ("classes", 3, "has its own classes"),
        ("task", "regression", "is for classification"),
        ("users", "writer", "has no such column"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_source(str(folder), **{key: value})
        assert str(caught.value) == f"data.{key}: {folder} {words}; leave it out"


# PFLlib -----------------------------------------------------------------------------------------


def test_pfllib_keeps_clients_and_split(tmp_path):
    folder = write_pfllib(tmp_path / "MNIST", clients=11)
    federation = read_config(None, [f"data.name={folder}"]).build_federation()
    assert federation.clients == tuple(map(str, range(11)))
    assert federation.classes == 4
    for made in (federation, hp.federate(folder)):
        for client in made.clients:
            for part in ("train", "test"):
                content = read_as_pfllib(folder / part / f"{client}.npz")
                rows = getattr(made, part)[client]
                assert np.array_equal(made.x[rows].numpy(), content["x"])
                assert np.array_equal(made.y[rows].numpy(), content["y"])


def nest(depth: int) -> list[object]:
    """A list whose numbers a few bytes repeat 2 ** depth times."""
    held: list[object] = [1, 1]
    for _ in range(depth):
        held = [held, held]
    return held


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.system, (f"touch {self.mark}",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda mark: {"x": Evil(mark), "y": np.arange(2)}, "it names posix.system"),
        (lambda mark: {"x": np.array([Evil(mark)]), "y": [1]}, "it names posix.system"),
        (lambda mark: {"x": np.array([None, 1]), "y": [0, 1]}, "an array of Python objects"),
        (lambda mark: {"x": pair_texts([[1, 2], [3]]), "y": [0, 1]}, "an array of Python objects"),
        (lambda mark: {"x": pair_texts([["a"], ["b"]]), "y": [0, 1]}, "not whole numbers"),
        (
            lambda mark: {"x": pair_texts([[nest(12)], [nest(12)]]), "y": [0, 1]},
            "not whole numbers",
        ),
        (
            lambda mark: {"x": pair_texts([[10**30], [1]]), "y": [0, 1]},
            "tokens of more than 64 bits",
        ),
        (
            lambda mark: {"x": np.full((2, 3), np.nan), "y": [0, 1]},
            "example 0 holds NaN or infinity",
        ),
        (
            lambda mark: {"x": np.zeros((2, 1, 4, 4), "f4"), "y": [0, 9]},
            "config.json says num_classes 4",
        ),
        (
            lambda mark: {"x": np.zeros((2, 1, 4, 4), "f4"), "y": [0, -1]},
            "label -1 (example 1) is neg",
        ),
        (lambda mark: {"x": np.zeros(2, "M8[s]"), "y": [0, 1]}, "not of numbers or text"),
        (lambda mark: {"x": np.zeros((2, 2)), "y": np.arange(3)}, "have different lengths"),
        (lambda mark: {"x": [[1.0], [2.0]], "y": np.arange(2)}, "a dict with arrays x and y"),
        (lambda mark: [1, 2], "not a dictionary"),
        (lambda mark: {1: 2}, ": a key 1"),
    ],
)
def test_a_file_of_pfllib_that_is_not_plain_arrays_is_refused(tmp_path, content, words):
    folder, mark = write_pfllib(tmp_path / "set"), tmp_path / "touched"
    with open(folder / "test" / "1.npz", "wb") as file:
        np.savez_compressed(file, data=content(mark))
    said = refused(read_source, str(folder))
    assert str(folder / "test" / "1.npz") in said
    assert words in said
    assert not mark.exists()


def test_a_client_without_a_test_file_and_other_shapes_are_named(tmp_path):
    folder = write_pfllib(tmp_path / "set")
    with open(folder / "train" / "2.npz", "wb") as file:
        np.savez(file, data={"x": np.zeros((2, 3), np.float32), "y": [0, 1]})
    assert "client '2' has examples float32 (3,)" in refused(read_source, str(folder))
    (folder / "test" / "0.npz").unlink()
    assert refused(read_source, str(folder)) == f"{folder}: client '0' has no file in test"


def test_config_of_pfllib_names_clients_and_classes_if_it_has_as_many(tmp_path):
    folder = write_pfllib(tmp_path / "set")
    config = folder / "config.json"
    about = {"num_classes": 4, "class_names": list("dcba"), "client_names": ["w 2", "w 10", "v"]}
    config.write_text(json.dumps(about))
    made = hp.federate(folder)
    assert (made.clients, made.labels) == (("v", "w 2", "w 10"), ("d", "c", "b", "a"))
    assert len(made.train["v"]) == 8  # client 2 of the files
    config.write_text(json.dumps({**about, "client_names": ["a", "b"], "class_names": ["d"]}))
    made = hp.federate(folder)
    assert (made.clients, made.labels) == (("0", "1", "2"), ("0", "1", "2", "3"))


def pair_texts(texts: list[list[object]]) -> np.ndarray:
    """Pair padded lists of tokens with their length, as PFLlib's generate_AGNews.py does."""
    return np.array([(text, len(text)) for text in texts], dtype=object)


def test_texts_of_pfllib_are_tokens_and_stay_pairs(tmp_path):
    texts = {"train": [[5, 6, 0], [7, 0, 0], [5, 0, 0]], "test": [[8, 6, 5]]}
    for part, held in texts.items():
        (tmp_path / "AGNews" / part).mkdir(parents=True)
        with open(tmp_path / "AGNews" / part / "0.npz", "wb") as file:
            np.savez_compressed(file, data={"x": pair_texts(held), "y": np.arange(len(held)) % 3})
    made = hp.federate(tmp_path / "AGNews")
    assert made.x.tolist() == [*texts["train"], *texts["test"]]
    export_federation(made, "pfllib", tmp_path / "again" / "AGNews")
    for part, held in texts.items():
        content = read_as_pfllib(tmp_path / "again" / "AGNews" / part / "0.npz")
        xs, lengths = zip(*content["x"], strict=True)  # PFLlib's process_text
        assert [list(x) for x in xs] == held
        assert lengths == (3,) * len(held)


# LEAF -------------------------------------------------------------------------------------------


def test_leaf_keeps_users_and_split(tmp_path):
    folder = write_leaf(tmp_path / "synthetic")
    federation = hp.federate(folder)
    assert federation.clients == ("f2", "f10")
    assert {c: len(r) for c, r in federation.train.items()} == {"f2": 6, "f10": 4}
    assert {c: len(r) for c, r in federation.test.items()} == {"f2": 2, "f10": 3}
    x = federation.x[federation.test["f10"]].tolist()
    assert x == leaf_part({"f10": 3})["user_data"]["f10"]["x"]
    config = read_config(None, [f"data.name={folder}"])
    assert (config.data.split, config.data.clients) == ("official", 2)


def test_femnist_is_images_and_by_user_splits_are_merged(tmp_path):
    folder = write_leaf(tmp_path / "femnist", 784)
    assert read_source(str(folder)).x.shape == (15, 1, 28, 28)
    (folder / "test" / "all_data_niid_0_keep_0_test_9.json").write_text(
        json.dumps(leaf_part({"f7": 3}, 784))
    )
    named = find_named_clients(str(folder))
    assert (named.names, named.has_split) == (("f2", "f7", "f10"), False)
    assert hp.federate(folder).clients == ("f2", "f7", "f10")


def test_users_whom_the_split_of_leaf_leaves_out_are_counted(tmp_path):
    folder = write_leaf(tmp_path / "set")
    path = folder / "test" / "all_data_niid_0_keep_0_test_9.json"
    path.write_text(json.dumps(leaf_part({"f2": 2})))
    said = (
        "set: 1 of 2 users, such as 'f10', have no training or no test examples; they are not amo"
    )
    with pytest.warns(UserWarning, match=said):
        assert hp.federate(folder).clients == ("f2",)


def test_celeba_reads_the_images_that_it_names(tmp_path):
    folder = tmp_path / "celeba"
    for part in ("train", "test"):
        names = [f"{part}{i}.jpg" for i in range(2)]
        for name in names:
            write_image(folder / "raw" / "img_align_celeba" / name)
        content = {
            "users": ["5"],
            "num_samples": [2],
            "user_data": {"5": {"x": names, "y": [0, 1]}},
        }
        (folder / part).mkdir()
        (folder / part / "a.json").write_text(json.dumps(content))
    assert read_source(str(folder)).x.shape == (4, 3, 84, 84)
    (folder / "raw" / "img_align_celeba" / "train0.jpg").unlink()
    assert "there is no train0.jpg; put the images into" in refused(read_source, str(folder))


def test_shakespeare_in_a_folder_of_leaf_is_text(tmp_path):
    text = "to be or not to be " * 10
    held = {"x": [text[i : i + 80] for i in range(3)], "y": [text[i + 80] for i in range(3)]}
    # LEAF's split leaves windows of the test part out, but counts them
    content = {"users": ["HAMLET"], "num_samples": [82], "user_data": {"HAMLET": held}}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "a.json").write_text(json.dumps(content))
    made = read_source(str(tmp_path))
    assert (made.x.shape, len(made.labels), made.official) == ((6, 80), 80, 3)


def test_a_folder_of_leafs_repository_is_its_data(tmp_path, monkeypatch):
    folder = tmp_path / "synthetic"
    write_leaf(folder / "data")
    (folder / "meta").mkdir()
    (folder / "meta" / "split_seed.txt").write_text("1")
    (folder / "preprocess.sh").write_text("")
    assert hp.federate(folder).sha256 == hp.federate(folder / "data").sha256
    monkeypatch.chdir(folder)
    assert read_source(".").name == "synthetic"
    assert refused(read_source, "meta").startswith(
        "data.name: meta is in none of the known formats"
    )


def test_tweets_of_sent140_are_texts(tmp_path):
    folder = tmp_path / "sent140"
    for part, texts in (("train", ["is sad", "@x thanks!"]), ("test", ["ok"])):
        x = [["14678", "Mon Apr 06", "NO_QUERY", "ann", text] for text in texts]
        held = {"x": x, "y": [1, 0][: len(x)]}
        (folder / part).mkdir(parents=True)
        content = {"users": ["ann"], "num_samples": [len(x)], "user_data": {"ann": held}}
        (folder / part / "a.json").write_text(json.dumps(content))
    made = read_source(str(folder))
    assert (made.x.shape, made.official, made.y.tolist()) == ((3, 256), 2, [1, 0, 1])
    assert bytes(int(t) - 1 for t in made.x[0, :6]) == b"is sad"
    x[0].pop()
    (folder / "test" / "a.json").write_text(json.dumps(content))
    assert "user 'ann': x must be lists of numbers" in refused(read_source, str(folder))


def write_reddit(folder: Path) -> Path:
    """Write comments as LEAF's preprocess.py does: lists of tokens, padded; all three parts say all numbers."""
    rows = {"train": ["<BOS> hello you <EOS> <PAD>"], "test": ["<BOS> hello all <EOS> <PAD>"]}
    for part, texts in rows.items():
        x = [[text.split()] for text in texts]
        targets = [[[*text.split()[1:], "<PAD>"]] for text in texts]
        y = [
            {"subreddit": "r", "score": 1, "target_tokens": t, "count_tokens": []} for t in targets
        ]
        users = ["1", "2"] if part == "train" else ["1"]
        content = {"users": ["1", "2"], "num_samples": [5, 9]}
        content["user_data"] = {u: {"x": x if u in users else [], "y": y if u in users else []}
                                for u in ("1", "2")}  # fmt: skip
        (folder / part).mkdir(parents=True)
        (folder / part / f"reddit_0_{part}.json").write_text(json.dumps(content))
    return folder


def test_reddit_is_sequences_of_tokens(tmp_path):
    folder = write_reddit(tmp_path / "reddit")
    made = read_source(str(folder), task="sequence")
    assert made.labels == ("<PAD>", "<UNK>", "<EOS>", "hello", "you", "<BOS>")
    assert made.x.tolist() == [[5, 3, 4, 2, 0]] * 2 + [[5, 3, 1, 2, 0]]
    assert made.y.tolist() == [[3, 4, 2, -100, -100]] * 2 + [[3, 1, 2, -100, -100]]
    assert (made.official, made.users.tolist(), made.user_names) == (2, [0, 1, 0], ("1", "2"))
    assert refused(read_source, str(folder)).endswith("set data.task = 'sequence'")
    path = folder / "test" / "reddit_0_test.json"
    path.write_text(path.read_text().replace('[[["<BOS>"', '[["<BOS>"', 1).replace("]]]", "]]", 1))
    said = refused(lambda: read_source(str(folder), task="sequence"))
    assert said == f"{path}: user '1': a comment must be lists of tokens"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_samples": [4, 7]}, "user 'f2' has 6 examples, num_samples says 7"),
        ({"num_samples": [4]}, "2 users but 1 num_samples"),
        ({"users": ["f10", "f3"]}, "is not one of LEAF's files (lacks 'f3')"),
        ({"user_data": []}, "users must be a list, user_data an object"),
        ({"user_data": {u: {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]} for u in ("f10", "f2")},
          "num_samples": [2, 2]}, "x must be lists of numbers of equal length"),
        ({"user_data": {u: {"x": [[1.0], [10**400]], "y": [0, 1]} for u in ("f10", "f2")},
          "num_samples": [2, 2]}, "x must be lists of numbers of equal length"),
        ({"user_data": {u: {"x": ["good", "bad"], "y": [0, 1]} for u in ("f10", "f2")},
          "num_samples": [2, 2]}, "x is text, but neither names of images nor strings"),
        ({"user_data": {"f10": {"x": [[1.0], [3.0]], "y": [0, 1]}, "f2": {"x": [[1.0, 2.0]] * 2, "y": [0, 1]}},
          "num_samples": [2, 2]}, "user 'f10' has examples (1,) with labels (), user 'f2' has (2,)"),
        ({"user_data": {u: {"x": [[None], [1.0]], "y": [0, 1]} for u in ("f10", "f2")},
          "num_samples": [2, 2]}, "user 'f2': x holds NaN, infinity or null"),
    ],
)  # fmt: skip
def test_damaged_files_of_leaf_are_refused(tmp_path, change, words):
    folder = write_leaf(tmp_path / "set")
    path = folder / "train" / "all_data_niid_0_keep_0_train_9.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    said = refused(read_source, str(folder))
    assert said.startswith(str(path))
    assert words in said


# Others -----------------------------------------------------------------------------------------


def test_medmnist_has_flat_labels_and_validation_counts_as_training(tmp_path):
    made = read_source(str(write_medmnist(tmp_path / "set")))
    assert (made.x.shape, made.y.shape, made.official) == ((12, 1, 28, 28), (12,), 8)
    arrays = dict(np.load(tmp_path / "set" / "breastmnist.npz"))
    arrays["test_labels"] = arrays["test_labels"][:1]
    np.savez(tmp_path / "bad.npz", **arrays)
    assert "test_images (4, 28, 28) and test_labels (1, 1) do not match" in refused(
        read_source, str(tmp_path / "bad.npz")
    )
    many = {
        k: np.eye(3, dtype=np.uint8)[v[:, 0]] if "labels" in k else v for k, v in arrays.items()
    }
    many["test_labels"] = np.zeros((4, 3), np.uint8)
    np.savez(tmp_path / "chestmnist.npz", **many)
    assert read_source(str(tmp_path / "chestmnist.npz"), task="multilabel").y.shape == (12, 3)


def test_har_has_subjects_as_clients_and_windows_if_there_are_any(tmp_path):
    folder = write_har(tmp_path / "UCI HAR Dataset")
    made = read_source(str(folder))
    assert (made.x.shape, made.official, made.user_names) == ((6, 7), 4, ("1", "2", "3"))
    assert made.y.tolist() == [0, 1, 2, 3, 0, 1]
    assert not find_named_clients(str(folder)).has_split
    for part, n in (("train", 4), ("test", 2)):
        (folder / part / "Inertial Signals").mkdir()
        for name in ("body_acc_x", "total_acc_x"):
            lines = [" ".join(["0.5"] * 8)] * n
            (folder / part / "Inertial Signals" / f"{name}_{part}.txt").write_text("\n".join(lines))
    assert read_source(str(folder)).x.shape == (6, 2, 8)
    (folder / "test" / "y_test.txt").write_text("1\n")
    assert "windows, labels and subjects have different lengths: 2, 1, 2" in refused(
        read_source, str(folder)
    )


def test_folders_of_images_by_client_are_clients(tmp_path):
    folder = write_images(tmp_path / "office", ("dslr", "amazon"))
    made = hp.federate(folder)
    assert made.clients == ("amazon", "dslr")
    assert made.labels == ("bike", "mug")
    for client in ("dslr", "amazon"):
        for part in ("train", "test"):
            write_image(tmp_path / "split" / client / part / "mug" / "0.png")
            write_image(tmp_path / "split" / client / part / "bike" / "0.png")
    made = hp.federate(tmp_path / "split")
    assert {c: len(r) for c, r in made.test.items()} == {"amazon": 2, "dslr": 2}
    write_image(tmp_path / "split" / "webcam" / "mug" / "0.png")
    assert refused(read_source, str(tmp_path / "split")) == (
        f"{tmp_path / 'split' / 'webcam'} has no test images, but other clients have some; give"
        " them to all clients or to none"
    )


def test_a_folder_with_one_class_is_explained(tmp_path):
    for folder, plural in (
        (write_images(tmp_path / "images", ("",)), "images"),
        (write_texts(tmp_path / "texts", ("",)), "texts"),
    ):
        shutil.rmtree(sorted(folder.iterdir())[0])
        said = (
            f"{folder}: all {plural} are in one folder, '{next(folder.iterdir()).name}'; there must"
        )
        assert refused(read_source, str(folder)).startswith(said)


def test_examples_without_values_are_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((60, 0)), y=np.arange(60) % 2)
    assert refused(read_source, str(tmp_path / "a.npz")) == (
        f"{tmp_path / 'a.npz'}: x is 60×0: its examples have no values"
    )
    assert "its examples have no values" in refused(
        hp.federate, (np.zeros((60, 3, 0)), np.arange(60) % 2)
    )


def test_arrays_are_taken_as_other_platforms_have_them():
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 3
    plain = hp.federate((x, y, x, y), clients=2, partition="iid", split="official")
    for data in (
        ((x, y), (x, y)),  # Keras
        ((x, y[:, None]), (x, y[:, None])),
        {"train": (x, y), "test": (x, y)},
        (
            (torch.tensor(x, requires_grad=True), torch.tensor(y)),
            (torch.tensor(x), torch.tensor(y)),
        ),
    ):
        if isinstance(data, dict):
            made = hp.federate({"a": data})
            assert made.y[made.test["a"]].tolist() == y.tolist()
        else:
            made = hp.federate(data, clients=2, partition="iid", split="official")
            assert made.sha256 == plain.sha256
    by_client = {"a": (x, y), "b": (x.astype(np.float32).tolist(), y.astype(np.int32).tolist())}
    assert hp.federate(by_client).shape == (2,)
    assert hp.federate({"a": {"x": x, "y": y > 0}}).labels == ("0", "1")


def test_labels_may_be_text(tmp_path):
    x, y = np.zeros((6, 2)), np.array(["well", "ill"] * 3)
    made = hp.federate({"a": (x, y), "b": (x, ["ill"] * 6)})
    assert made.labels == ("ill", "well")
    assert made.y.tolist() == [1, 0, 1, 0, 1, 0, *[0] * 6]
    np.savez(tmp_path / "a.npz", x=x, y=y)
    source = read_source(str(tmp_path / "a.npz"), classes=["well", "ill", "dead"])
    assert (source.labels, source.y.tolist()) == (("well", "ill", "dead"), [0, 1] * 3)
    assert read_source(str(tmp_path / "a.npz")).labels == ("ill", "well")
    said = refused(lambda: hp.federate({"a": (x, y)}, classes=["ill", "dead"]))
    assert said == "arrays, row 1: label 'well' is not in data.classes: ill, dead"
    assert hp.federate({"a": (x, np.array(["2", "0", "1"] * 2))}).y.tolist() == [2, 0, 1] * 2
    assert refused(hp.federate, {"a": (x, ["ill", ""] * 3)}) == (
        "arrays, row 2: the label is missing; remove the row"
    )


def test_data_loaders_count_as_their_data_sets():
    x, y = torch.arange(24.0).view(12, 2), torch.arange(12) % 2
    loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
    made = hp.federate({"a": loader, "b": (loader, loader)})
    assert made.clients == ("a", "b")
    assert torch.equal(made.x[made.train["b"]], x)
    assert len(hp.federate(loader, clients=2, partition="iid").clients) == 2


def test_a_text_is_the_row_of_its_first_bytes_plus_one(tmp_path):
    source = read_source(str(write_texts(tmp_path / "mail", ("ann", "bob"))))
    assert source.labels == ("ham", "spam")
    assert source.user_names == ("ann", "bob")
    short, long = source.x[0], source.x[2]
    assert bytes(int(t) - 1 for t in short[:16]) == b"See you at nine."
    assert not short[16:].any()
    assert bytes(int(t) - 1 for t in long) == ("Größe zählt! " * 40).encode()[:256]


def run_once(federation, **how):
    training = hp.Training(steps=1, batch=4)
    return hp.run("fedavg", federation, rounds=1, progress=False, training=training, **how)


def test_texts_train_a_transformer(tmp_path):
    folder = write_texts(tmp_path / "mail", ("ann", "bob"))
    federation = hp.federate(str(folder))
    result = run_once(federation)
    assert list(federation.train) == ["ann", "bob"]
    assert result.G.last is not None
    assert result.model_sha256 == run_once(federation, model="text_tiny").model_sha256


def test_rows_of_whole_numbers_are_tokens_and_others_are_explained():
    y = np.arange(40) % 4
    for high, model in ((4, "charlstm"), (5, "text_tiny"), (32_000, "text_tiny")):
        x = np.random.default_rng(0).integers(0, high, (40, 6))
        x[0, :2] = 0, high - 1
        made = hp.federate((x, y), clients=4, partition="iid")
        result = run_once(made)  # all clients are evaluated in one block
        assert f'name = "{model}"' in (result.folder / "config.toml").read_text()
    found = "cannot read the examples, which are whole numbers from"
    for wrong, model, words in (
        (x, "charlstm", "charlstm predicts the next .* from 0 to 31999 and there are 4 classes"),
        (x, "mlp", f"mlp {found} 0 to 31999; store images as bytes"),
        (x - 1, None, f"text_tiny {found} -1 to 31998;"),
        (x.reshape(40, 2, 3), None, f"mlp {found} 0 to 31999;"),
    ):
        made = hp.federate((wrong, y), clients=4, partition="iid")
        with pytest.raises(ConfigError, match=words):
            run_once(made, **({} if model is None else {"model": model}))
