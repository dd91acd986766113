"""CIFAR: reading the published files, and refusing pickles without running them."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture
from typer.testing import CliRunner

import heterophony as hp
from helpers.sources import ClassLabel, Image, Rows, install_hub, refused
from heterophony.cli import app
from heterophony.core.errors import DataError
from heterophony.core.files import unpack_archive as open_packed
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE
from heterophony.data.source import Source
from heterophony.data.sources import SOURCES, read_source
from heterophony.data.sources import builtin as small
from heterophony.data.sources.reading import unpickle_safely
from heterophony.runs.run_index import read_events

TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2(value) -> bytes:
    """A pickle as Python 2 wrote it in 2009: byte strings, and numpy's names of then."""
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(v) -> bytes:
    if isinstance(v, dict):
        return b"}(" + b"".join(opcodes(k) + opcodes(x) for k, x in v.items()) + b"u"
    if isinstance(v, list):
        return b"](" + b"".join(map(opcodes, v)) + b"e"
    if isinstance(v, str | bytes):
        raw = v.encode() if isinstance(v, str) else v
        return b"T" + struct.pack("<i", len(raw)) + raw
    if isinstance(v, int):
        return b"J" + struct.pack("<i", v)
    state = opcodes(1) + opcodes(v.shape[0]) + opcodes(v.shape[1]) + b"\x86"
    kind = b"cnumpy\ndtype\n" + opcodes("u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03U\x01|NNN" + opcodes(-1) * 2 + b"K\x00tb"
    begun = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + opcodes("b")
    return begun + b"\x87R(" + state + kind + b"\x89" + opcodes(v.tobytes()) + b"tb"


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), np.uint8)


def ten() -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """The files of a small CIFAR-10; and the images and labels as they should be read."""
    files = {
        "batches.meta": python2({"num_cases_per_batch": 4, "label_names": TEN, "num_vis": 3072})
    }
    files["readme.html"] = b"<html></html>"
    xs, ys = [], []
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        x, y = rows(4, i), [(3 * i + j) % 10 for j in range(4)]
        content = {"batch_label": name, "labels": y, "data": x, "filenames": ["a.png"] * 4}
        files[name] = python2(content)
        xs.append(x.reshape(-1, 3, 32, 32))
        ys.append(y)
    return files, np.concatenate(xs), np.concatenate(ys)


def hundred() -> tuple[dict[str, bytes], np.ndarray, dict[str, list[int]]]:
    fine, coarse = [f"fine{i}" for i in range(100)], [f"coarse{i}" for i in range(20)]
    files = {"meta": python2({"fine_label_names": fine, "coarse_label_names": coarse})}
    labels = {"fine": [99, 1, 2, 50, 4, 5], "coarse": [19, 1, 2, 3, 0, 5]}
    x = rows(6, 0)
    for name, part in (("train", slice(0, 4)), ("test", slice(4, 6))):
        kinds = {f"{k}_labels": v[part] for k, v in labels.items()}
        files[name] = python2({"data": x[part], **kinds, "batch_label": name})
    return files, x.reshape(-1, 3, 32, 32), labels


