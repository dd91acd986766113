"""Tables and data sets of Hugging Face: of each client, in files, and with the formats that people set."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from typer.testing import CliRunner

import heterophony as hp
from helpers import commands
from helpers.formats import HELD, Frame
from helpers.sources import ClassLabel, Image, Rows, Value, install_hub, refused
from heterophony.cli import app
from heterophony.core.errors import DataError
from heterophony.data.export import export_federation
from heterophony.data.sources import find_named_clients, read_source
from heterophony.data.sources.formats import find_format


def test_frames_of_clients_are_one_table():
    both = {k: v[:4] for k, v in HELD.items()}, {k: v[4:] for k, v in HELD.items()}
    made = hp.federate({"B": Frame(both[0], {"ward": "category"}), "A": Frame(both[1])})
    assert made.clients == ("A", "B")
    assert [c.name for c in made.columns] == ["age", "sex", "ward", "hospital"]
    assert made.columns[2].categories
    assert hp.federate([Frame(part) for part in both]).clients == ("0", "1")
    del both[1]["sex"]
    with pytest.raises(
        DataError, match="client b has the columns age, ward, hospital, label; client"
    ):
        hp.federate({"a": Frame(both[0]), "b": Frame(both[1])})


def test_a_frame_beside_its_labels_is_a_table(tmp_path):
    held = {k: HELD[k] for k in ("age", "sex", "ward")}
    frame, labels = Frame(held, {"ward": "category"}), HELD["label"]
    whole = hp.federate(Frame({**held, "label": labels}, {"ward": "category"}), clients=1,
                        partition="iid")  # fmt: skip
    for given in (labels, np.array(labels), Frame({"outcome": labels})):
        assert hp.federate((frame, given), clients=1, partition="iid").sha256 == whole.sha256
    numbers = {"a": [3, 4, 5, 6], "b": [1, 0, 2, 1]}  # measurements, not tokens
    pair = (Frame(numbers), [0, 1, 1, 0])
    assert hp.federate(pair, clients=1, partition="iid").x.is_floating_point()
    made = hp.federate(
        {"b": pair * 2, "a": (Frame({k: v[:3] for k, v in numbers.items()}), [0, 1, 1], *pair)}
    )
    assert {c: (len(made.train[c]), len(made.test[c])) for c in "ab"} == {"a": (3, 4), "b": (4, 4)}
    assert made.x[made.test["a"]].tolist() == [[3, 1], [4, 0], [5, 2], [6, 1]]
    for wrong, words in (
        ((pair[0], [0, 1]), "4 examples but 2 labels"),
        ((Frame({"label": [0, 1]}), [0, 1]), "has a column 'label' in addition to the labels"),
        ((*pair, Frame({"a": [1]}), [0]), "training and test examples have different columns"),
        ({"a": pair, "b": pair * 2}, "some clients have test examples, others have none"),
    ):
        with pytest.raises(DataError, match=words):
            hp.federate(wrong)


def test_frames_for_training_and_test_are_one_table():
    train, test = ({k: v[at] for k, v in HELD.items()} for at in (slice(4), slice(4, None)))
    frames = {"train": Frame(train), "test": Frame(test)}
    made = hp.federate(frames, users="hospital")
    assert made.clients == ("A", "B")
    assert sorted(torch.cat(list(made.train.values())).tolist()) == [0, 1, 2, 3]
    beside = {
        part: (Frame({k: v for k, v in held.items() if k != "label"}), held["label"])
        for part, held in (("train", train), ("test", test))
    }
    assert hp.federate(beside, users="hospital").sha256 == made.sha256


def make_rows(count: int, first: int = 0) -> Rows:
    rows = [{"f": [float(first + i), 1.0], "label": i % 2} for i in range(count)]
    return Rows(rows, f=type("List", (), {})(), label=ClassLabel(["no", "yes"]))


def test_a_data_set_of_each_client_keeps_its_split():
    whole = {
        str(i): {"train": make_rows(4, 10 * i), "test": make_rows(2, 10 * i + 5)} for i in range(2)
    }
    for rows in (r for splits in whole.values() for r in splits.values()):
        rows.features = next(iter(whole.values()))["train"].features
    made = hp.federate(whole)
    assert made.clients == ("0", "1")
    assert made.labels == ("no", "yes")
    assert made.x[made.test["1"]].tolist() == [[15, 1], [16, 1]]
    parts = [splits["train"] for splits in whole.values()]
    assert hp.federate(parts).clients == ("0", "1")
    with pytest.raises(
        DataError,
        match="client 1 has no test split, but others have; give one to all clients or to none",
    ):
        hp.federate([whole["0"], {"train": parts[1]}])
    with pytest.raises(DataError, match="client 1 has different columns from client 0"):
        hp.federate([parts[0], make_rows(3)])


def test_missing_labels_and_images_are_named(monkeypatch):
    sets = install_hub(monkeypatch)
    rows = [{"f": [1.0], "label": label} for label in (0, -1, 1)]
    features = {"f": type("List", (), {})(), "label": ClassLabel(["no", "yes"])}
    sets["a/b"] = {"train": Rows(rows, **features)}
    assert refused(read_source, "hf:a/b") == "hf:a/b, row 2: the label is missing; remove the row"
    number = type("Number", (), {"dtype": "float32"})
    features = {"f": number(), "label": ClassLabel(["no", "yes"])}
    rows = [{"f": 1.0, "label": label} for label in (0, -1, 1)]
    sets["a/b"] = {"train": Rows(rows, **features)}  # as a table
    assert refused(read_source, "hf:a/b") == "hf:a/b, row 2: the label is missing; remove the row"
    rows = [{"image": None, "label": 0}]
    sets["a/c"] = {"train": Rows(rows, image=Image(), label=ClassLabel(["no"]))}
    assert refused(read_source, "hf:a/c") == (
        "hf:a/c: an image is missing in column 'image'; filter it out"
    )
    sets["a/d"] = {"train": Rows([{"a": 1, "label": 0}], a=Value(), label=Value())}
    assert "has no column of type Image and none of numbers" in refused(read_source, "hf:a/d")


class Text:
    """A column of text, as the datasets package calls it."""

    dtype = "string"


def test_a_column_of_text_is_read_as_texts(monkeypatch):
    sets = install_hub(monkeypatch)
    long = [f"No. {i} " for i in range(101)]
    number = type("Number", (), {"dtype": "int64"})
    for names, columns in (
        (["note"], {"note": Text()}),
        (["text", "title"], {"title": Text(), "text": Text()}),
        (["sentence"], {"idx": number(), "sentence": Text()}),
    ):
        rows = [{**dict.fromkeys(columns, i), names[0]: t, "label": i % 2, "client": "ab"[i % 2]}
                for i, t in enumerate(long)]  # fmt: skip
        rows[0] |= dict.fromkeys(names[1:], "x")
        kinds = {**columns, "label": ClassLabel(["no", "yes"]), "client": Text()}
        sets["a/e"] = {"train": Rows(rows, **kinds)}
        made = read_source("hf:a/e")
        assert (made.x.shape, made.user_names) == ((101, 256), ("a", "b"))
        assert bytes(int(t) - 1 for t in made.x[7, :6]) == b"No. 7 "
    two = {"premise": Text(), "reply": Text(), "label": ClassLabel(["no", "yes"])}
    sets["a/e"] = {"train": Rows([{"premise": "a", "reply": "b", "label": 0}], **two)}
    assert "a text must be in one column, called 'text', or be tokens" in refused(
        read_source, "hf:a/e"
    )


# With the packages themselves -------------------------------------------------------------------


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_of_the_packages_are_read_as_the_stand_in_is(package):
    frames = pytest.importorskip(package)
    held = {k: [None if v != v else v for v in cells] for k, cells in HELD.items()}
    federation = hp.federate(frames.DataFrame(held), users="hospital")
    assert federation.sha256 == hp.federate(Frame(HELD), users="hospital").sha256
    result = hp.run("fedavg", federation, rounds=1, progress=False)
    model, rows = result.personal("A"), frames.DataFrame(held)
    assert model(rows).tolist() == model({k: HELD[k] for k in ("age", "sex", "ward")}).tolist()
    labels = rows["label"]
    beside = rows[[c for c in rows.columns if c != "label"]]
    assert hp.federate((beside, labels), users="hospital").sha256 == federation.sha256


def test_data_sets_in_files_are_read_and_damaged_ones_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {
        "x": [[float(i), 0.5] for i in range(8)],
        "label": [0, 1] * 4,
        "client": list("aabb") * 2,
    }
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "both")
    made.to_parquet(tmp_path / "set.parquet")
    for name, split in (("saved", False), ("both", True), ("set.parquet", False)):
        path = tmp_path / name
        assert find_format(path).name == "Hugging Face files"
        shown = CliRunner().invoke(app, ["data", "show", str(path), "--json"])
        about = json.loads(shown.stdout)
        assert (about["users"], about["classes"]) == (2, {"0": 4 + 4 * split, "1": 4 + 4 * split})
        assert find_named_clients(str(path)).has_split is split
        assert hp.federate(path).clients == ("a", "b")
    for damaged in ("saved/state.json", "both/train/state.json", "set.parquet"):
        content = (tmp_path / damaged).read_bytes()
        (tmp_path / damaged).write_bytes(content[: len(content) // 2])
        where = tmp_path / damaged.partition("/")[0]
        assert refused(read_source, str(where)).startswith(f"data.name: cannot read {where}: ")


def test_a_row_without_a_readable_image_is_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    whole = io.BytesIO()
    Picture.new("L", (4, 4)).save(whole, "PNG")
    good = {"bytes": whole.getvalue(), "path": None}
    for bad, reason in (
        ({"bytes": b"junk", "path": None}, ""),
        ({"bytes": None, "path": "/nowhere/a.png"}, " (No such file or directory)"),
    ):
        rows = {"image": [good, good, bad, good], "label": [0, 1, 0, 1]}
        made = datasets.Dataset.from_dict(rows, features=features)
        said = f"column 'image', row 3: not a readable image{reason}"
        assert refused(hp.federate, made) == f"datasets: {said}"
    made = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"junk", "path": None}], "label": [0]}, features=features
    )
    made.to_parquet(tmp_path / "set.parquet")
    shown = commands.refused(3, "data", "show", tmp_path / "set.parquet")
    assert shown == "set.parquet: column 'image', row 1: not a readable image"


@pytest.mark.parametrize("kind", ["images", "numbers"])
def test_hugging_face_to_heterophony_is_the_identity(tmp_path, kind):
    pytest.importorskip("datasets")
    draw = np.random.default_rng(0)
    x = (
        draw.integers(0, 256, (12, 6, 6, 3), np.uint8)
        if kind == "images"
        else draw.normal(size=(12, 3))
    )
    before = hp.federate({"b": (x, np.arange(12) % 2), "a": (x[:8], np.arange(8) % 2)})
    export_federation(before, "huggingface", tmp_path / "out")
    after = hp.federate(tmp_path / "out")
    assert after.clients == before.clients
    for client in before.clients:
        for part in ("train", "test"):
            old, new = (getattr(f, part)[client] for f in (before, after))
            assert before.x[old].tolist() == after.x[new].tolist()
            assert before.y[old].tolist() == after.y[new].tolist()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_format_of_a_data_set_does_not_matter(kind):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    pictures = [Picture.new("RGB", (4, 4), (i, 2, 3)) for i in range(8)]
    made = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 4}, features=features)
    plain, formatted = (
        hp.federate(d, clients=2, partition="iid") for d in (made, made.with_format(kind))
    )
    assert plain.sha256 == formatted.sha256
