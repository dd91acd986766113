"""Habits from other programs: options and bare words as settings, completion of ``-c``, a JSON Schema."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from shlex import quote

import pytest
from typer.testing import CliRunner

from helpers.commands import refused
from helpers.forked import Forked
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.cli import app
from heterophony.cli.completion import complete_setting
from heterophony.cli.habits import translate_habits
from heterophony.config.keys import SCHEMA_FILE, build_schema, find_setting_schema, list_keys
from heterophony.config.reading import resolve_config
from heterophony.config.sections import NetGroup
from heterophony.core.adapters import ADAPTERS
from heterophony.core.errors import BusyError, OptionError
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
        ("--num-server-rounds 3 --n_clients 4", "-c rounds=3 -c clients=4"),
        ("--global_rounds 3 --local_epochs 2", "-c rounds=3 -c epochs=2"),
        ("-gr 3 -lr .1 -nc=4", "-c rounds=3 -c lr=.1 -c clients=4"),
        ("--device cpu --wd 0.1", "-c accelerator=cpu -c weight_decay=0.1"),
        ("--fraction-fit 0.1 --lr_decay 0.9", "-c participation.rate=0.1 -c decay_factor=0.9"),
        ("--times 3", "--seeds 0-2"),
        ("-clr=0.1", "-clr=0.1"),
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
        ("--round 5", "--round: no such option; did you mean --rounds?"),
        ("--client 5", "--client: no such option; did you mean --clients?"),
        ("--learning-rte 5", "--learning-rte: no such option; did you mean --lr?"),
        ("--weight-deca 5", "--weight-deca: no such option; did you mean --weight-decay?"),
        ("--outt x", "--outt: no such option; did you mean --out?"),
        ("--times x", "--times x: must be a number of seeds, as in --times 3"),
    ],
)
def test_others_are_answered_with_the_right_spelling(given, answer):
    with pytest.raises(OptionError) as caught:
        translate_habits(given.split(), OPTIONS)
    assert str(caught.value) == answer


def test_wrong_options_have_one_exit_code():
    assert refused(2, "run", "--round", "5") == "--round: no such option; did you mean --rounds?"
    said = refused(2, "run", "--times", "3")
    assert said == "--times: no such option; heterophony compare … --seeds 0-2 runs several seeds"
    assert CliRunner().invoke(app, ["run", "--nonsense", "1"]).exit_code == 2


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
    assert complete_setting("lr") == ["lr=", "lr=..."]  # two, so that shells add no space
    assert complete_setting("engine.name=p") == ["engine.name=pool"]
    assert complete_setting("algorithm=fedro") == ["algorithm=fedrod"]
    both = ["training.drop_last=true", "training.drop_last=false"]
    assert complete_setting("training.drop_last=") == complete_setting("training.drop") == both
    assert complete_setting("data.partition.kind=d") == ["data.partition.kind=dirichlet"]
    assert complete_setting("rounds=") == []


COMPLETED = [
    ("run -c lr", ["lr=", "lr=..."]),
    ("run -c data.name = fm", ["fmnist", "fmnist-small"]),
    ("run -c engine.name=p", ["engine.name=pool"]),  # without = in COMP_WORDBREAKS
    ("run -c training.drop_last =", ["true", "false"]),
    ("run -c training.drop", ["training.drop_last=true", "training.drop_last=false"]),
    ("run -c lr = 0.1 --rounds fedprot", ["fedproto"]),  # the value of --rounds is missing
]


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    """The command as a file in PATH, as it is installed."""
    path = tmp_path / "bin" / "heterophony"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nfrom heterophony.cli import main\nmain()\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return path


@pytest.mark.parametrize(("words", "found"), COMPLETED)
def test_words_that_bash_splits_are_completed_by_the_protocol(words, found):
    asked = {"COMP_WORDS": f"heterophony {words}", "COMP_CWORD": str(len(words.split()))}
    done = Forked(env={**os.environ, **asked, "_HETEROPHONY_COMPLETE": "complete_bash"})
    said, errors = done.communicate(60)
    assert (said.split(), errors) == (found, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_words_that_bash_splits_are_completed_in_bash(program):
    lines = ["source <(_HETEROPHONY_COMPLETE=source_bash heterophony)"]
    tried = [COMPLETED[1], COMPLETED[3]]
    for words, _ in tried:
        lines += [
            f"COMP_WORDS=(heterophony {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))",
            '_heterophony_completion heterophony; echo "${COMPREPLY[@]}"',
        ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert [line.split() for line in done.stdout.splitlines()] == [found for _, found in tried]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("suffix", "text", "module"),
    [
        (".yaml", "rounds: 5\n", "yaml"),
        (".yml", "rounds: 5\n", "yaml"),
        (".json", '{"rounds": 5}', "json"),
    ],
)
def test_other_formats_are_answered_with_how_to_convert_them(suffix, text, module, tmp_path):
    pytest.importorskip(module)
    path = tmp_path / f"my study{suffix}"
    path.write_text(text)
    said = refused(3, "run", path)
    name = {"yaml": "YAML", "json": "JSON"}[module]
    before, command = said.split("; convert it: ")
    assert before == f"{path}: settings are TOML, not {name}"
    installs = "pip install pyyaml && "
    assert command.startswith(installs) == (module == "yaml")
    program = command.removeprefix(installs).replace("python ", f"{quote(sys.executable)} ", 1)
    subprocess.run(program, shell=True, check=True)
    assert tomllib.loads((tmp_path / "my study.toml").read_text()) == {"rounds": 5}


def test_a_file_of_another_format_that_is_missing_is_said():
    assert (
        refused(3, "run", "no/study.yaml") == "cannot read no/study.yaml: No such file or directory"
    )


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
    assert find_setting_schema("engine.name")["enum"] == ["serial", "pool", "ray"]


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
