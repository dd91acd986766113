"""``engine.fast``: training without autograd and in groups, evaluation in blocks, with the same bits."""

from __future__ import annotations

import runpy
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import heterophony as hp
from helpers.support import digits, played
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.core import groups
from heterophony.core.accelerator import Compute, WorkerPlace
from heterophony.engines.child_processes import CONTEXT, start_fork_server
from heterophony.jobs import blocks
from heterophony.runs.events import Event

TIMES = ("seconds", "work", "training")  # what may differ in the events of two runs


def build_norm_net() -> hp.Net:
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3)
    )
    return hp.Net(base, nn.Sequential(nn.Linear(12, 4)))


def build_number_net() -> hp.Net:
    return hp.Net(nn.Sequential(nn.Linear(6, 9), nn.Tanh()), nn.Sequential(nn.Linear(9, 2)))


@cache
def make_images(side: int) -> hp.Federation:
    draw, y = np.random.default_rng(0), np.arange(60) % 4
    x = draw.integers(0, 256, (60, 1, side, side)).astype(np.uint8)
    return hp.federate((x, y), clients=4, partition=hp.Dirichlet(0.5, min_size=6))


@cache
def make_numbers() -> hp.Federation:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 6)).astype(np.float32)
    y = x[:, :2] + draw.normal(size=(60, 2)).astype(np.float32)
    return hp.federate((x, y), clients=4, partition=hp.IID(), task="regression")


MODELS: list[tuple[Any, Any]] = [
    ("mlp", lambda: make_images(8)),
    ("digitsnet", lambda: make_images(8)),
    ("convnet", lambda: make_images(16)),
    (build_norm_net, lambda: make_images(8)),
    (build_number_net, make_numbers),
]


def run_small(name: str, model: Any, federation: hp.Federation, **how: Any) -> list[Event]:
    """The events of a short run, without times."""
    training = hp.Training(epochs=1, batch=4, lr=0.05)
    settings = {"model": model, "rounds": 2, "participation": 1.0, "training": training, **how}
    result = hp.run(name, federation, progress=False, **settings)
    return [{k: v for k, v in e.items() if k not in TIMES} for e in result.events]


@pytest.mark.parametrize(("number", "name"), list(enumerate(sorted(ALGORITHM_CLASSES))))
def test_every_algorithm_has_the_same_bits_with_and_without(number, name):
    """Every algorithm is tried with one of these models, in turn."""
    numbers = 4 + (not get_algorithm_class(name).needs_classes)
    model, make = MODELS[number % numbers]
    fast, off = (run_small(name, model, make(), fast=fast) for fast in ("auto", "off"))
    assert fast == off


@pytest.mark.parametrize(("model", "make"), MODELS)
def test_groups_have_the_same_bits_in_pools_of_any_size(model, make):
    off = run_small("fedper", model, make(), fast="off")
    for workers in (2, 3):
        assert run_small("fedper", model, make(), engine="pool", workers=workers) == off


def test_a_net_of_one_unit_has_the_same_bits_with_and_without():
    """On some processors its products round differently without autograd: the self-test finds out."""

    def build() -> hp.Net:
        base = nn.Sequential(nn.Linear(6, 1), nn.ReLU())
        return hp.Net(base, nn.Sequential(nn.Linear(1, 2)))

    how = {"training": hp.Training(epochs=1, batch=1, lr=0.05)}
    fast, off = (run_small("fedavg", build, make_numbers(), fast=f, **how) for f in ("auto", "off"))
    assert fast == off


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedrep", "fedbn"])
def test_blocks_measure_what_clients_measure_alone(name, monkeypatch):
    blocked, right = list[int](), blocks.BlockEvaluation.run

    def run(self):
        done = right(self)
        blocked.append(len(done))
        return done

    monkeypatch.setattr(blocks.BlockEvaluation, "run", run)
    how = {"rounds": 2, "metrics": ["f1"], "model": "digitsnet"}
    events = [played(name, fast=fast, **how).events for fast in ("auto", "off")]
    found = [[e for e in part if e["event"] == "evaluation"] for part in events]
    assert found[0] == found[1]
    assert sum(blocked) > 0


