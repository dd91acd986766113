"""Data of users: one file per client, torch datasets, and the Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import heterophony as hp
from helpers.sources import ClassLabel, Image, Rows, Value, install_hub, refused
from heterophony.config.reading import read_config
from heterophony.core.samples import BYTES_TO_PLUS_MINUS_ONE, Scale
from heterophony.data.sources import fetch_dataset, huggingface, read_source
from heterophony.data.sources.arrays import Request, unpack_datasets, wrap_arrays

# One file per client --------------------------------------------------------------------------


def client(n: int, seed: int) -> dict[str, np.ndarray]:
    g = np.random.default_rng(seed)
    return {"x": g.normal(size=(n, 4)).astype(np.float32), "y": g.integers(0, 3, n)}


def test_one_file_per_client(tmp_path):
    who = {name: client(3 + i, i) for i, name in enumerate(["c2", "c10", "c1"])}
    for name, content in who.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    made = read_source(str(tmp_path))
    assert made.user_names == ("c1", "c2", "c10")
    assert made.users.tolist() == [0] * 5 + [1] * 3 + [2] * 4
    order = [who[name] for name in made.user_names]
    assert np.array_equal(made.x, np.concatenate([c["x"] for c in order]))
    assert np.array_equal(made.y, np.concatenate([c["y"] for c in order]))
    assert made.official is None
    assert made.scale == Scale()
    assert made.name == tmp_path.name


WRONG_LABELS = {
    "negative": ([0, 1, -1], "label -1 (example 2) is negative"),
    "too large": ([0, 10**9, 1], "label 1000000000 is too large (example 1)"),
    "a fraction": ([0.0, 1.5, 1.0], "not float64 (3,) (example 1 has '1.5')"),
}


@pytest.mark.parametrize(("y", "said"), WRONG_LABELS.values(), ids=WRONG_LABELS)
def test_errors_of_labels_name_the_file_and_the_value(tmp_path, y, said):
    x = np.zeros((3, 4), np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 1])
    np.savez(tmp_path / "b.npz", x=x, y=y)
    for name in (tmp_path / "b.npz", tmp_path):
        line = refused(read_source, str(name))
        assert line.startswith(f"{tmp_path / 'b.npz'}: ")
        assert said in line


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((8, 8, 3), (3, 8, 8)),
        ((8, 8, 2), (2, 8, 8)),
        ((4, 4, 3), (3, 4, 4)),
        ((3, 8, 8), (3, 8, 8)),
        ((3, 3, 3), (3, 3, 3)),
        ((12, 6, 3), (3, 12, 6)),
        ((16, 4, 4), (16, 4, 4)),
    ],
)
def test_images_of_numbers_are_recognised_by_their_shape(given, stored):
    x = np.zeros((2, *given), np.float32)
    assert wrap_arrays(x, np.array([0, 1])).x.shape[1:] == stored
    assert wrap_arrays(x, np.array([0, 1]), shape=given).x.shape[1:] == given


def test_the_files_of_a_folder_are_its_clients_unless_a_partition_is_given(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"c{i}.npz", **client(30 + i, i))
    config = read_config(None, [f"data.name={tmp_path}"])
    assert (config.data.partition["kind"], config.data.clients) == ("natural", 3)
    for made in (config.build_federation(), hp.federate(str(tmp_path))):
        sizes = {c: len(made.train[c]) + len(made.test[c]) for c in made.clients}
        assert sizes == {"c0": 30, "c1": 31, "c2": 32}
    assert (
        len(read_config(None, [f"data.name={tmp_path}", "clients=2"]).build_federation().train) == 2
    )
    dealt = read_config(None, [f"data.name={tmp_path}", "data.partition.kind=iid", "clients=5"])
    assert (
        len(dealt.build_federation().clients)
        == len(hp.federate(tmp_path, clients=5, partition="iid").clients)
        == 5
    )


def test_clients_with_test_data_of_their_own(tmp_path):
    both = [(client(4, i), client(2, 10 + i)) for i in range(2)]
    for i, (train, test) in enumerate(both):
        parts = {"x_train": train["x"], "y_train": train["y"], "x_test": test["x"]}
        np.savez(tmp_path / f"{i}.npz", **parts, y_test=test["y"])
    made = read_source(str(tmp_path))
    assert made.official == 8
    assert made.users.tolist() == [0] * 4 + [1] * 4 + [0] * 2 + [1] * 2
    order = [both[0][0], both[1][0], both[0][1], both[1][1]]
    assert np.array_equal(made.x, np.concatenate([c["x"] for c in order]))
    np.savez(tmp_path / "2.npz", **client(3, 5))
    assert "either all clients have x_test and y_test, or none" in refused(
        read_source, str(tmp_path)
    )


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros((3, 5), np.float32), "y": np.arange(3)},
        {"x": np.zeros((3, 4), np.uint8), "y": np.arange(3)},
        {"x": np.zeros((3, 4), np.float32), "y": np.zeros((3, 1), int)},
        {"x": np.float32(1), "y": np.int64(1)},
    ],
)
def test_clients_whose_examples_do_not_fit_are_named(tmp_path, other):
    np.savez(tmp_path / "a.npz", **client(3, 0))
    np.savez(tmp_path / "b.npz", **other)
    said = refused(read_source, str(tmp_path))
    assert said.startswith(f"{tmp_path / 'b.npz'}: x ")
    assert "does not match a.npz, whose examples are float32 (4,)" in said
    (tmp_path / "b.npz").write_bytes(b"no zip")
    assert f"cannot read {tmp_path / 'b.npz'}" in refused(read_source, str(tmp_path))


# torch's datasets -----------------------------------------------------------------------------


class Pairs(Dataset):
    def __init__(self, xs, ys) -> None:
        self.xs, self.ys = xs, ys

    def __len__(self) -> int:
        return len(self.xs)

    def __getitem__(self, i):
        return self.xs[i], self.ys[i]


class Broken(Pairs):
    def __getitem__(self, i):
        raise OSError(5, "cannot open file")


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0)])


BYTES = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
LABELS = torch.arange(40) % 4


@pytest.mark.parametrize(
    "made",
    [
        TensorDataset(BYTES, LABELS),
        Pairs(list(BYTES), LABELS.tolist()),
        Pairs([Picture.fromarray(b.permute(1, 2, 0).numpy()) for b in BYTES], LABELS.numpy()),
    ],
    ids=["tensors", "list", "pictures"],
)
def test_a_dataset_is_partitioned_like_its_arrays(made):
    how = {"clients": 3, "partition": hp.IID(), "seed": 1}
    expected = hp.federate((BYTES.numpy(), LABELS.numpy()), **how)
    federation = hp.federate(made, **how)
    assert federation.sha256 == expected.sha256
    assert federation.scale == BYTES_TO_PLUS_MINUS_ONE


def test_numbers_of_a_dataset_stay_numbers():
    x = torch.linspace(-1, 1, 40).reshape(10, 4)
    federation = hp.federate(TensorDataset(x, torch.arange(10) % 2), clients=2, partition=hp.IID())
    assert torch.equal(federation.x, x)
    assert federation.scale == Scale()


def test_clients_who_bring_datasets():
    half = TensorDataset(BYTES[:20], LABELS[:20]), TensorDataset(BYTES[20:], LABELS[20:])
    federation = hp.federate([half[0], half[1]])
    arrays = [(BYTES[:20], LABELS[:20]), (BYTES[20:], LABELS[20:])]
    assert federation.sha256 == hp.federate(arrays).sha256
    own_test = hp.federate([half])
    assert own_test.sizes() == {"0": 20}
    assert own_test.sizes("test") == {"0": 20}
    assert [len(a) for a in unpack_datasets(half)] == [20] * 4


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Stream(), "Stream has no length; pass a Dataset with a length, not a stream"),
        (Pairs([], []), "Pairs: there are no examples"),
        (Pairs([BYTES[0], BYTES[0, :1]], [0, 1]), "example 1 is uint8 (1, 8, 8), example 0 is ui"),
        (Pairs([BYTES[0]], ["cat"]), "example 0 is not a pair of an array and an integer label"),
        (Pairs([BYTES[0]], [0.5]), "example 0 is not a pair of an array and an integer label"),
        (Broken([BYTES[0]], [0]), "Broken: cannot read example 0: [Errno 5] cannot open file"),
        (TensorDataset(BYTES), "example 0 is not a pair"),
        (TensorDataset(BYTES, LABELS, LABELS), "example 0 is not a pair"),
    ],
)
def test_other_datasets_are_refused(made, words):
    assert words in refused(hp.federate, made)


# The Hugging Face hub -------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch) -> dict[str, dict[str, Rows]]:
    return install_hub(monkeypatch)


def shots(n: int, seed: int, grey: bool = False) -> list[Picture.Image]:
    shape = (n, 6, 6) if grey else (n, 6, 6, 3)
    made = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return [Picture.fromarray(m) for m in made]


@pytest.mark.parametrize("test", ["test", "valid", "validation"])
def test_images_and_labels_are_found_by_type(hub, test):
    names = {"fine_label": ClassLabel(["a", "b", "c"]), "coarse_label": ClassLabel(["x", "y"])}
    parts = {}
    for part, n in (("train", 4), (test, 2)):
        rows = [
            {"id": i, "img": p, "fine_label": i % 3, "coarse_label": 0}
            for i, p in enumerate(shots(n, n))
        ]
        parts[part] = Rows(rows, id=Value(), img=Image(), **names)
    hub["uoft-cs/cifar100"] = parts
    made = read_source("hf:uoft-cs/cifar100")
    unused = "datasets: the columns id, coarse_label are not used"
    with pytest.warns(UserWarning, match=unused):
        loaded = hp.federate(parts, clients=2, partition="iid")  # the object itself
    assert np.array_equal(loaded.x.numpy(), made.x)
    assert loaded.labels == ("a", "b", "c")
    with pytest.warns(UserWarning, match=unused):
        assert len(hp.federate(parts["train"], clients=2, partition="iid").y) == 4
    both = {**parts, "extra": parts["train"]}
    assert huggingface.read_splits("set", both, Request()).remark == (
        "set: the columns id, coarse_label and the split extra are not used"
    )
    expected = [np.asarray(r["img"]).transpose(2, 0, 1) for p in parts.values() for r in p]
    assert made.name == "hf:uoft-cs/cifar100"
    assert np.array_equal(made.x, np.stack(expected))
    assert made.y.tolist() == [0, 1, 2, 0, 0, 1]
    assert made.labels == ("a", "b", "c")
    assert made.official == 4
    assert made.scale == BYTES_TO_PLUS_MINUS_ONE
    assert fetch_dataset("hf:uoft-cs/cifar100") == Path("/somewhere/datasets")


def test_grey_images_and_no_test_split(hub):
    rows = [{"image": p, "label": 1} for p in shots(3, 0, grey=True)]
    hub["ylecun/mnist"] = {"train": Rows(rows, image=Image(), label=ClassLabel(["0", "1"]))}
    made = read_source("hf:ylecun/mnist")
    assert made.x.shape == (3, 1, 6, 6)
    assert made.official is None
    rows[1]["image"] = shots(1, 0)[0]
    assert read_source("hf:ylecun/mnist").x.shape == (3, 3, 6, 6)
    rows[1]["image"] = Picture.new("L", (7, 6))
    assert "all images must be the same size" in refused(read_source, "hf:ylecun/mnist")
    rows[1]["image"] = Picture.fromarray(np.full((6, 6), 300, np.uint16))
    said = refused(read_source, "hf:ylecun/mnist")
    assert said.startswith("hf:ylecun/mnist: column 'image', row 2 has 16 bits per pixel; convert")


def test_shakespeare_of_the_hub_has_users(hub):
    text = "abcdefghi " * 100
    rows = [
        {"character_id": who, "x": text[i : i + 80], "y": text[i + 80]}
        for who in ("LEAR", "FOOL")
        for i in range(900)
    ]
    kinds = {"character_id": Value(), "x": Value(), "y": Value()}
    hub["flwrlabs/shakespeare"] = {"train": Rows(rows, **kinds)}
    made = read_source("hf:flwrlabs/shakespeare")
    assert made.user_names == ("FOOL", "LEAR")
    assert made.official == 2 * 810
    assert len(made.y) == 2 * (900 - 79)


def test_sets_that_do_not_fit_are_refused(hub):
    hub["a/b"] = {"test": Rows([], image=Image())}
    assert refused(read_source, "hf:a/b") == "hf:a/b has no split 'train'; it has: test"
    hub["a/b"] = {"train": Rows([{"text": "a"}], text=Value(), label=ClassLabel(["x"]))}
    assert refused(read_source, "hf:a/b").startswith(
        "hf:a/b has no column of type Image and none of numbers; it has: text, label;"
    )
    hub["a/b"] = {"train": Rows([{"text": "a"}], text=Value())}
    assert refused(read_source, "hf:a/b") == (
        "hf:a/b has no column of type ClassLabel and none called label; it has: text"
    )
    hub["a/b"] = {"train": Rows([], image=Image(), label=ClassLabel(["x"]))}
    assert refused(read_source, "hf:a/b") == "hf:a/b: there are no examples"
    said = refused(read_source, "hf:no/such")
    assert said.startswith("hf:no/such could not be read (FileNotFoundError: Dataset 'no/such' do")
    assert "the network" in said


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    for ask in (read_source, fetch_dataset):
        assert refused(ask, "hf:uoft-cs/cifar10") == (
            "hf:uoft-cs/cifar10 needs the datasets package: pip install 'heterophony[hf]'"
        )


class Float(Value):
    dtype = "float32"


class Text(Value):
    dtype = "string"


class List(Value):
    pass


def test_a_hub_set_of_numbers_texts_and_users_is_a_table(hub):
    rows = [
        {"age": 30.0 + i, "sex": "fm"[i % 2], "site": f"s{i % 2}", "label": i % 2} for i in range(8)
    ]
    kinds = {"age": Float(), "sex": Text(), "site": Text(), "label": ClassLabel(["no", "yes"])}
    hub["a/b"] = {"train": Rows(rows[:6], **kinds), "test": Rows(rows[6:], **kinds)}
    made = read_source("hf:a/b", users="site")
    assert (made.labels, made.official, made.user_names) == (("no", "yes"), 6, ("s0", "s1"))
    assert [c.name for c in made.columns] == ["age", "sex"]
    assert made.columns[1].categories == ("f", "m")
    assert hp.federate(hub["a/b"], users="site").clients == ("s0", "s1")


def test_a_hub_set_of_lists_is_arrays(hub):
    rows = [{"signal": [float(i)] * 3, "label": "ab"[i % 2]} for i in range(4)]
    hub["a/b"] = {"train": Rows(rows, signal=List(), label=Text())}
    made = read_source("hf:a/b")
    assert (made.x.shape, made.labels) == ((4, 3), ("a", "b"))
    hub["a/b"] = {
        "train": Rows([*rows, {"signal": [1.0], "label": "a"}], signal=List(), label=Text())
    }
    assert "the lists in column 'signal' have different lengths" in refused(read_source, "hf:a/b")


# flwr-datasets --------------------------------------------------------------------------------


class Partitioner:
    """The part of a partitioner's interface that is used."""

    def __init__(self, parts: list[Rows]) -> None:
        self.parts = parts

    @property
    def num_partitions(self) -> int:
        if not self.parts:
            raise AttributeError("The dataset field should be set before using it.")
        return len(self.parts)

    def load_partition(self, partition_id: int) -> Rows:
        return self.parts[partition_id]


