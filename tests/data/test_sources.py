"""Data sets of the MNIST family and .npz files: reading, and errors for damaged files."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from helpers.sources import DEBIAN, images, mnist_folder, packed, refused
from heterophony.core.errors import DataError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from heterophony.data.source import Source
from heterophony.data.sources import read_npz, read_source, wrap_arrays
from heterophony.data.sources.image_sets import (
    EMNIST_SPLITS,
    FMNIST_MD5,
    IDX_FILES,
    read_fmnist,
    read_idx,
)

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


# Digits -------------------------------------------------------------------------------------


def test_digits_are_1797_images_of_ten_classes():
    made = read_source("digits")
    assert made.x.shape == (1797, 1, 8, 8)
    assert made.x.dtype == np.uint8
    assert (made.x.min(), made.x.max()) == (0, 16)
    assert made.y.dtype == np.int64
    assert np.bincount(made.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert made.labels == tuple("0123456789")
    assert made.scale == Scale(16.0, (0.5,), (0.5,))


def test_digits_are_those_of_scikit_learn():
    made, bunch = read_source("digits"), load_digits()
    assert (made.x[:, 0] == bunch.images).all()
    assert (made.y == bunch.target).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("digit", "; did you mean 'digits'?"),
        ("fminst", "; did you mean 'fmnist'?"),
        ("emnist-leters", "; did you mean 'emnist-letters'?"),
        ("zzz", ", tinyimagenet-32, tissuemnist"),
    ],
)
def test_an_unknown_name_gets_the_nearest_right_one(name, words):
    said = refused(read_source, name)
    assert said.startswith(f"data.name: '{name}' is neither a data set")
    assert said.endswith(words)


# idx files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
def test_idx_files_are_read_packed_or_not(tmp_path, gz):
    x, y = mnist_folder(tmp_path, gz)
    assert np.array_equal(read_idx(tmp_path, IMAGES), x[:6])
    assert np.array_equal(read_idx(tmp_path, LABELS), y[:6])
    made = read_source("fmnist", str(tmp_path))
    assert np.array_equal(made.x, x[:, None])
    assert np.array_equal(made.y, y)
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE
    assert len(made.labels) == 10
    assert made.official == 6
    digits = read_source("mnist", str(tmp_path))
    assert digits.name == "mnist"
    assert digits.labels == tuple("0123456789")
    assert np.array_equal(digits.x, x[:, None])


def test_the_plain_file_goes_before_the_packed_one(tmp_path):
    (tmp_path / LABELS).write_bytes(packed(np.array([1], np.uint8)))
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(packed(np.array([2], np.uint8))))
    assert read_idx(tmp_path, LABELS).tolist() == [1]


def test_a_missing_file_is_named(tmp_path):
    assert refused(read_idx, tmp_path, IMAGES) == f"{tmp_path} has no {IMAGES} nor {IMAGES}.gz"
    mnist_folder(tmp_path, gz=False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    said = refused(read_fmnist, tmp_path)
    assert said == f"data.path: {tmp_path} does not hold fmnist: it lacks t10k-labels-idx1-ubyte"
    gone = tmp_path / "gone"
    assert refused(read_fmnist, gone) == f"data.path: there is no {gone}"


@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, gz):
    blob = packed(images(2, 3))
    whole = gzip.compress(blob) if gz else blob
    path = tmp_path / f"{IMAGES}{'.gz' * gz}"
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        assert str(path) in refused(read_idx, tmp_path, IMAGES)
    path.write_bytes(blob + b"\0")
    assert str(path) in refused(read_idx, tmp_path, IMAGES)


@pytest.mark.parametrize(
    "blob",
    [
        packed(images(2), kind=9),
        packed(images(2), kind=13),
        packed(images(2), zeros=1),
        b"PK\x03\x04 something else",
        b"<html>no such page</html>",
        struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 4),  # a product that wraps to 0 in 64 bits
        b"",
    ],
    ids=["int8", "float", "zeros", "zip", "html", "huge", "empty"],
)
def test_a_wrong_magic_or_shape_is_refused(tmp_path, blob):
    (tmp_path / IMAGES).write_bytes(blob)
    assert str(tmp_path / IMAGES) in refused(read_idx, tmp_path, IMAGES)


def test_a_damaged_gz_is_refused_whichever_byte_it_is(tmp_path):
    blob = packed(images(2, 3))
    whole, path = gzip.compress(blob), tmp_path / f"{IMAGES}.gz"
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        with suppress(DataError):  # what is not refused was a note in the header
            assert np.array_equal(read_idx(tmp_path, IMAGES), images(2, 3))


def test_the_real_fashion_mnist_is_70_000_images():
    if not DEBIAN.is_dir():
        reason = "no Fashion-MNIST here: apt install dataset-fashion-mnist"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    for name, md5 in zip(IDX_FILES, FMNIST_MD5, strict=True):
        content = gzip.decompress((DEBIAN / f"{name}.gz").read_bytes())
        assert hashlib.md5(content).hexdigest() == md5, name
    made = read_source("fmnist", str(DEBIAN))
    assert made.x.shape == (70_000, 1, 28, 28)
    assert made.x.dtype == np.uint8
    assert np.bincount(made.y).tolist() == [7000] * 10
    assert made.labels[int(made.y[0])] == "ankle boot"
    assert made.official == 60_000
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE


# EMNIST ---------------------------------------------------------------------------------------


def emnist_files(split: str, first: int = 0) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """NIST's files of one split, packed; and the images and labels as they should be read."""
    classes = len(EMNIST_SPLITS[split][0])
    xs, ys = [images(6), images(4)], [np.array([0, 1, classes - 1] * 2), np.arange(4)]
    files = {f"emnist-{split}-mapping.txt": b"0 48\n"}
    for part, x, y in zip(("train", "test"), xs, ys, strict=True):
        files[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(packed(x))
        labels = packed((y + first).astype(np.uint8))
        files[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    return files, np.concatenate(xs).transpose(0, 2, 1)[:, None], np.concatenate(ys)


def nist_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gzip/", b"")
        for name, content in files.items():
            archive.writestr(f"gzip/{name}", content)
    return path


@pytest.mark.parametrize("split", EMNIST_SPLITS)
def test_every_split_of_emnist_is_read_upright_from_nists_zip(tmp_path, split):
    files, x, y = emnist_files(split, first=int(split == "letters"))
    path = nist_zip(tmp_path / "gzip.zip", files)
    for place in (path, tmp_path):
        made = read_source(f"emnist-{split}", str(place))
        assert made.name == f"emnist-{split}"
        assert np.array_equal(made.x, x)
        assert made.x.flags.c_contiguous
        assert np.array_equal(made.y, y)
        assert made.official == 6
        assert made.scale == BYTES_TO_PLUS_MINUS_ONE


def test_the_splits_have_their_classes():
    assert list(EMNIST_SPLITS) == ["balanced", "byclass", "bymerge", "letters", "digits", "mnist"]
    assert [len(set(labels)) for labels, _, _ in EMNIST_SPLITS.values()] == [47, 62, 47, 26, 10, 10]


@pytest.mark.parametrize("below", ["", "gzip"])
@pytest.mark.parametrize("gz", [False, True], ids=["plain", "gz"])
def test_unpacked_emnist_is_read_and_balanced_is_the_default(tmp_path, below, gz):
    files, x, y = emnist_files("balanced")
    (tmp_path / below).mkdir(exist_ok=True)
    for name, content in files.items():
        if gz or name.endswith(".txt"):
            (tmp_path / below / name).write_bytes(content)
        else:
            (tmp_path / below / name[:-3]).write_bytes(gzip.decompress(content))
    made = read_source("emnist", str(tmp_path))
    assert made.name == "emnist"
    assert np.array_equal(made.x, x)
    assert np.array_equal(made.y, y)
    assert "gzip/emnist-letters-train" in refused(read_source, "emnist-letters", str(tmp_path))


def test_damaged_emnist_is_refused(tmp_path):
    files, _, _ = emnist_files("digits")
    path = nist_zip(tmp_path / "gzip.zip", files)
    blob = path.read_bytes()
    for cut in (0, 10, len(blob) // 2, len(blob) - 1):
        path.write_bytes(blob[:cut])
        assert str(path) in refused(read_source, "emnist-digits", str(path))
    name = "emnist-digits-test-labels-idx1-ubyte.gz"
    nist_zip(path, files | {name: files[name][:-9]})
    assert f"{path / name} is not a readable idx file" in refused(
        read_source, "emnist-digits", str(path)
    )
    del files[name]
    nist_zip(path, files)
    assert f"{path} has no {name[:-3]} nor {name}" in refused(
        read_source, "emnist-digits", str(path)
    )


def test_labels_that_do_not_belong_to_the_images_are_refused(tmp_path):
    files, _, _ = emnist_files("digits")
    name = "emnist-digits-test-labels-idx1-ubyte.gz"
    short = gzip.compress(packed(np.zeros(3, np.uint8)))
    path = nist_zip(tmp_path / "gzip.zip", files | {name: short})
    assert "must have one label per image" in refused(read_source, "emnist-digits", str(path))
    name = "emnist-digits-test-images-idx3-ubyte.gz"
    other = gzip.compress(packed(images(4, 7)))
    nist_zip(path, files | {name: other})
    assert "the same height and width" in refused(read_source, "emnist-digits", str(path))
    files, _, _ = emnist_files("letters")  # labels from 0, where the official ones start at 1
    nist_zip(path, files)
    assert "labels must be 0 … 25" in refused(read_source, "emnist-letters", str(path))


# A user's own .npz --------------------------------------------------------------------------


def saved(path: Path, **content) -> Path:
    np.savez(path, **content)
    return path


def test_four_arrays_are_merged_and_channels_go_first(tmp_path):
    g = np.random.default_rng(0)
    x = g.integers(0, 256, (10, 32, 30, 3), np.uint8)
    y = (np.arange(10) % 4).astype(np.int32)
    path = saved(tmp_path / "mine.npz", x_train=x[:7], y_train=y[:7], x_test=x[7:], y_test=y[7:])
    made = read_source(str(path))
    assert made.name == "mine"
    assert made.x.shape == (10, 3, 32, 30)
    assert np.array_equal(made.x, x.transpose(0, 3, 1, 2))
    assert made.x.flags.c_contiguous
    assert made.y.tolist() == y.tolist()
    assert made.y.dtype == np.int64
    assert made.labels == ("0", "1", "2", "3")
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE
    assert made.official == 7


@pytest.mark.parametrize(
    ("given_shape", "read_shape"),
    [
        ((6, 28, 28), (6, 1, 28, 28)),
        ((6, 28, 28, 1), (6, 1, 28, 28)),
        ((6, 28, 28, 3), (6, 3, 28, 28)),
        ((6, 3, 28, 28), (6, 3, 28, 28)),
        ((6, 1, 28, 28), (6, 1, 28, 28)),
        ((6, 40), (6, 40)),
    ],
)
def test_bytes_are_images_with_the_channels_first(tmp_path, given_shape, read_shape):
    x = np.arange(np.prod(given_shape)).astype(np.uint8).reshape(given_shape)
    made = read_npz(saved(tmp_path / "a.npz", x=x, y=np.arange(6)))
    assert made.x.shape == read_shape
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE


def test_numbers_are_taken_as_they_are(tmp_path):
    x = np.linspace(-3, 3, 24).reshape(6, 4)
    made = read_npz(saved(tmp_path / "a.npz", x=x, y=np.arange(6) % 2))
    assert made.x.dtype == np.float32
    assert np.array_equal(made.x, x.astype(np.float32))
    assert made.scale == Scale()
    tokens = read_npz(saved(tmp_path / "b.npz", x=np.arange(24).reshape(6, 4), y=np.arange(6)))
    assert tokens.x.dtype == np.int64
    swapped = read_npz(saved(tmp_path / "c.npz", x=x.astype(">f8"), y=np.arange(6).astype(">i4")))
    assert np.array_equal(swapped.x, x.astype(np.float32))
    assert swapped.y.tolist() == list(range(6))


X, Y = np.zeros((6, 8, 8), np.uint8), np.arange(6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"x": X, "y": Y.astype(float)}, "labels must be one whole number per example"),
        ({"x": X, "y": np.eye(6, dtype=int)}, "labels must be one whole number per example"),
        ({"x": X, "y": Y - 1}, "label -1 (example 0) is negative"),
        ({"x": X, "y": Y[:5]}, "6 examples but 5 labels"),
        ({"x": X[:0], "y": Y[:0]}, "there are no examples"),
        ({"x": np.zeros(6), "y": Y}, "at least one dimension besides the first (examples)"),
        ({"x": np.zeros((6, 2), complex), "y": Y}, "examples of type complex128 cannot be used"),
        ({"x": np.zeros((6, 2), bool), "y": Y}, "examples of type bool cannot be used"),
        ({"x": np.full((6, 2), np.nan), "y": Y}, "NaN or infinity"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :7], "y_test": Y}, "different shapes"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y[:, None]}, "different shapes"),
        ({"x": np.float32(3), "y": np.int64(1)}, "different shapes"),
        (
            {"x_train": X, "y_train": Y[:5], "x_test": X[:5], "y_test": Y},
            "x_train has 6 examples but 5 labels",
        ),
    ],
)
def test_wrong_content_is_refused(tmp_path, content, words):
    assert words in refused(read_npz, saved(tmp_path / "a.npz", **content))


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        ({"x": X}, "it holds: x"),
        ({"y": Y}, "it holds: y"),
        ({"images": X, "labels": Y}, "it holds: images, labels"),
        ({}, "it holds: no arrays"),
        ({"x_train": X, "y_train": Y, "x_test": X}, "it holds: x_test, x_train, y_train"),
    ],
)
def test_missing_arrays_are_named(tmp_path, content, holds):
    said = refused(read_npz, saved(tmp_path / "a.npz", **content))
    assert "must hold x and y, or x_train, y_train, x_test, y_test" in said
    assert said.endswith(holds)


