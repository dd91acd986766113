"""Partitions in files: reading what was saved, and errors for files that do not fit the data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from heterophony.core.errors import DataError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE
from heterophony.data.partitioning import partition_source
from heterophony.data.partitions import IID, Dirichlet, FromFile, Natural, PerClientDirichlet, Terms
from heterophony.data.source import Source


def source(n: int = 60, official: int | None = None) -> Source:
    x = np.random.default_rng(0).integers(0, 255, (n, 1, 4, 4)).astype(np.uint8)
    y, users = (np.arange(n) % 3).astype(np.int64), np.arange(n, dtype=np.int64) // 10
    return Source(
        "made", x, y, BYTES_TO_PLUS_MINUS_ONE, ("a", "b", "c"), official, users, tuple("uvwxyz")
    )


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize(
    "rule",
    [Dirichlet(1.0, 2), Natural(), PerClientDirichlet(0.5, 10, 20, repeat_test=True)],
    ids=lambda r: type(r).__name__,
)
def test_a_saved_partition_is_read_again_whatever_the_seed(tmp_path, ending, rule):
    path, data = tmp_path / f"who.{ending}", source(60, 45)
    federation = partition_source(data, rule, Terms(3, seed=1))
    federation.save_partition(path)
    again = partition_source(data, FromFile(str(path)), Terms(3, 0.5, seed=2))
    assert again.sha256 == federation.sha256
    assert again.clients == federation.clients
    again.save_partition(tmp_path / f"again.{ending}")
    assert (tmp_path / f"again.{ending}").read_bytes() == path.read_bytes()


def test_a_file_written_by_hand_needs_only_rows_and_its_names_are_kept(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"ward": {"train": [5, 3], "test": [1]}, "lab": {"train": [2], "test": [3]}}')
    federation = partition_source(source(), FromFile(str(path)), Terms(2))
    assert federation.clients == ("lab", "ward")
    assert federation.train["ward"].tolist() == [5, 3]
    assert federation.test["lab"].tolist() == [3], "two clients may hold the same example"


def test_a_client_that_a_file_lists_twice_is_refused(tmp_path):
    share = '{"train": [0], "test": [1]}'
    (tmp_path / "mine.json").write_text(f'{{"A": {share}, "B": {share}, "A": {share}}}')
    federation = partition_source(source(), IID(), Terms(2))
    federation.save_partition(tmp_path / "who.npz")
    arrays = dict(np.load(tmp_path / "who.npz")) | {"clients": np.array([1, 1])}
    np.savez(tmp_path / "mine.npz", **arrays)
    for name, key in (("mine.json", "A"), ("mine.npz", "1")):
        words = f"^data.partition.path: the file contains '{key}' twice; remove one of them$"
        with pytest.raises(DataError, match=words):
            partition_source(source(), FromFile(str(tmp_path / name)), Terms(2))


def test_names_that_files_of_before_have_beside_numbered_clients_change_nothing(tmp_path):
    """Clients 0, 1, … of such a file stay what they are, and so do the bits of a run."""
    federation = partition_source(source(), IID(), Terms(3))
    federation.save_partition(tmp_path / "who.json")
    content = json.loads((tmp_path / "who.json").read_text())
    for client, share in content["clients"].items():
        share["name"] = f"site {client}"
    (tmp_path / "old.json").write_text(json.dumps(content))
    again = partition_source(source(), FromFile(str(tmp_path / "old.json")), Terms(3))
    assert (again.clients, again.sha256) == (("0", "1", "2"), federation.sha256)


FINE = {"train": [0, 1], "test": [2]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"0": FINE}, "has 1 clients, but data.clients is 2; set data.clients = 1"),
        ({"0": FINE, "1": {"train": [60], "test": [3]}}, "client 1 has row 60, but the data have"),
        ({"0": FINE, "1": {"train": [3], "test": [-1]}}, "client 1 has row -1, but the data have"),
        ({"0": FINE, "1": {"train": [7, 7], "test": [3]}}, "client 1 has row 7 more than once"),
        ({"0": FINE, "1": {"train": [7], "test": [7]}}, "client 1 has row 7 more than once"),
        ({"0": FINE, "1": {"train": [1.5], "test": [7]}}, "client 1: rows must be a list of whole"),
        ({"0": FINE, "1": {"train": ["a"], "test": [7]}}, "client 1: rows must be a list of whole"),
        ({"0": FINE, "1": {"train": [], "test": [7]}}, "client 1 has no rows to train; it needs"),
        ({"0": FINE, "1": {"train": [1]}}, "cannot read .* as a partition; it must hold"),
        ({"0": FINE, "1": [1, 2]}, "cannot read .* as a partition; it must hold"),
        ([1, 2], "cannot read .* as a partition; it must hold"),
        ({}, "has no clients"),
        (
            {"data_sha256": "00", "clients": {"0": FINE, "1": FINE}},
            "written for different data from",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "who.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=words) as caught:
        partition_source(source(), FromFile(str(path)), Terms(2))
    assert "\n" not in str(caught.value)


def test_another_data_set_of_the_same_size_is_noticed(tmp_path):
    path, data = tmp_path / "who.npz", source()
    partition_source(data, Dirichlet(1.0, 2), Terms(3)).save_partition(path)
    other = source()
    other.x[0, 0, 0, 0] ^= 1
    with pytest.raises(DataError, match="data_sha256 differs"):
        partition_source(other, FromFile(str(path)), Terms(3))


@pytest.mark.parametrize("name", ["no.json", "no.npz"])
def test_a_missing_file_is_said(tmp_path, name):
    with pytest.raises(DataError, match=r"data\.partition\.path: there is no .*no\."):
        partition_source(source(), FromFile(str(tmp_path / name)), Terms(2))


@pytest.mark.parametrize("name", ["who.json", "who.npz"])
def test_a_damaged_file_is_said(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DataError, match="cannot read"):
        partition_source(source(), FromFile(str(tmp_path / name)), Terms(2))


def test_a_pickle_in_an_npz_is_not_read(tmp_path):
    np.savez(tmp_path / "who.npz", clients=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="cannot read"):
        partition_source(source(), FromFile(str(tmp_path / "who.npz")), Terms(1))
