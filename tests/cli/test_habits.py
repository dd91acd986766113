"""Habits from other programs: options and bare words as settings, completion of ``-c``, a JSON Schema."""

from __future__ import annotations

import json
import os
import tomllib

import pytest
from typer.testing import CliRunner

from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.cli import app
from heterophony.cli.options import complete_setting, translate_habits
from heterophony.config.keys import SCHEMA_FILE, build_schema, find_setting, list_keys
from heterophony.config.reading import resolve_config
from heterophony.config.sections import NetGroup
from heterophony.core.adapters import ADAPTERS
from heterophony.core.errors import BusyError, ConfigError
from heterophony.core.files import lock_folder
from heterophony.core.settings import list_settings
from heterophony.data.partitions import PARTITIONS
from heterophony.population.attacks import Attack
from heterophony.protection import PROTECTION_CLASSES, get_protection_class

OPTIONS = {"-c": True, "--config": True, "--out": True, "--json": False, "--seeds": True}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("--rounds 5", "-c rounds=5"),
        ("--rounds=5 --json", "-c rounds=5 --json"),
        ("--lr 0.1 --clients 10", "-c lr=0.1 -c clients=10"),
        ("--training.lr 1e-3", "-c training.lr=1e-3"),
        ("--mu 0.1 --alpha -1", "-c mu=0.1 -c alpha=-1"),
        ("fedprox lr=0.1 data=fmnist", "fedprox -c lr=0.1 -c data=fmnist"),
        ("-c lr=0.1 --out a=b", "-c lr=0.1 --out a=b"),
        ("--seed 1", "--seeds 1"),
        ("--learning-rate 0.1 --batch_size 8", "-c lr=0.1 -c batch=8"),
        ("--num-clients 9 --global-rounds 7", "-c clients=9 -c rounds=7"),
        ("--dataset fmnist --join-ratio 0.1", "-c data.name=fmnist -c participation.rate=0.1"),
        ("--nonsense 1", "--nonsense 1"),
        ("-- --rounds 5", "-- --rounds 5"),
    ],
)
def test_options_and_bare_words_are_settings(given, taken):
    assert translate_habits(given.split(), OPTIONS) == taken.split()


def test_a_command_without_seeds_has_one_seed():
    without = {k: v for k, v in OPTIONS.items() if k != "--seeds"}
    assert translate_habits(["--seed", "1"], without) == ["-c", "seed=1"]


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("--rounds", "--rounds: a value is missing, as in --rounds 1"),
        ("--rounds --json", "--rounds: a value is missing, as in --rounds 1"),
        ("--round 5", "--round: no such option; did you mean -c rounds=… ?"),
        ("--client 5", "--client: no such option; did you mean -c clients=… ?"),
    ],
)
def test_others_are_answered_with_the_right_spelling(given, answer):
    with pytest.raises(ConfigError) as caught:
        translate_habits(given.split(), OPTIONS)
    assert str(caught.value) == answer


def call(*words: str) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.output


SMALL = "--clients 2 --engine serial --model mlp --steps 1"


def test_run_and_compare_understand_them(tmp_path):
    call("run", "fedavg", *SMALL.split(), "--rounds", "1", "lr=0.5", "--seed", "3",
         "--out", str(tmp_path / "run"))  # fmt: skip
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["rounds"], config["seed"], config["training"]["lr"]) == (1, 3, 0.5)
    call("compare", "fedavg", "fedper", *SMALL.split(), "--rounds", "0", "--seed", "1", "2",
         "--out", str(tmp_path / "all"))  # fmt: skip
    assert len(list((tmp_path / "all").rglob("config.toml"))) == 4
    done = CliRunner().invoke(app, ["run", "--nonsense", "1"])
    assert done.exit_code == 2
    assert "--nonsense" in done.output


def test_ambiguous_keys_are_answered_with_the_full_ones():
    done = CliRunner().invoke(app, ["run", "--name", "x"])
    assert done.exit_code == 3
    assert "name: can be algorithm.name or" in " ".join(done.output.split())


def test_shells_complete_keys_and_values():
    assert complete_setting("training.mom") == ["training.momentum=", "training.momentum_state="]
    assert "training.lr=" in complete_setting("lr")
    assert complete_setting("engine.name=p") == ["engine.name=pool"]
    assert complete_setting("algorithm=fedro") == ["algorithm=fedrod"]
    assert complete_setting("training.drop_last=") == [
        "training.drop_last=true",
        "training.drop_last=false",
    ]
    assert complete_setting("data.partition.kind=d") == ["data.partition.kind=dirichlet"]
    assert complete_setting("rounds=") == []


