"""Short words on the command line: an algorithm in place of a file, short keys, any case, seeds."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from helpers.commands import call, refused
from heterophony.cli.options import join_seed_words, parse_seeds
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, suggest_similar

QUICK = (
    *("-c", "rounds=1", "-c", "data.clients=3", "-c", "training.steps=1", "-c", "model.name=mlp"),
    *("-c", "engine.name=serial"),
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config(folder: str) -> dict:
    return tomllib.loads((Path(folder) / "config.toml").read_text())


# An algorithm where a file would be --------------------------------------------------------------


def test_run_takes_an_algorithm_in_any_case_in_place_of_a_file():
    assert call("run", "FedReG", *QUICK, "--out", "mine").exit_code == 0
    assert config("mine")["algorithm"]["name"] == "fedreg"
    assert call("data", "partition", "fedavg", "-c", "data.clients=3").exit_code == 0


def test_a_file_of_that_name_is_read():
    Path("fedreg").write_text('[algorithm]\nname = "fedper"\n')
    assert call("run", "fedreg", *QUICK, "--out", "mine").exit_code == 0
    assert config("mine")["algorithm"]["name"] == "fedper"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedrag"], "fedrag: neither a file nor an algorithm; did you mean 'fedreg'?"),
        (["my.toml"], "cannot read my.toml: No such file or directory"),
        (["missing.yaml"], "cannot read missing.yaml: No such file or directory"),
        (["conf/mine"], "cannot read conf/mine: No such file or directory"),
        (["nowhere:Mine"], "algorithm.name: there is no module 'nowhere' on this machine"),
        (
            ["fedreg", "-c", "algorithm.name=fedavg"],
            "fedreg and -c algorithm.name=fedavg: name the algorithm once",
        ),
    ],
)
def test_a_word_that_is_neither_is_one_line(words, said):
    assert refused(3, "run", *words).startswith(said)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("key", ["data.partition", "partition"])
def test_a_kind_of_partition_needs_no_key_of_its_own(key):
    chosen = read_config(None, [f"{key}=classes", "per_client=3"]).data.partition
    assert (chosen["kind"], chosen["per_client"]) == ("classes", 3)


# Names in any case -------------------------------------------------------------------------------


def test_suggestions_do_not_depend_on_case():
    names = ["fedavg", "fedreg", "pfedme"]
    assert suggest_similar("FedReGG", names) == "; did you mean 'fedreg'?"
    assert suggest_similar("PFEDM", names) == "; did you mean 'pfedme'?"


@pytest.mark.parametrize(
    ("pairs", "section", "key", "found"),
    [
        (["algorithm.name=FedReG"], "algorithm", "name", "fedreg"),
        (["algorithm.name=LG-FedAvg"], "algorithm", "name", "lgfedavg"),
        (["algorithm.name=FedRep-full"], "algorithm", "name", "fedrep_full"),
        (["model.name=ConvNet"], "model", "name", "convnet"),
        (["data.name=CIFAR-10"], "data", "name", "cifar10"),
        (["data.partition.kind=IID"], "data", "partition", {"kind": "iid"}),
    ],
)
def test_names_are_accepted_in_any_case_and_written_as_they_are(pairs, section, key, found):
    assert tomllib.loads(read_config(None, pairs).to_toml())[section][key] == found


def test_a_name_in_another_case_keeps_the_settings_of_the_file():
    Path("my.toml").write_text('[algorithm]\nname = "fedprox"\nmu = 0.5\n')
    assert read_config(Path("my.toml"), ["algorithm.name=FedProx"]).algorithm.mu == 0.5


def test_compare_takes_names_in_any_case():
    done = call("compare", "FedAvg", "FedPer", *QUICK, "--out", "both", "--json")
    assert [r["algorithm"] for r in json.loads(done.stdout)] == ["fedavg", "fedper"]
    assert {p.name for p in Path("both").iterdir() if p.is_dir()} == {"fedavg-0", "fedper-0"}


# Short keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "note"),
    [
        (["lr=0.25"], "lr=0.25: read as training.lr=0.25"),
        (["LR=0.25"], "LR=0.25: read as training.lr=0.25"),
        (["data=fmnist"], "data=fmnist: read as data.name=fmnist"),
        (["engine=serial"], "engine=serial: read as engine.name=serial"),
        (["clients=5"], "clients=5: read as data.clients=5"),
        (["algorithm.name=local", "clients=5"], "clients=5: read as data.clients=5"),
        (["rate=0.5"], "rate=0.5: read as participation.rate=0.5"),
        (["partition.alpha=3"], "partition.alpha=3: read as data.partition.alpha=3"),
        (["algorithm.name=fedprox", "mu=3"], "mu=3: read as algorithm.mu=3"),
        (
            ["data.partition.kind=classes", "per_client=3"],
            "per_client=3: read as data.partition.per_client=3",
        ),
    ],
)
def test_a_short_key_is_completed_and_said(pairs, note):
    notes: list[str] = []
    found = read_config(None, pairs, notes.append)
    assert notes[0] == note
    assert sum("read as" in text for text in notes) == 1
    *others, _ = pairs
    assert found == read_config(None, [*others, note.partition("read as ")[2]])


def test_a_full_key_is_not_said():
    notes: list[str] = []
    read_config(None, ["data.name=fmnist", "training.lr=0.1", "seed=1"], notes.append)
    assert notes == []


# Defaults of training ----------------------------------------------------------------------------

BATCH_AND_MOMENTUM = (
    "clients train with batch = 20, momentum = 0.9, not with the defaults for digits (batch = 10,"
    " momentum = 0.0)"
)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["training.lr=0.1"], [f"training.lr is set, so {BATCH_AND_MOMENTUM}"]),
        (
            ["training.lr=0.1", "training.epochs=1"],
            [f"training.lr and training.epochs are set, so {BATCH_AND_MOMENTUM}"],
        ),
        (
            ["training.optimizer=adam", "training.lr=0.1"],
            [
                "training.optimizer and training.lr are set, so clients train with batch = 20, not with"
                " the defaults for digits (batch = 10)"
            ],
        ),
        (["training.lr=0.1", "training.batch=20", "training.momentum=0.9"], []),
        (["data.name=fmnist", "training.lr=0.1"], []),
        (["rounds=3"], []),
    ],
)
def test_defaults_that_a_key_replaces_are_said(pairs, said):
    notes: list[str] = []
    read_config(None, pairs, notes.append)
    assert notes == said


@pytest.mark.parametrize(
    "words",
    [
        ["run", "fedavg", "-c", "training.lr=0.1"],
        ["compare", "fedavg", "fedprox", "-c", "training.lr=0.1", "--seeds", "0-1"],
        ["sweep", "fedavg", "-s", "training.lr=0.1,0.2"],
        ["tune", "fedavg", "-s", "training.lr=0.1,0.2", "--sampler", "grid"],
    ],
)
def test_every_command_says_them_once_and_a_resumed_run_does_not(words):
    done = call(*words, "-c", "rounds=0", "-c", "data.clients=3", "-c", "engine.name=serial",
                "--out", "mine")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("not with the defaults for digits") == 1
    assert "defaults" not in call("resume", "mine").stderr


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["name=fedreg"], "name: can be algorithm.name or data.name or model.name or engine.name;"),
        (
            ["algorithm.name=fedreg", "weights=uniform"],
            "weights: can be algorithm.weights or aggregation.weights; write one of them",
        ),
        (["algorithm=apfl", "alpha=1"], "alpha: can be algorithm.alpha or data.partition."),
        (["epoch=3"], "epoch: unknown key; did you mean 'epochs'?"),
        (["qqqq=3"], "qqqq: unknown key; docs/reference/configuration.md lists all keys"),
    ],
)
def test_a_short_key_that_is_not_clear_is_one_line(pairs, said):
    with pytest.raises(ConfigError) as caught:
        read_config(None, pairs)
    assert str(caught.value).startswith(said)


def test_the_command_says_once_what_a_short_key_was_taken_for():
    words = ["compare", "fedavg", "fedprox", *QUICK, "-c", "lr=0.2", "--seeds", "0-1"]
    done = call(*words, "--out", "both")
    assert done.exit_code == 0
    assert done.stderr.splitlines().count("lr=0.2: read as training.lr=0.2") == 1
    assert config("both/fedavg-1")["training"]["lr"] == 0.2


# Seeds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0,1,2", [0, 1, 2]),
        ("0 1 2", [0, 1, 2]),
        ("0, 1, 2", [0, 1, 2]),
        ("0-4", [0, 1, 2, 3, 4]),
        ("7,0-2 1", [7, 0, 1, 2]),
        ("-1", [-1]),
    ],
)
def test_seeds_are_read_as_people_write_them(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0,x", "1.5", "0--2", "4-0"])
def test_seeds_that_are_none_are_one_line(text):
    with pytest.raises(ConfigError, match=rf"^--seeds {text}: "):
        parse_seeds(text)


def test_several_words_after_the_option_are_seeds():
    words = ["fedavg", "--seeds", "0", "1", "3-4", "fedper", "2"]
    assert join_seed_words(words) == ["fedavg", "--seeds", "0,1,3-4", "fedper", "2"]
    words = ["compare", "fedavg", "--seeds", "1", "2", *QUICK, "--out", "both", "--json"]
    assert json.loads(call(*words).stdout)[0]["seeds"] == [1, 2]
