"""A newcomer's mistakes in Python: each gets one line that says what, where and what to do."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

import heterophony as hp
from helpers.support import blobs, digits, played
from heterophony.core.errors import ConfigError, DataError, EngineError, FolderError
from heterophony.data.sources import read_source, wrap_arrays


def said(error: type[Exception], call, *args, **how) -> str:
    """The text of the error; it has one line."""
    with pytest.raises(error) as caught:
        call(*args, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iid", "IID"])
def test_a_partition_may_be_given_by_name(name):
    named = hp.federate("digits", clients=4, partition=name)
    assert named.sha256 == hp.federate("digits", clients=4, partition=hp.IID()).sha256


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ("idd", "partition: unknown name 'idd'; did you mean 'iid'?"),
        (hp.IID, "partition: must be an object such as hp.IID() or hp.Dirichlet(0.1), or a name"),
        (0.1, "partition: must be an object such as hp.IID() or hp.Dirichlet(0.1), or a name"),
    ],
)
def test_what_is_no_partition_is_said(partition, words):
    text = said(ConfigError, hp.federate, "digits", clients=4, partition=partition)
    assert text.startswith(words)


# Labels ---------------------------------------------------------------------------------------


X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 3], "the labels are 1, 2, 3, not 0 … 2; renumber them (y - 1), or set classes=4"),
        (
            [0, 2],
            "the labels are 0, 2, not 0 … 1; renumber them (np.unique(y, return_inverse=True",
        ),
        (
            range(10, 130, 10),
            "the labels are 10, 20, 30, 40, 50, …, 120, not 0 … 11; renumber them",
        ),
        ([-1, 0], "label -1 (example 0) is negative"),
    ],
)
def test_labels_that_are_not_counted_from_zero_are_asked_about(labels, words, tmp_path):
    y = np.resize(labels, 12)
    assert said(DataError, hp.federate, (X, y), clients=2).startswith(f"arrays: {words}")
    assert said(DataError, hp.federate, [(X, y), (X, y)]).startswith(f"arrays: {words}")
    np.savez(tmp_path / "a.npz", x=X, y=y)
    for path, name in ((tmp_path / "a.npz", "a"), (tmp_path, tmp_path.name)):
        where = tmp_path / "a.npz" if min(labels) < 0 else name  # a label that no file may hold
        assert said(DataError, read_source, str(path)).startswith(f"{where}: {words}")


def test_classes_can_be_given(tmp_path):
    y = np.resize([1, 2, 3], 12)
    how = {"clients": 2, "partition": hp.IID()}
    assert hp.federate((X, y), classes=4, **how).labels == ("0", "1", "2", "3")
    assert hp.federate([(X, y)], classes=["a", "b", "c", "d"]).labels == ("a", "b", "c", "d")
    np.savez(tmp_path / "a.npz", x=X, y=y)
    assert hp.federate(tmp_path / "a.npz", classes=5, **how).classes == 5
    assert said(DataError, hp.federate, (X, y), classes=3) == (
        "arrays: labels must be 0 … 2, but example 2 has 3; number the labels 0, 1, … (y - 1), or list"
        " all classes (data.classes)"
    )
    assert said(ConfigError, hp.federate, (X, y), classes=["a", "a"]).startswith("data.classes: a")
    assert said(ConfigError, hp.federate, (X, y), classes="abcd").startswith("data.classes: must")
    text = said(ConfigError, hp.federate, "digits", classes=10)
    assert text == "data.classes: digits has its own classes; leave it out"


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (
            X,
            np.resize([0.0, 1.0], 12),
            "float64 (12,); if they are classes, use y.astype(int); for",
        ),
        (X, np.resize([0.0, 0.5], 12), "(example 1 has '0.5'); for numbers set task='regression'"),
        (
            X,
            np.eye(3)[np.resize([0, 1, 2], 12)],
            "(12, 3); if they are one-hot, use y.argmax(1); set",
        ),
        (X, np.ones((12, 3)), "float64 (12, 3); set task='regression', 'multilabel' or 'sequence'"),
        (["a"] * 12, np.resize([0, 1], 12), "arrays: the examples are texts; pass a frame with"),
        (
            np.array(["a"] * 12, object),
            np.resize([0, 1], 12),
            "arrays: the examples are texts; pass",
        ),
    ],
)
def test_labels_and_examples_of_other_types_get_a_hint(x, y, words):
    assert words in said(DataError, hp.federate, (x, y), clients=2)


# Images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ((6, 28, 30, 1), (1, 28, 30)),
        ((6, 32, 32, 3), (3, 32, 32)),
        ((6, 8, 5, 4), (4, 8, 5)),
        ((6, 3, 32, 32), (3, 32, 32)),
        ((6, 1, 128, 3), (1, 128, 3)),
        ((6, 9, 1, 128), (9, 1, 128)),
        ((6, 4, 8, 3), (4, 8, 3)),
        ((6, 32, 3), (32, 3)),
    ],
)
def test_images_of_numbers_get_their_channels_first_as_bytes_do(given, read):
    x = np.arange(np.prod(given), dtype=np.float64).reshape(given)
    made = wrap_arrays(x, np.arange(6))
    assert made.x.shape == (6, *read)
    expected = x if given[1:] == read else np.moveaxis(x, -1, 1)
    assert np.array_equal(made.x, expected.astype(np.float32))


def test_a_shape_that_was_configured_is_not_rearranged():
    x = np.zeros((6, 32, 32, 3), np.float32)
    assert wrap_arrays(x, np.arange(6), shape=(32, 32, 3)).x.shape == (6, 32, 32, 3)
    assert wrap_arrays(x, np.arange(6), shape=(3, 32, 32)).x.shape == (6, 3, 32, 32)


# Runs -----------------------------------------------------------------------------------------


def test_one_client_per_round_is_warned_of_where_all_may_be_meant():
    with pytest.warns(UserWarning, match=r"^participation=1 means one client in every round; pass"):
        result = played("fedavg", participation=1, rounds=1)
    assert [len(e["clients"]) for e in result.events if e["event"] == "round"] == [1]
    played("fedavg", participation=hp.Uniform(count=1), rounds=1)
    hp.run("fedavg", hp.federate(blobs([20])), participation=1, rounds=1)


@pytest.mark.parametrize(
    ("algorithm", "federation", "words"),
    [
        ("fedavg", "digits", "federation: must be clients with data, not 'digits'; pass "
                             "hp.federate('digits')"),
        ("fedavg", (X, X), "federation: must be clients with data, not tuple; pass hp.federate(…)"),
        (3, None, "algorithm: must be a name, or a class or an instance of hp.Algorithm, not 3"),
    ],
)  # fmt: skip
def test_what_is_no_algorithm_or_federation_is_said(algorithm, federation, words):
    text = said(ConfigError, hp.run, algorithm, federation or digits(), rounds=1)
    assert text.startswith(words)


def test_a_folder_that_exists_is_refused_with_what_python_can_do(tmp_path):
    out = tmp_path / "run"
    played("fedavg", out=out, rounds=1)
    assert said(FolderError, played, "fedavg", out=out, rounds=1) == (
        f"{out} already holds a run; continue it with resume=True or choose another out="
    )
    (tmp_path / "letter.txt").write_text("dear")
    text = said(FolderError, played, "fedavg", out=tmp_path)
    assert text == f"{tmp_path} is not empty; choose another out="


def test_a_class_that_workers_cannot_find_is_said(monkeypatch):
    """As one that is defined below ``if __name__ == "__main__":``, or typed at a prompt."""
    module = ModuleType("typed_at_a_prompt")
    exec("import heterophony as hp\nclass Mine(hp.Algorithm): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = said(EngineError, played, module.Mine(), rounds=1, engine="pool", workers=2)
    assert text == (
        "the pool's workers cannot load this algorithm or model (No module named"
        " 'typed_at_a_prompt'); define it at the top level of a file, above"
        ' `if __name__ == "__main__":`, or use the serial engine'
    )
