"""Federation: partitioning a source, storing and opening it, and its digest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from heterophony.core.errors import ConfigError, DataError, StorageError
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from heterophony.data.federation import Federation
from heterophony.data.partitioning import partition_source, split_into_clients
from heterophony.data.partitions import IID, Dirichlet, Terms
from heterophony.data.source import Source


def source(
    n: int = 120, classes: int = 4, shape=(1, 8, 8), dtype=np.uint8, scale=BYTES_TO_PLUS_MINUS_ONE
) -> Source:
    g = np.random.default_rng(0)
    x = g.integers(0, 255, (n, *shape)).astype(dtype)
    y = (np.arange(n) % classes).astype(np.int64)
    return Source("made", x, y, scale, tuple(f"class {c}" for c in range(classes)))


def made(seed: int = 0, clients: int = 6, **kwargs) -> Federation:
    return partition_source(source(**kwargs), Dirichlet(1.0, 2), Terms(clients, seed=seed))


def equal(a: Federation, b: Federation) -> bool:
    return (
        (a.name, a.scale, a.labels, a.clients) == (b.name, b.scale, b.labels, b.clients)
        and (a.x.dtype, a.y.dtype) == (b.x.dtype, b.y.dtype)
        and torch.equal(a.x, b.x)
        and torch.equal(a.y, b.y)
        and list(a.test) == list(b.test)
        and all(torch.equal(a.train[c], b.train[c]) for c in a.clients)
        and all(torch.equal(a.test[c], b.test[c]) for c in a.clients)
    )


# Sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": np.zeros(3, np.int64)}, "120 examples but 3 labels"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, np.int64)}, "there are no examples"),
        ({"y": np.full(120, 4, np.int64)}, "labels must be 0 … 3"),
        ({"y": np.full(120, -1, np.int64)}, "labels must be 0 … 3"),
        ({"x": np.full((120, 2), np.nan, np.float32)}, "NaN or infinity"),
        ({"x": np.full((120, 2), np.inf, np.float32)}, "NaN or infinity"),
    ],
)
def test_a_source_that_is_not_whole_is_refused(change, words):
    with pytest.raises(DataError, match=words):
        replace(source(), **change)


# Partitioning -------------------------------------------------------------------------------


def test_every_example_is_somebodys_to_train_or_to_test():
    f = made()
    rows = torch.cat([*f.train.values(), *f.test.values()])
    assert rows.sort().values.tolist() == list(range(120))
    assert f.clients == ("0", "1", "2", "3", "4", "5")
    assert f.classes == 4
    assert f.shape == (1, 8, 8)
    for c in f.clients:
        n = len(f.train[c]) + len(f.test[c])
        assert len(f.train[c]) == 3 * n // 4


def test_counts_are_those_of_the_labels():
    f = made()
    for part in ("train", "test"):
        counts = f.count_labels(part)
        assert counts.shape == (6, 4)
        assert counts.sum(axis=1).tolist() == list(f.sizes(part).values())
        for row, rows in zip(counts, getattr(f, part).values(), strict=True):
            assert row.tolist() == [int((f.y[rows] == c).sum()) for c in range(4)]
    assert (f.count_labels() + f.count_labels("test")).sum(axis=0).tolist() == [30] * 4


def test_a_clients_data_are_its_own_rows_of_the_one_pool():
    f = made()
    data = f.data("3")
    assert data.train.x is f.x
    assert data.test.x is f.x
    assert data.classes == 4
    assert data.counts.tolist() == f.count_labels()[3].tolist()
    assert torch.equal(data.train.labels, f.y[f.train["3"]])
    assert torch.equal(data.test.get_all_stored(), f.x[f.test["3"]])
    assert data.train.scale == f.scale


def test_the_seed_decides_who_holds_what():
    assert equal(made(1), made(1))
    assert made(1).sha256 == made(1).sha256
    assert made(1).sha256 != made(2).sha256


def test_more_clients_than_examples_is_a_clear_error():
    with pytest.raises(DataError, match=r"121 clients cannot share 120 examples of made"):
        partition_source(source(), IID(), Terms(121))


@pytest.mark.parametrize("clients", [0, -1])
def test_no_clients_is_a_wrong_setting(clients):
    with pytest.raises(ConfigError, match=f"data.clients: must be at least 1, not {clients}"):
        partition_source(source(), IID(), Terms(clients))


def test_one_example_each_is_not_enough():
    with pytest.raises(DataError, match=r"client 0 got 1 example; it needs at least 2"):
        partition_source(source(), IID(), Terms(120))


def test_a_client_that_got_nothing_is_told_so():
    class Nothing:
        def deal(self, labels, classes, clients, draw):
            return [np.arange(len(labels)), np.zeros(0, np.int64)]

    with pytest.raises(DataError, match=r"client 1 got 0 examples; it needs at least 2"):
        partition_source(source(), Nothing(), Terms(2))


def test_one_client_may_hold_everything():
    f = partition_source(source(), IID(), Terms(1))
    assert f.sizes() == {"0": 90}
    assert f.sizes("test") == {"0": 30}


# Clients who bring their own ----------------------------------------------------------------


def test_own_train_and_test_parts_are_kept_in_order():
    f = split_into_clients(source(10), [4, 6], [3, 2], 0.75, seed=0)
    assert {c: v.tolist() for c, v in f.train.items()} == {"0": [0, 1, 2], "1": [4, 5]}
    assert {c: v.tolist() for c, v in f.test.items()} == {"0": [3], "1": [6, 7, 8, 9]}


def test_who_has_no_test_part_is_split_at_random():
    f = split_into_clients(source(108), [8, 100], [6, None], 0.75, seed=0)
    again, other = (
        split_into_clients(source(108), [8, 100], [6, None], 0.75, seed=s) for s in (0, 1)
    )
    assert f.train["0"].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(f.train["1"]) == 75
    both = torch.cat([f.train["1"], f.test["1"]]).sort().values
    assert both.tolist() == list(range(8, 108))
    assert equal(f, again)
    assert torch.equal(f.train["0"], other.train["0"])
    assert not torch.equal(f.train["1"], other.train["1"])


@pytest.mark.parametrize(
    ("sizes", "trains", "who"),
    [([1, 9], [None, None], 0), ([5, 5], [2, 0], 1), ([5, 5], [2, 5], 1), ([0, 10], [None, 4], 0)],
)
def test_who_cannot_train_or_cannot_test_is_named(sizes, trains, who):
    with pytest.raises(DataError, match=f"client {who} has {sizes[who]} examples"):
        split_into_clients(source(10), sizes, trains, 0.75, seed=0)


# On disk ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        ((1, 8, 8), np.uint8, BYTES_TO_PLUS_MINUS_ONE),
        ((3, 5, 7), np.uint8, Scale(255.0, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))),
        ((9,), np.float32, Scale()),
        ((20,), np.int64, Scale()),
    ],
    ids=["grey", "colour", "features", "tokens"],
)
def test_saved_and_opened_it_is_the_same_bit_for_bit(tmp_path, shape, dtype, scale):
    f = made(shape=shape, dtype=dtype, scale=scale)
    f.save(tmp_path / "deep" / "folder")
    opened = Federation.open(tmp_path / "deep" / "folder")
    assert equal(f, opened)
    assert f.sha256 == opened.sha256
    assert opened.scale == scale
    x, y = opened.data("2").train.batch(torch.arange(3))
    expected = f.data("2").train.batch(torch.arange(3))
    assert torch.equal(x, expected[0])
    assert torch.equal(y, expected[1])


def test_what_is_saved_needs_no_pickle(tmp_path):
    made().save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "about.json",
        "rows.npy",
        "x.npy",
        "y.npy",
    ]
    for name in ("x", "y", "rows"):
        np.load(tmp_path / f"{name}.npy", allow_pickle=False)


def test_the_opened_pool_is_mapped_not_read(tmp_path, monkeypatch):
    made().save(tmp_path)
    modes, load = [], np.load

    def watched(*args, **kwargs):
        array = load(*args, **kwargs)
        modes.append((type(array), kwargs))
        return array

    monkeypatch.setattr(np, "load", watched)
    Federation.open(tmp_path)
    assert modes == [(np.memmap, {"mmap_mode": "c", "allow_pickle": False})] * 3


def test_who_writes_to_the_opened_pool_changes_no_file(tmp_path):
    f = made()
    f.save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    opened = Federation.open(tmp_path)
    opened.x.zero_()
    opened.y.zero_()
    opened.train["0"].zero_()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert Federation.open(tmp_path).sha256 == f.sha256


def test_no_room_to_save_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use"):
        made().save(tmp_path / "file" / "below")


# The digest ---------------------------------------------------------------------------------


def test_the_digest_sees_data_rows_and_order():
    f = made()
    x, y = f.x.clone(), f.y.clone()
    x[7, 0, 3, 3] ^= 1
    y[7] = (y[7] + 1) % 4
    swapped = {**f.train, "0": f.train["1"], "1": f.train["0"]}
    moved = (
        {**f.train, "0": f.train["0"][:-1]},
        {
            **f.test,
            "0": torch.cat([f.train["0"][-1:], f.test["0"]]),
        },
    )
    backwards = dict(reversed(f.train.items()))
    renamed = {("a" if c == "0" else c): v for c, v in f.train.items()}
    others = [
        f,
        replace(f, x=x),
        replace(f, y=y),
        replace(f, x=f.x.float()),
        replace(f, x=f.x.reshape(120, 64)),
        replace(f, scale=Scale(255.0)),
        replace(f, labels=("a", "b", "c", "d")),
        replace(f, train=swapped),
        replace(f, train=moved[0], test=moved[1]),
        replace(f, train={**f.train, "0": f.train["0"].flip(0)}),
        replace(f, train=backwards),
        replace(f, train=renamed, test={**f.test, "a": f.test["0"]}),
    ]
    assert len({o.sha256 for o in others}) == len(others)


def test_the_digest_does_not_see_the_name_nor_the_memory_format():
    f = made(shape=(3, 4, 5))
    last = f.x.contiguous(memory_format=torch.channels_last)
    assert replace(f, name="other").sha256 == f.sha256
    assert replace(f, x=last).sha256 == f.sha256