class FederatedDataset:
    def __init__(self, **partitioners: Partitioner) -> None:
        self.held = partitioners

    @property
    def partitioners(self) -> dict[str, Partitioner]:
        return self.held

    def load_partition(self, partition_id: int, split: str | None = None) -> Rows:
        return self.held[split or "train"].load_partition(partition_id)


def make_partitions(*sizes: int) -> Partitioner:
    kinds = {"v": List(), "label": ClassLabel(["a", "b"])}
    return Partitioner(
        [
            Rows([{"v": [c, i], "label": i % 2} for i in range(n)], **kinds)
            for c, n in enumerate(sizes)
        ]
    )


def test_partitions_of_flower_are_clients():
    made = hp.federate(make_partitions(4, 6))
    assert made.clients == ("0", "1")
    held = {c: torch.cat([made.train[c], made.test[c]]) for c in made.clients}
    assert {c: len(r) for c, r in held.items()} == {"0": 4, "1": 6}
    assert all((made.x[r][:, 0] == int(c)).all() for c, r in held.items())
    both = hp.federate(FederatedDataset(train=make_partitions(4, 6), test=make_partitions(2, 3)))
    assert {c: len(r) for c, r in both.train.items()} == {"0": 4, "1": 6}
    assert {c: len(r) for c, r in both.test.items()} == {"0": 2, "1": 3}