def tarred(path: Path, folder: str, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        top = tarfile.TarInfo(folder)
        top.type = tarfile.DIRTYPE
        archive.addfile(top)
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_the_pickles_of_these_tests_are_what_python_2_wrote():
    files, x, y = ten()
    read = pickle.loads(files["data_batch_1"], encoding="bytes")
    assert np.array_equal(read[b"data"].reshape(-1, 3, 32, 32), x[:4])
    assert read[b"labels"] == y[:4].tolist()
    assert read[b"filenames"] == [b"a.png"] * 4


def test_cifar10_is_read_from_the_archive_and_from_the_folder(tmp_path):
    files, x, y = ten()
    archive = tarred(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    other = tmp_path / "unpacked"
    other.mkdir()
    folder = unpack(other / "cifar-10-batches-py", files)
    for place in (archive, tmp_path, folder, other):
        made = read_source("cifar10", str(place))
        assert np.array_equal(made.x, x)
        assert np.array_equal(made.y, y)
        assert made.labels == tuple(TEN)
        assert made.official == 20
        assert made.scale == BYTES_TO_PLUS_MINUS_ONE
        assert made.name == "cifar10"


@pytest.mark.parametrize(
    ("name", "kind", "classes"), [("cifar100", "fine", 100), ("cifar100-coarse", "coarse", 20)]
)
def test_cifar100_has_fine_and_coarse_labels(tmp_path, name, kind, classes):
    files, x, labels = hundred()
    archive = tarred(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", files)
    made = read_source(name, str(archive))
    assert np.array_equal(made.x, x)
    assert made.y.tolist() == labels[kind]
    assert made.labels == tuple(f"{kind}{i}" for i in range(classes))
    assert made.official == 4


def test_a_named_set_that_is_not_as_published_is_remarked_on(tmp_path):
    """Sixty images pass as CIFAR-10, and ten classes as CIFAR-100, but never in silence."""
    x = np.zeros((60, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "few.npz", x=x, y=np.arange(60) % 10)
    words = "cifar100 is not as published: 60 examples instead of 60,000, 10 classes instead of 100"
    assert read_source("cifar100", str(tmp_path / "few.npz")).remark == words
    with pytest.warns(UserWarning, match=words):
        federation = hp.federate("cifar100", path=str(tmp_path / "few.npz"), clients=2)
    result = hp.run("fedavg", federation, rounds=0, model="mlp", progress=False)
    assert result.summary.to_dict()["data_remark"] == words
    assert read_source("digits").remark == ""
    about = ["-c", f"data.path={tmp_path / 'few.npz'}", "-c", "data.clients=2", "-c", "rounds=0"]
    about += ["-c", "model=mlp", "-c", "engine=serial", "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, ["run", "-c", "data.name=cifar100", *about]).output
    assert words in " ".join(shown.split())


def test_cifar10_is_read_from_an_npz(tmp_path):
    x, y = rows(6, 0).reshape(6, 32, 32, 3), np.array([0, 1, 2, 3, 4, 5])
    np.savez(tmp_path / "cifar10.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    for place in (tmp_path, tmp_path / "cifar10.npz"):
        made = read_source("cifar10", str(place))
        assert (made.name, made.official, len(made.labels)) == ("cifar10", 4, 10)
        assert np.array_equal(made.x, x.transpose(0, 3, 1, 2))
    np.savez(tmp_path / "cifar10.npz", x=x, y=y + 5)
    assert "labels must be 0 … 9" in refused(read_source, "cifar10", str(tmp_path))


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_of_python_3_are_read_too(protocol):
    x = rows(2, 0)
    for content in (
        {"data": x, "labels": [1, 2]},
        {b"data": np.asfortranarray(x), b"labels": [1, 2]},
    ):
        read = unpickle_safely(pickle.dumps(content, protocol), "here")
        assert np.array_equal(read["data"], x)
        assert read["labels"] == [1, 2]


# What is refused ----------------------------------------------------------------------------


class Evil:
    def __init__(self, call, *args) -> None:
        self.how = (call, args)

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_nothing_in_it_runs(tmp_path, protocol):
    mark = tmp_path / "touched"
    evils = [
        Evil(os.system, f"touch {mark}"),
        Evil(eval, f"open({str(mark)!r}, 'w')"),
        Evil(Path.touch, mark),
        Evil(np.save, str(mark), [1]),
    ]
    for evil in evils:
        for content in (evil, {"data": evil, "labels": [1]}, {"x": [evil]}):
            said = refused(unpickle_safely, pickle.dumps(content, protocol), "here")
            assert said.startswith("here is not one of the published files: it names ")
    assert not mark.exists()


def test_a_malicious_archive_is_refused_and_named(tmp_path):
    files, _, _ = ten()
    mark = tmp_path / "touched"
    files["data_batch_3"] = pickle.dumps(Evil(os.system, f"touch {mark}"), 2)
    path = tarred(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    said = refused(read_source, "cifar10", str(path))
    assert said.startswith(f"{path / 'data_batch_3'} is not one of the published files: ")
    assert "it names posix.system" in said
    assert not mark.exists()


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x80\x02",
        pickle.dumps([1, 2]),
        pickle.dumps(None),
        pickle.dumps({1.5: np.zeros(3)}, 2),
        pickle.dumps({"data": np.array([object()])}, 2),
        pickle.dumps({"data": np.zeros(3)}, 5),
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\xffK\x00\x89U\x01atb.",
        b"\x80\x02(cos\nsystem\nU\x02lso.",
        b"cbuiltins\ngetattr\n.",
        b"P0\n.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"<html>sign in first</html>",
    ],
)
def test_other_pickles_are_refused_in_one_line(blob):
    assert "here is not one of the published files" in refused(unpickle_safely, blob, "here")


@settings(derandomize=True, deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_pickle_is_refused_or_still_a_dictionary(data):
    blob = bytearray(python2({"data": rows(1, 0)[:, :8], "labels": [1], "batch_label": "b"}))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with suppress(DataError):
        assert isinstance(unpickle_safely(bytes(blob), "here"), dict)


def test_a_damaged_archive_is_refused(tmp_path):
    files, _, _ = ten()
    path = tarred(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    blob = path.read_bytes()
    for content in (b"", blob[:100], blob[: len(blob) // 2], b"<html></html>", blob[:-2000]):
        path.write_bytes(content)
        assert str(path) in refused(read_source, "cifar10", str(path))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("batches.meta", {"label_names": TEN[:9]}, "must name 10 classes in label_names"),
        ("batches.meta", {}, "must name 10 classes in label_names"),
        ("test_batch", {"data": rows(2, 0), "labels": [1]}, "one number per image, as 'labels'"),
        ("test_batch", {"data": rows(1, 0), "labels": ["a"]}, "one number per image"),
        ("test_batch", {"data": rows(1, 0), "labels": [-1]}, "one number per image"),
        ("test_batch", {"data": rows(1, 0), "labels": [10]}, "labels must be 0 … 9"),
        ("test_batch", {"data": rows(1, 0)[:, :9], "labels": [1]}, "images of 3072 bytes each"),
        ("test_batch", {"labels": [1]}, "images of 3072 bytes each"),
    ],
)
def test_wrong_content_is_refused(tmp_path, file, content, words):
    files, _, _ = ten()
    folder = unpack(tmp_path / "mine", files | {file: python2(content)})
    assert words in refused(read_source, "cifar10", str(folder))


def test_a_missing_file_is_named(tmp_path):
    files, _, _ = ten()
    del files["data_batch_4"]
    path = tarred(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    assert refused(read_source, "cifar10", str(path)) == f"{path} has no data_batch_4"
    folder = unpack(tmp_path / "mine", files)
    assert refused(read_source, "cifar10", str(folder)) == (
        f"data.path: {folder} does not hold cifar10: it lacks cifar-10-python.tar.gz;"
        " or cifar-10-batches-py/data_batch_1; or data_batch_4; or cifar10.npz"
    )


# Small versions -----------------------------------------------------------------------------

SHARED = Path(__file__).parents[3] / "shared/data"
STORED_RUNS = Path(__file__).parents[2] / "results/fedreg-table5-medium/runs.zip"
needs_images = pytest.mark.skipif(
    not (SHARED / "cifar10_10k.npz").is_file(), reason="needs the images of the stored runs"
)


def colours(n: int, seed: int) -> Source:
    x = rows(n, seed).reshape(-1, 3, 32, 32)
    return Source("cifar10", x, np.arange(n) % 10, BYTES_TO_PLUS_MINUS_ONE, tuple(TEN), n // 2)


def test_the_package_lists_the_images_of_small_cifar():
    for name, sizes in (("cifar10-small", (8000, 2000)), ("cifar100-small", (16_000, 4000))):
        lists = small.load_digests(name)
        assert tuple(map(len, lists)) == sizes
        assert sum(sizes) == small.LISTED_IMAGES[name] == SOURCES[name].size.examples
        assert {d.dtype for d in lists} == {np.dtype("<u8")}
        # CIFAR-100 has one image twice in one class
        assert sum(sizes) - len(np.unique(np.concatenate(lists))) == (name == "cifar100-small")


def test_small_cifar_is_the_listed_images_in_the_order_of_the_list(monkeypatch):
    whole = colours(60, 0)
    chosen = np.array([7, 3, 50, 20, 41])
    digests = small.digest_images(whole.x, whole.y)[chosen]
    monkeypatch.setattr(small, "load_digests", lambda name: (digests[:3], digests[3:]))
    shuffled = np.random.default_rng(1).permutation(60)
    for at in (np.arange(60), shuffled):
        copy = replace(whole, x=whole.x[at], y=whole.y[at])
        made = small.read_small(lambda path, copy=copy: copy, "cifar10-small", None)
        assert np.array_equal(made.x, small.halve_images(whole.x[chosen]))
        assert (made.y.tolist(), made.official, made.remark) == ([7, 3, 0, 0, 1], 3, "")
        assert made.labels == tuple("0123456789"), "one hash, whether a copy names classes or not"
    twice = replace(whole, x=np.repeat(whole.x[:1], 2, 0), y=np.array([3, 4]), official=None)
    assert len(np.unique(small.digest_images(twice.x, twice.y))) == 2, "an image under two labels"


def test_small_cifar_of_other_images_is_drawn_and_remarked_on(tmp_path):
    x = rows(60, 0).reshape(-1, 32, 32, 3)
    np.savez(tmp_path / "few.npz", x=x, y=np.arange(60) % 10)
    made = read_source("cifar10-small", str(tmp_path / "few.npz"))
    assert made.remark == (
        "cifar10-small is not as published: 10,000 of its 10,000 images are not in these files;"
        " others were drawn"
    )
    assert len(made.y) == 60


def write_archive(folder: Path, source: Source, more: Source) -> Path:
    """Write the official files: the images of a source among others, in another order."""
    both = np.concatenate([source.x, more.x]), np.concatenate([source.y, more.y])
    train = np.r_[: source.official, len(source.y) : len(source.y) + more.official]
    test = np.setdiff1d(np.arange(len(both[1])), train)
    draw, files = np.random.default_rng(2), {"batches.meta": python2({"label_names": TEN})}
    parts = [*np.array_split(draw.permutation(train), 5), draw.permutation(test)]
    for name, at in zip(
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], parts, strict=True
    ):
        files[name] = python2(
            {"labels": both[1][at].tolist(), "data": both[0][at].reshape(-1, 3072)}
        )
    return tarred(folder / "cifar-10-python.tar.gz", "cifar-10-batches-py", files, "w")


@needs_images
def test_small_cifar100_is_all_of_20_000_images_in_their_order():
    source = read_source("cifar100", str(SHARED / "cifar100_20k.npz"))
    lists = np.concatenate(small.load_digests("cifar100-small"))
    assert np.array_equal(lists, small.digest_images(source.x, source.y))


@needs_images
def test_a_stored_run_begins_the_same_from_the_official_archive_and_from_a_copy_of_the_hub(
    tmp_path, monkeypatch
):
    source = read_source("cifar10", str(SHARED / "cifar10_10k.npz"))
    archive = write_archive(tmp_path, source, colours(500, 3))
    made = read_source("cifar10-small", str(archive))
    assert made.remark == ""
    assert np.array_equal(made.x, small.halve_images(source.x)), "as drawn from these images alone"
    columns = {"coarse": ClassLabel(["a", "b"]), "img": Image(), "label": ClassLabel(TEN)}
    pairs = list(zip(source.x.transpose(0, 2, 3, 1), source.y.tolist(), strict=True))
    pictures = [{"coarse": 0, "img": Picture.fromarray(x), "label": y} for x, y in pairs[::-1]]
    copy = {"train": Rows(pictures[2000:], **columns), "test": Rows(pictures[:2000], **columns)}
    install_hub(monkeypatch)["uoft-cs/cifar10"] = copy
    other = read_source("cifar10-small", "hf:uoft-cs/cifar10")
    for key in ("x", "y"):
        assert np.array_equal(getattr(made, key), getattr(other, key))
    assert (made.labels, made.official) == (other.labels, other.official)
    with open_packed(STORED_RUNS) as folder:
        config = folder / "fedavg--cifar-10--3" / "config.toml"
        words = ["run", str(config), f"-cdata.path={archive}", "-crounds=0"]
        words += ["-cengine=serial", "--out", str(tmp_path / "run")]
        assert CliRunner().invoke(app, words).exit_code == 0
        stored = list(read_events(config.with_name("events.jsonl")))
    now = list(read_events(tmp_path / "run" / "events.jsonl"))
    for key in ("data_sha256", "start_sha256", "train", "test", "labels"):
        assert now[0][key] == stored[0][key]
    assert now[1]["G"] == stored[1]["G"], "correct answers of the initial model, by client"