@pytest.mark.parametrize("model", ["mlp", "digitsnet"])
def test_clients_with_few_examples_are_measured_in_stacks(model, monkeypatch):
    """Products of one to three rows round differently than those of a block."""
    sizes, right = set[int](), blocks.multiply_stacked

    def multiply(layer, size, x):
        sizes.add(size)
        return right(layer, size, x)

    monkeypatch.setattr(blocks, "multiply_stacked", multiply)
    monkeypatch.setattr(blocks.BlockEvaluation, "has_same_rows", lambda *_: False)
    fast, off = (run_small("fedavg", model, make_images(8), fast=fast) for fast in ("auto", "off"))
    assert fast == off
    assert sizes == {3, 4, 5}


def test_a_block_with_other_bits_is_not_used(monkeypatch):
    monkeypatch.setattr(blocks.BlockEvaluation, "has_same_rows", lambda *_: False)
    monkeypatch.setattr(blocks.BlockEvaluation, "has_same_stack", lambda *_: False)
    monkeypatch.setattr(blocks.BlockEvaluation, "measure_block", None)  # would fail
    assert played("fedavg", rounds=1).G.last == played("fedavg", rounds=1, fast="off").G.last


# Interruptions ------------------------------------------------------------------------------


def run_until_group(out: Path) -> None:
    """Run until the middle of a group of the second round, and die."""
    steps = groups.GroupRun.run_steps

    def run_steps(self, x, y, count, steps_to_run):
        if len(self.passes) == 6 and hasattr(groups, "has_run"):
            signal.raise_signal(signal.SIGKILL)
        steps(self, x, y, count, steps_to_run)
        if len(self.passes) == 6:
            groups.has_run = True

    groups.GroupRun.run_steps = run_steps
    played("fedavg", digits(), participation=1.0, out=out)


def test_a_run_killed_in_the_middle_of_a_group_resumes_with_the_same_bits(tmp_path):
    start_fork_server()
    child = CONTEXT.Process(target=run_until_group, args=(tmp_path / "run",))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    calm = played("fedavg", digits(), participation=1.0, fast="off")
    again = played("fedavg", digits(), participation=1.0, out=tmp_path / "run", resume=True)
    assert again.model_sha256 == calm.model_sha256
    rounds = [e["t"] for e in again.events if e["event"] == "round"]
    assert rounds == [0, 1, 2]


def test_workers_compute_as_the_run_says():
    for compute in (Compute(), Compute(fast=False)):
        assert WorkerPlace.choose(compute, 1, 2).prepare() == compute
        assert WorkerPlace.describe(compute).prepare() == compute


def test_how_training_runs_is_recorded():
    assert played("fedavg", rounds=1).events[0]["training"] == "groups"
    assert played("fedavg", rounds=1, fast="off").events[0]["training"] == "autograd"
    clipped = hp.Training(epochs=1, batch=16, clip_norm=1.0)
    assert played("fedavg", rounds=1, training=clipped).events[0]["training"] == "autograd"
    adam = hp.Training(epochs=1, batch=16, optimizer="adam")
    assert played("fedavg", rounds=1, training=adam).events[0]["training"] == "autograd"


GENERATED = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "generated" / "fast.py"))


def test_the_list_of_what_trains_without_autograd_has_only_algorithms_that_exist():
    listed = GENERATED["read_ways"]()
    assert listed
    assert set(listed) <= set(ALGORITHM_CLASSES), "run scripts/generate"


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "perfedavg", "moon"])
def test_the_list_of_what_trains_without_autograd_is_right(name):
    words = GENERATED["WAYS"][GENERATED["try_algorithm"](name)]
    assert GENERATED["read_ways"]()[name] == words