class NaturalIdPartitioner(Partitioner):
    """A partitioner that makes one partition of each value of a column."""

    def __init__(self, names: str, *sizes: int) -> None:
        super().__init__(make_partitions(*sizes).parts)
        self.partition_id_to_natural_id = dict(enumerate(names))


def test_partitions_of_flower_by_a_column_have_its_names():
    assert hp.federate(NaturalIdPartitioner("cb", 4, 6)).clients == ("b", "c")
    parts = {"train": NaturalIdPartitioner("cb", 4, 6), "test": NaturalIdPartitioner("bc", 2, 3)}
    both = hp.federate(FederatedDataset(**parts))
    assert (both.sizes(), both.sizes("test")) == ({"b": 6, "c": 4}, {"b": 2, "c": 3})
    parts["test"] = make_partitions(2, 3)
    assert hp.federate(FederatedDataset(**parts)).clients == ("0", "1")
    parts["test"] = NaturalIdPartitioner("ab", 2, 3)
    assert refused(hp.federate, FederatedDataset(**parts)) == (
        "flwr-datasets: client 'c' has no test partition; partition both splits into the same"
        " clients, or only train"
    )


def test_partitions_of_the_package_itself_are_clients(monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    rows = {"x": [[float(i), 1.0] for i in range(24)], "label": [i // 3 % 2 for i in range(24)]}
    held = datasets.Dataset.from_dict({**rows, "ward": [f"w{i % 3}" for i in range(24)]})
    for rule, clients in (
        (partitioners.IidPartitioner(2), ("0", "1")),
        (partitioners.NaturalIdPartitioner("ward"), ("w0", "w1", "w2")),
    ):
        rule.dataset = held
        with pytest.warns(UserWarning, match="flwr-datasets: the column ward is not used"):
            assert hp.federate(rule).clients == clients


def test_partitions_of_flower_that_do_not_fit_are_refused():
    unequal = FederatedDataset(train=make_partitions(4, 6), test=make_partitions(2))
    assert refused(hp.federate, unequal) == (
        "flwr-datasets: 2 training but 1 test partitions; make them equal"
    )
    assert "partition 'train'" in refused(hp.federate, FederatedDataset(valid=make_partitions(2)))
    assert refused(hp.federate, Partitioner([])) == (
        "flwr-datasets: The dataset field should be set before using it."
    )
