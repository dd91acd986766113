"""Every algorithm on boards, over a real broker: the bits of the simulation, and every number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import heterophony as hp
from helpers.boards import compute_one_at_a_time, mosquitto, on_boards, simulated, small
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.models import get_model_builder
from heterophony.runs.events import Event

NAMES = sorted(set(ALGORITHM_CLASSES) - {"centralized"})  # which has no clients
SHORTER = {"fedbabu": {"algorithm.tune_epochs": 1}, "fedala": {"algorithm.passes": 2}}


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Iterator[dict[str, Enrolment]]:
    with mosquitto(tmp_path_factory.mktemp("broker"), "one", "two") as (_, known):
        yield known


def told(events: Sequence[Event]) -> list[Event]:
    """What happened, but for G, where and how long it was computed, and the digest of data on boards."""
    beside = ("G", "seconds", "work", "data_sha256", "device", "boards", "training")
    kept = [{k: v for k, v in e.items() if k not in beside} for e in events]
    for e in kept:
        if e["event"] == "evaluation":
            e["loss"] = {k: v for k, v in e["loss"].items() if k != "G"}
    return kept


def common(events: Sequence[Event]) -> list[list[int] | None]:
    return [e["G"] for e in events if e["event"] == "evaluation"]


@pytest.mark.parametrize("name", NAMES)
def test_boards_have_the_bits_of_a_simulation(name, known, tmp_path, monkeypatch):
    compute_one_at_a_time(monkeypatch)
    config = small(name, **SHORTER.get(name, {}))
    alone, here = simulated(config, tmp_path / "alone")
    result, there = on_boards(config, known, tmp_path / name)
    assert result.model_sha256 == alone.model_sha256
    assert told(there) == told(here)  # P counted, who took part, losses, bytes
    known = get_algorithm_class(name).common and not generic_needs_personal(name)
    assert common(there) == (common(here) if known else [None] * len(common(here)))


def test_boards_have_the_bits_of_a_simulation_with_adam_and_a_schedule(
    known, tmp_path, monkeypatch
):
    compute_one_at_a_time(monkeypatch)
    how = {"optimizer": "adam", "betas": [0.8, 0.9], "schedule": "exponential", "clip_norm": 1.0}
    config = small("fedper", **{f"local.{k}": v for k, v in how.items()})
    alone, here = simulated(config, tmp_path / "alone")
    result, there = on_boards(config, known, tmp_path / "adam")
    assert config.training.optimizer == "adam"
    assert result.model_sha256 == alone.model_sha256
    assert told(there) == told(here)


@cache
def generic_needs_personal(name: str) -> bool:
    """Does G need personal parameters, which a server of boards does not know?

    Then its answers differ between two nets that differ in those alone.
    """
    algorithm = get_algorithm_class(name)()
    net = algorithm.build(get_model_builder("mlp")((1, 8, 8), 10, algorithm.head_depth or 1)).eval()
    shared, x, answers = set(algorithm.shared(net, 0)), torch.rand(5, 1, 8, 8), []
    for value in (0.25, 0.5):
        for key, v in net.state_dict().items():
            if key not in shared and v.is_floating_point():
                v.copy_(value * torch.arange(v.numel()).view(v.shape))
        client = SimpleNamespace(net=net, shared=lambda: hp.state(net).only(*shared))
        answers.append(algorithm.generic(client, x))
    return not torch.equal(*answers)


@pytest.mark.parametrize("name", ["fedbabu", "fedper", "fedrep", "gpfl", "pfakd", "pfedpara"])
def test_these_have_no_generic_model_on_boards(name):
    assert generic_needs_personal(name)


@pytest.mark.parametrize("name", ["apfl", "ditto", "fedavg", "feddecomp", "fedreg", "fedrod"])
def test_these_have_a_generic_model_on_boards(name):
    assert not generic_needs_personal(name)
