"""``hp.FedProx(mu=0.1)``, ``hp.run("fedprox", …, mu=0.1)``, and defaults as on the command line."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import heterophony as hp
from helpers.commands import call
from helpers.support import digits, identical, played
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError
from heterophony.core.settings import list_settings

SCRIPT = runpy.run_path(
    str(Path(__file__).parents[2] / "scripts" / "generated" / "public_names.py")
)


# The classes are public --------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "name"), sorted(ALGORITHM_CLASSES.items()))
def test_every_algorithm_is_public_by_its_class(file, name):
    assert getattr(hp, name) is get_algorithm_class(file)


def test_the_stubs_lines_of_algorithms_are_those_of_the_registry():
    """One that is missing works too; ``scripts/generate`` adds it for editors."""
    stub = SCRIPT["STUB"].read_text().splitlines()
    lines = [line for line in stub if line.startswith(SCRIPT["PREFIX"])]
    assert set(lines) <= set(SCRIPT["list_algorithm_lines"]()), "run scripts/generate"


def test_the_script_writes_the_stub_as_it_is():
    text = SCRIPT["STUB"].read_text()
    without = "\n".join(line for line in text.splitlines() if " FedProx " not in line)
    assert SCRIPT["write_stub"](without + "\n") == SCRIPT["write_stub"](text)


def test_an_algorithm_without_a_line_in_the_stub_is_found(monkeypatch):
    others = {name: module for name, module in hp.PUBLIC.items() if name != "FedProx"}
    monkeypatch.setattr(hp, "PUBLIC", others)
    assert hp.FedProx is get_algorithm_class("fedprox")


def test_an_unknown_class_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FedPrx'") as caught:
        _ = hp.FedPrx
    assert (caught.value.name, caught.value.obj) == ("FedPrx", hp)  # Python suggests from these


def test_asking_for_a_name_that_is_no_class_imports_no_torch():
    code = "import sys, heterophony; hasattr(heterophony, 'wrapped'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Settings as keywords ----------------------------------------------------------------------------


def test_settings_are_keywords_of_a_name_or_a_class():
    expected = played(hp.FedProx(mu=0.5))
    assert identical(expected, played("fedprox", mu=0.5))
    assert identical(expected, played("FedProx", mu=0.5))
    assert identical(expected, played(hp.FedProx, mu=0.5))
    assert not identical(expected, played("fedprox"))


@pytest.mark.parametrize(
    ("algorithm", "how", "said"),
    [
        ("fedprox", {"mu": -1}, "algorithm.mu: must be at least 0, not -1"),
        (
            "ditto",
            {"lamb": 1},
            "lamb: neither a keyword of hp.run nor a setting of Ditto; did you mean",
        ),
        (
            "fedavg",
            {"round": 5},
            "round: neither a keyword of hp.run nor a setting of FedAvg; did you",
        ),
        ("fedavg", {"lr": 0.1}, "lr: write training=hp.Training(lr=0.1)"),
        ("fedavg", {"clients": 5}, "clients: pass it to hp.federate, as in clients=5"),
        (hp.FedProx(), {"mu": 1}, "mu: pass it to the instance, as in FedProx(mu=1)"),
        (3, {}, "algorithm: must be a name, or a class or an instance of hp.Algorithm, not 3"),
        (hp.Net, {}, "algorithm: must be a name, or a class or an instance of hp.Algorithm, not "),
    ],
)
def test_a_mistake_is_one_line(algorithm, how, said):
    with pytest.raises(ConfigError) as caught:
        played(algorithm, **how)
    assert str(caught.value).startswith(said)


def test_which_settings_are_named_like_a_keyword_of_run():
    """They are given to an instance; docs/how-to/library.md says so."""
    keywords = set(inspect.signature(hp.run).parameters)
    settings = {
        (name, f.name)
        for name in ALGORITHM_CLASSES
        for f in list_settings(get_algorithm_class(name))
    }
    assert {(name, key) for name, key in settings if key in keywords} == {("fedreg", "weights")}


@pytest.mark.parametrize("data", ["digits", Path("digits.npz"), None])
def test_what_is_no_federation_is_said(data):
    with pytest.raises(
        ConfigError, match=r"^federation: must be clients with data, .*hp\.federate"
    ):
        hp.run("fedavg", data)


# Defaults ----------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_command_line(tmp_path, monkeypatch):
    """The same bits, with nothing said; only the engine is another one."""
    monkeypatch.chdir(tmp_path)
    steps = ("-c", "rounds=1", "-c", "training.steps=1", "-c", "engine.name=serial")
    assert call("run", *steps, "--out", "mine").exit_code == 0
    mine = hp.run("fedavg", hp.federate("digits"), rounds=1, training=hp.Training(steps=1))
    assert f'"model_sha256": "{mine.model_sha256}"' in Path("mine/result.json").read_text()
    usual, asked = read_config(None), inspect.signature(hp.run).parameters
    assert asked["rounds"].default == usual.top.rounds
    assert asked["seed"].default == usual.top.seed
    assert asked["participation"].default == usual.participation.rate
    assert asked["evaluate_every"].default == usual.evaluation.every
    assert asked["new_client_rounds"].default == usual.evaluation.new_client_rounds
    assert asked["weights"].default == usual.aggregation.weights
    assert asked["buffers"].default == usual.model.buffers


# What an algorithm knows when it builds its net --------------------------------------------------


@dataclass(frozen=True)
class Curious(hp.Algorithm):
    """Keeps what it sees."""

    def build(self, net: hp.Net) -> hp.Net:
        assert (net.shape, net.classes, net.task) == ((1, 8, 8), 10, "classification")
        return net


def test_build_knows_shape_classes_and_task():
    result = played(Curious(), rounds=0)
    assert result.plan.template.classes == digits().classes == 10