def test_yaml_is_answered_with_how_to_convert_it(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("rounds: 5\n")
    done = CliRunner().invoke(app, ["run", str(path)], env={"COLUMNS": "1000"})
    assert done.exit_code == 3
    said = " ".join(done.output.split())
    assert "settings are TOML, not YAML; convert it: python -c" in said
    assert said.endswith(f"< {path} > {tmp_path / 'study.toml'}")


def test_the_schema_admits_every_default_configuration_and_refuses_mistakes():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(call("schema"))
    assert schema == json.loads(json.dumps(build_schema()))
    check = jsonschema.Draft7Validator(schema)
    check.check_schema(schema)
    for name in ALGORITHM_CLASSES:
        config = resolve_config({"algorithm": {"name": name}})
        assert list(check.iter_errors(tomllib.loads(config.to_toml()))) == []
    wrong = [
        {"rounds": "many"},
        {"rounds": -1},
        {"rond": 5},
        {"training": {"optimizer": "rmsprop"}},
        {"training": {"learning_rate": 0.1}},
        {"algorithm": {"name": "fedavg", "mu": 0.1}},
        {"data": {"partition": {"kind": "iid", "alpha": 1}}},
        {"protection": [{"kind": "top_k", "part": 1}]},
    ]
    for content in wrong:
        assert list(check.iter_errors(content)), content
    assert list(check.iter_errors({"algorithm": {"name": "mine:Mine", "own": 1}})) == []
    assert find_setting("engine.name")["enum"] == ["serial", "pool", "ray"]


def list_accepted() -> list[tuple[str, dict[str, object]]]:
    """List every key that a configuration accepts, with what else there must be in its table."""
    keys: list[tuple[str, dict[str, object]]] = []
    for name, cls in ALGORITHM_CLASSES.items():
        del cls
        keys += [
            (k, {"name": name}) for k in list_keys([name], "iid") if k.startswith("algorithm.")
        ]
    for kind in PARTITIONS:
        own = [k for k in list_keys(["fedavg"], kind) if k.startswith("data.partition.")]
        keys += [(k, {"kind": kind}) for k in own]
    plain = list_keys(["fedavg"], "iid")
    keys += [(k, {}) for k in plain if not k.startswith(("algorithm.", "data.partition."))]
    for kind, adapter in ADAPTERS.items():
        keys += [(f"model.adapter.{f.name}", {"kind": kind}) for f in list_settings(adapter)]
    keys += [(f"attack.{f.name}", {}) for f in list_settings(Attack)]
    return keys


def list_unknown(check, content: dict[str, object]) -> list[str]:
    """List the errors about keys that the schema does not have."""
    return [e.message for e in check.iter_errors(content) if "were unexpected" in e.message
            or "was unexpected" in e.message]  # fmt: skip


def test_the_schema_has_every_key_that_a_configuration_accepts():
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft7Validator(build_schema())
    for key, beside in list_accepted():
        *sections, last = key.split(".")
        table: dict[str, object] = {**beside, last: beside.get(last, 0)}
        for section in reversed(sections):
            table = {section: table}
        assert list_unknown(check, table) == [], key
    for kind in PROTECTION_CLASSES:
        for f in list_settings(get_protection_class(kind)):
            assert list_unknown(check, {"protection": [{"kind": kind, f.name: 0}]}) == []
    for f in list_settings(NetGroup):
        assert list_unknown(check, {"model": {"group": [{f.name: 0}]}}) == []
    assert list_unknown(check, {"model": {"group": [{"nam": "mlp"}]}})
    assert list(check.iter_errors({"model": {"adapter": {"kind": "lora", "rank": 0}}}))
    groups = [{"name": "mlp", "share": 0.5}, {"name": "cnn", "clients": ["0"]}]
    adapter = {"kind": "lora", "rank": 8, "alpha": 16}
    for model in ({"group": groups}, {"adapter": adapter}, {"groups": "small"}):
        assert list(check.iter_errors({"model": model, "speeds": {"spread": 0.5}})) == []


def test_a_new_study_names_its_schema(tmp_path):
    call("new", str(tmp_path / "study"))
    first = (tmp_path / "study" / "study.toml").read_text().splitlines()[0]
    assert first == f"#:schema ./{SCHEMA_FILE}"
    assert json.loads((tmp_path / "study" / SCHEMA_FILE).read_text()) == build_schema()


def test_compare_has_workers_and_refuses_a_folder_in_use(tmp_path):
    words = ["compare", "fedavg", *SMALL.split(), "--rounds", "0", "--out", str(tmp_path / "all")]
    call(*words, "--workers", "1")
    lock = lock_folder(tmp_path / "all")
    for command in (words, ["resume", str(tmp_path / "all")]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == BusyError.exit_code
        assert "is in use by another process" in " ".join(done.output.split())
    os.close(lock)
