"""A run that is no better than chance is told so, and the run that nobody configured is better."""

from __future__ import annotations

from dataclasses import replace

import pytest

import heterophony as hp
from helpers.commands import call
from helpers.support import QUICK, played
from heterophony.config.reading import read_config
from heterophony.core.training import Training
from heterophony.data.sources import choose_default_training
from heterophony.runs.curves import Accuracy, MeanStd
from heterophony.runs.events import get_start
from heterophony.runs.summary import compute_chance_level, describe_chance_level

SHORT = ["-c", "rounds=1", "-c", "data.clients=4", "-c", "engine.name=serial"]


def accuracy(last: float, mean: float) -> Accuracy:
    return Accuracy(1.0, 0, last, MeanStd(mean, 0.0))


def describe(last: float, mean: float, generic: Accuracy | None = None) -> str | None:
    """The sentence about a run with 100 test examples, of 2 classes of which one has 64 %."""
    start = {"classes": ["a", "b"], "labels": [[60, 20], [4, 16]], "test": [60, 40]}
    result = played("fedavg", rounds=0)
    return describe_chance_level(replace(result.summary, G=generic, P=accuracy(last, mean)), start)


def test_the_level_is_that_of_the_largest_class_or_of_guessing():
    assert compute_chance_level({"classes": ["a", "b"], "labels": [[60, 20], [4, 16]]}) == 0.64
    assert compute_chance_level({"classes": ["a", "b", "c", "d"], "labels": [[1, 1, 1, 1]]}) == 0.25


@pytest.mark.parametrize(
    ("last", "mean", "said"),
    [(0.3, 0.3, True), (0.64, 0.6, True), (0.73, 0.73, True),
     (0.74, 0.74, False), (0.9, 0.6, False), (0.6, 0.9, False)],
)  # fmt: skip
def test_it_is_said_within_two_standard_errors(last, mean, said):
    assert (describe(last, mean) is not None) == said


def test_it_is_not_said_if_only_one_of_g_and_p_is_at_chance():
    assert describe(0.5, 0.5, accuracy(0.9, 0.9)) is None
    assert describe(0.9, 0.9, accuracy(0.5, 0.5)) is None
    both = describe(0.5, 0.5, accuracy(0.5, 0.5))
    assert both.startswith("no better than chance: G and P are within noise of 64.0 %")
    assert all(key in both for key in ("participation.rate", "training.lr", "training.momentum"))


def test_the_table_of_a_run_and_of_a_comparison_say_it(tmp_path):
    idle = [*SHORT, "-c", "training.epochs=0"]
    one = call("run", *idle, "--out", tmp_path / "one")
    assert "no better than chance: G and P are within noise" in one.stderr
    two = call("compare", "fedavg", "fedprox", *idle, "--out", tmp_path / "two")
    assert "FedAvg; FedProx: no better than chance" in " ".join(two.stderr.split())


def test_a_result_in_python_says_it():
    result = played("fedavg", rounds=0)
    assert "no better than chance: G and P are within noise" in repr(result)
    assert "no better than chance: G and P are within noise" in result._repr_html_()


def test_nothing_is_said_where_all_examples_have_the_same_class():
    start = {"classes": ["a"], "labels": [[5]], "test": [5]}
    assert describe_chance_level(played("fedavg", rounds=0).summary, start) is None


def test_a_run_that_learns_is_not_told_so():
    result = played("fedavg", rounds=12, participation=1.0, training=replace(QUICK, epochs=5))
    assert describe_chance_level(result.summary, get_start(result.events)) is None
    assert "chance" not in repr(result) + result._repr_html_()


# What nobody configured ------------------------------------------------------------------------


def test_digits_have_defaults_of_their_own_until_a_key_of_local_is_set():
    own = choose_default_training("digits")
    assert own != Training()
    assert read_config(None).training == own
    assert read_config(None, ["data.clients=5"]).training == own
    assert read_config(None, ["training.epochs=1"]).training == Training(epochs=1)
    assert read_config(None, ["data.name=fmnist"]).training == Training()
    assert hp.run("fedavg", hp.federate("digits"), rounds=0).plan.training == own


def test_own_data_with_the_name_of_a_known_set_have_the_usual_defaults():
    assert choose_default_training("digits", (3, 32, 32)) == Training()
    assert choose_default_training("mine") == Training()


def test_the_run_that_nobody_configured_leaves_chance_within_a_dozen_rounds():
    """Judged on validation examples, as the defaults were chosen."""
    federation = hp.federate("digits", validation_fraction=0.2)
    result = hp.run("fedavg", federation, rounds=12, participation=0.2, evaluate_every=4)
    assert result.G.chosen.validation > 0.3


def test_a_folder_keeps_the_values_that_the_run_had(tmp_path):
    call("run", *SHORT, "-c", "rounds=0", "--out", tmp_path / "run")
    kept = read_config(tmp_path / "run" / "config.toml").training
    assert kept == choose_default_training("digits")
