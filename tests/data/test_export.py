"""Federations in the formats of other platforms: the same clients, to the last example."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from typer.testing import CliRunner

import heterophony as hp
from helpers.formats import read_as_pfllib, write_leaf, write_pfllib
from heterophony.cli import app
from heterophony.core.errors import ConfigError, DataError, FolderError
from heterophony.data.export import export_federation
from heterophony.data.federation import Federation


def export(folder: Path, to: str, *settings: str) -> str:
    pairs = [word for pair in settings for word in ("-c", pair)]
    shown = CliRunner().invoke(app, ["data", "export", "--to", to, str(folder), *pairs])
    assert shown.exit_code == 0, shown.output
    return shown.output


def list_held(made: Federation) -> dict[str, list[object]]:
    return {
        c: [(made.x[r].tolist(), made.y[r].tolist()) for r in (made.train[c], made.test[c])]
        for c in made.clients
    }


def test_pfllib_to_pfllib_is_the_identity(tmp_path):
    before, after = write_pfllib(tmp_path / "before", clients=11), tmp_path / "after"
    export(after, "pfllib", f"data.name={before}")
    files = sorted(p.relative_to(before) for p in before.rglob("*.npz"))
    assert files == sorted(p.relative_to(after) for p in after.rglob("*.npz"))
    for file in files:
        old, new = read_as_pfllib(before / file), read_as_pfllib(after / file)
        assert old.keys() == new.keys() == {"x", "y"}
        assert np.array_equal(old["x"], new["x"])
        assert np.array_equal(old["y"], new["y"])
        assert (new["x"].dtype, new["y"].dtype) == (np.float32, np.int64)
    about = json.loads((after / "config.json").read_text())
    assert (about["num_clients"], about["num_classes"]) == (11, 4)
    assert about["Size of samples for labels in clients"][0] == [[0, 3], [1, 3], [2, 2]]


@pytest.mark.parametrize("width", [5, 784])
def test_leaf_to_leaf_is_the_identity(tmp_path, width):
    before, after = write_leaf(tmp_path / "before", width), tmp_path / "after"
    export(after, "leaf", f"data.name={before}")
    for part in ("train", "test"):
        old, new = (
            json.loads(next((folder / part).glob("*.json")).read_text())
            for folder in (before, after)
        )
        assert new["user_data"] == old["user_data"]
        assert sorted(new["users"]) == sorted(old["users"])
        assert new["num_samples"] == [len(old["user_data"][u]["y"]) for u in new["users"]]


def test_celeba_keeps_clients_and_network_input(tmp_path):
    for part in ("train", "test"):
        held = {u: {"x": [f"{part}{u}.jpg"], "y": [float(u == "5")]} for u in ("12", "5")}
        for u in held:
            path = tmp_path / "before" / "raw" / "img_align_celeba" / f"{part}{u}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Picture.new("RGB", (84, 84), (int(u), 9, 200)).save(path)
        (tmp_path / "before" / part).mkdir()
        content = {"users": list(held), "num_samples": [1, 1], "user_data": held}
        (tmp_path / "before" / part / "a.json").write_text(json.dumps(content))
    export(tmp_path / "after", "leaf", f"data.name={tmp_path / 'before'}")
    before, after = (hp.federate(tmp_path / name) for name in ("before", "after"))
    assert before.clients == after.clients == ("5", "12")
    for client in before.clients:
        for part in ("train", "test"):
            both = [next(getattr(f.data(client), part).batches(9)) for f in (before, after)]
            assert all(a.equal(b) for a, b in zip(*both, strict=True))


def test_text_of_leaf_stays_text(tmp_path):
    text = "To be, or not to be: that is the question. " * 4
    held = {"x": [text[i : i + 80] for i in range(4)], "y": [text[i + 80] for i in range(4)]}
    content = {"users": ["A_B"], "num_samples": [4], "user_data": {"A_B": held}}
    for part in ("train", "test"):
        (tmp_path / "before" / part).mkdir(parents=True)
        (tmp_path / "before" / part / "a.json").write_text(json.dumps(content))
    export(tmp_path / "after", "leaf", f"data.name={tmp_path / 'before'}")
    assert json.loads((tmp_path / "after/train/all_data_train.json").read_text()) == content


def test_npz_has_every_input_of_an_example(tmp_path):
    draw = np.random.default_rng(0)
    x = {
        "image": draw.integers(0, 256, (40, 3, 6, 6), np.uint8),
        "table": draw.normal(size=(40, 5)).astype(np.float32),
    }
    y = np.arange(40) % 4
    np.savez(tmp_path / "all.npz", y=y, **{f"x.{name}": values for name, values in x.items()})
    made = hp.federate(tmp_path / "all.npz", clients=3, partition="iid")
    assert list_held(made) == list_held(hp.federate((x, y), clients=3, partition="iid"))
    export_federation(made, "npz", tmp_path / "out")
    again = hp.federate(tmp_path / "out")
    assert list_held(again) == list_held(made)
    assert again.record == made.record
    with pytest.raises(DataError, match="cannot be written as leaf; only dicts of arrays can"):
        export_federation(made, "leaf", tmp_path / "leaf")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x.a": (4, 2), "x": (4, 2), "y": 4}, "examples of several arrays are x.NAME, or"),
        ({"x_tra.a": (4, 2), "y": 4}, "nothing else; it holds: x_tra, y"),
        ({"x.a": (4, 2), "x.b": (3, 2), "y": 4}, "x: 'b' has 3 examples, but there are 4 labels"),
        ({"x_train.a": (4, 2), "y": 4}, "x: 'a' has 4 examples, but there are 0 labels"),
    ],
)
def test_wrong_inputs_of_an_npz_are_one_line(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **{name: np.zeros(shape) for name, shape in arrays.items()})
    with pytest.raises(DataError, match=said):
        hp.federate(tmp_path / "a.npz")


def test_npz_has_the_stored_bytes_of_each_client(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), np.uint8)
    made = hp.federate((x, np.arange(40) % 4), clients=3, partition="iid")
    export_federation(made, "npz", tmp_path / "out")
    again = hp.federate(tmp_path / "out")
    assert list_held(again) == list_held(made)
    assert again.scale == made.scale
    digits = hp.federate("digits", clients=2, partition="iid")  # bytes from 0 to 16
    export_federation(digits, "npz", tmp_path / "digits")
    again = hp.federate(tmp_path / "digits")
    wanted, got = (next(f.data("1").test.batches(9999))[0] for f in (digits, again))
    assert wanted.equal(got)


def test_a_federation_with_names_is_numbered_for_pfllib_and_read_back(tmp_path):
    made = hp.federate("digits", clients=3, partition="iid", new_clients=0.4)
    export_federation(made, "pfllib", tmp_path / "out")
    again = hp.federate(tmp_path / "out")
    assert again.clients == ("0", "1", "2")
    for client in again.clients:
        wanted, got = (f.data(client).train.batches(9999) for f in (made, again))
        assert all(a.equal(b) for a, b in zip(next(wanted), next(got), strict=True))
    named = hp.federate({"site b": made_pair(1), "site a": made_pair(2)})
    export_federation(named, "pfllib", tmp_path / "named")
    about = json.loads((tmp_path / "named" / "config.json").read_text())
    assert about["client_names"] == ["site a", "site b"]


def made_pair(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2


NAMED = {"client": np.array(["Ward 3", "a/b", "10"])[np.arange(24) % 3]}
KINDS = {  # examples, labels, and what else is said of them
    "names of clients": ((24, 3), np.arange(24) % 2, NAMED),
    "names of classes": ((24, 3), np.array(["well", "ill"])[np.arange(24) % 2], {}),
    "a class that nobody has": ((24, 3), np.arange(24) % 2, {"classes": 4}),
    "bytes of four channels": ((24, 5, 5, 4), np.arange(24) % 2, {}),
    "several labels": ((24, 3), np.eye(3)[np.arange(24) % 3], {"task": "multilabel"}),
    "tokens": ((24, 6), np.arange(24) % 2, {}),
}


def make_kind(kind: str) -> Federation:
    shape, y, how = KINDS[kind]
    draw = np.random.default_rng(0)
    x = draw.normal(size=shape)
    if kind in ("bytes of four channels", "tokens"):
        x = draw.integers(0, 256, shape).astype(np.uint8 if len(shape) == 4 else np.int64)
    own = how if "client" in how else {"clients": 3, "partition": "iid", **how}
    return hp.federate((x, y), **own)


@pytest.mark.parametrize("to", ["pfllib", "leaf", "huggingface", "npz"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_is_read_back(tmp_path, kind, to):
    if to == "huggingface":
        pytest.importorskip("datasets")
    before = make_kind(kind)
    advice = {
        (
            "several labels",
            "pfllib",
        ): "PFLlib is for classification, not for multilabel; use --to npz",
        ("tokens", "leaf"): "no tokens; use --to npz or --to huggingface",
        (
            "names of clients",
            "npz",
        ): "'Ward 3' cannot .*; --to huggingface, leaf or pfllib keep any",
    }
    if (said := advice.get((kind, to))) is not None:
        with pytest.raises(DataError, match=said):
            export_federation(before, to, tmp_path / "out")
        return
    export_federation(before, to, tmp_path / "out")
    after = hp.federate(tmp_path / "out", task=before.task)
    assert (after.clients, after.labels) == (before.clients, before.labels)
    for client in before.clients:
        for part in ("train", "test"):
            old, new = (next(getattr(f.data(client), part).batches(99)) for f in (before, after))
            assert all(a.equal(b) for a, b in zip(old, new, strict=True))


def test_names_of_classes_are_beside_the_data_only_if_needed(tmp_path):
    export_federation(make_kind("tokens"), "npz", tmp_path / "plain")
    assert not (tmp_path / "plain" / "class_names.json").exists()
    export_federation(make_kind("names of classes"), "npz", tmp_path / "named")
    assert json.loads((tmp_path / "named" / "class_names.json").read_text()) == ["ill", "well"]
    given = hp.federate(tmp_path / "named", classes=["a", "b", "c"])
    assert given.labels == ("a", "b", "c")
    (tmp_path / "named" / "class_names.json").write_text('{"ill": 0}')  # of the user
    assert hp.federate(tmp_path / "named").labels == ("0", "1")


def test_hugging_face_has_images_or_lines_with_clients(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 5, 5), np.uint8)
    images = hp.federate((x, np.arange(12) % 2), clients=2, partition="iid")
    export_federation(images, "huggingface", tmp_path / "images")
    lines = [
        json.loads(t)
        for t in (tmp_path / "images/test/metadata.jsonl").read_text().split("\n")
        if t
    ]
    first = images.test[lines[0]["client"]][0]
    assert lines[0]["label"] == int(images.y[first])
    assert np.array_equal(
        np.asarray(Picture.open(tmp_path / "images/test" / lines[0]["file_name"])), x[first]
    )
    export_federation(hp.federate({"a": made_pair(1)}), "huggingface", tmp_path / "rows")
    lines = (tmp_path / "rows" / "train.jsonl").read_text().splitlines()
    assert json.loads(lines[0]).keys() == {"x", "client", "label"}


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    made = hp.federate({"a/b": made_pair(1)})
    with pytest.raises(FolderError, match="is not empty; choose another folder"):
        export_federation(made, "npz", tmp_path / "full")
    with pytest.raises(DataError, match="'a/b' cannot be a client's name"):
        export_federation(made, "npz", tmp_path / "out")
    x, y = made_pair(1)
    held = hp.federate({"a": (x, y)}, validation_fraction=0.3)
    with pytest.raises(ConfigError, match=r"data.validation_fraction: other platforms do not"):
        export_federation(held, "leaf", tmp_path / "out")
    numbers = hp.federate({"a": (x, y + 0.5)}, task="regression")
    with pytest.raises(DataError, match="PFLlib is for classification, not for regression"):
        export_federation(numbers, "pfllib", tmp_path / "out")
