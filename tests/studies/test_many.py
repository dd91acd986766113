"""Several runs: when they run side by side on one core each, and that this changes no bit."""

from __future__ import annotations

import json

import pytest

from helpers.commands import call
from heterophony.studies.compare import build_comparison, create_comparison
from heterophony.studies.many import is_faster_side_by_side
from heterophony.studies.spec import load_data_of_specs

SMALL = ("rounds=1", "data.clients=3", "training.steps=2", "model.name=mlp")


@pytest.fixture
def make_runs(tmp_path):
    def make(*settings: str):
        specs = build_comparison(["fedavg", "fedper"], [0], None, [*SMALL, *settings])
        return create_comparison(tmp_path / "all", load_data_of_specs(specs))

    return make


def test_runs_that_occupy_all_cores_and_train_in_groups_run_side_by_side(make_runs):
    assert is_faster_side_by_side(make_runs(), 2)


@pytest.mark.parametrize("width", [1, 3])
def test_runs_on_one_core_or_fewer_runs_than_cores_do_not(make_runs, width):
    assert not is_faster_side_by_side(make_runs(), width)


def test_runs_whose_clients_train_one_by_one_do_not(make_runs):
    assert not is_faster_side_by_side(make_runs("training.optimizer=adam"), 2)


def test_finished_runs_do_not_count(make_runs):
    runs = make_runs()
    next(iter(runs)).append_event({"event": "end"})
    assert not is_faster_side_by_side(runs, 2)


def test_a_comparison_side_by_side_has_the_bits_of_one_run_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    for engine, name in (("pool", "side by side"), ("serial", "one by one")):
        words = [w for s in (*SMALL, f"engine.name={engine}") for w in ("-c", s)]
        call("compare", "fedavg", "fedper", *words, "--workers", "2", "--out", name)
        found[name] = {
            path.parent.name: json.loads(path.read_text())["model_sha256"]
            for path in sorted((tmp_path / name).glob("*/result.json"))
        }
    assert len(found["one by one"]) == 2
    assert found["side by side"] == found["one by one"]