def test_pickled_objects_are_refused_and_not_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    evil = np.array([Evil()] * 6, dtype=object)
    for content in ({"x": evil, "y": Y}, {"x": X, "y": evil}, {"x": X, "y": Y, "x_more": evil}):
        np.savez(tmp_path / "a.npz", **content)
        assert "cannot read" in refused(read_npz, tmp_path / "a.npz")
    import pickle

    (tmp_path / "b.npz").write_bytes(pickle.dumps(Evil()))
    assert "cannot read" in refused(read_npz, tmp_path / "b.npz")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04", b"\x80\x04N."])
def test_what_is_no_zip_is_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    assert refused(read_npz, path).startswith(f"data.name: cannot read {path}: ")


def test_a_single_array_is_no_npz(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, X)
    assert "cannot read" in refused(read_npz, tmp_path / "a.npz")


def test_no_such_file_and_a_folder(tmp_path):
    path = tmp_path / "none.npz"
    assert refused(read_source, str(path)) == f"data.name: cannot read {path}: no such file"
    path.mkdir()
    assert "cannot read" in refused(read_source, str(path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_damaged_npz_is_refused_or_still_holds_examples(tmp_path, save, data):
    path = tmp_path / "a.npz"
    save(path, x=X, y=Y)
    blob = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.sampled_from([1, 2, 32, 128, 255]))
    path.write_bytes(blob[: data.draw(st.sampled_from([len(blob), len(blob), at]))])
    try:
        made = read_npz(path)
    except DataError:
        return
    assert isinstance(made, Source)
    assert len(made.x) == len(made.y) > 0


def test_arrays_from_a_program_are_read_like_files():
    made = wrap_arrays([[0.5, 1.0], [2.0, 3.0]], [0, 1])
    assert made.name == "arrays"
    assert made.x.dtype == np.float32
    assert made.y.tolist() == [0, 1]


def test_reading_digits_fetches_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(read_source("digits").y) == 1797
