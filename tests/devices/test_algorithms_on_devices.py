"""Every algorithm on devices, over a real broker: the bits of the simulation, and every number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from helpers.brokers import mosquitto
from helpers.devices_here import on_devices, one_at_a_time, simulated, small
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.devices.broker.enrolment import Enrolment
from heterophony.run.events import Event

NAMES = sorted(set(ALGORITHM_CLASSES) - {"centralized"})  # which has no clients
SHORTER = {"fedbabu": {"algorithm.tune_epochs": 1}, "fedala": {"algorithm.passes": 2}}
# there G would take an average of what stays
APART = {"fedbabu", "fedper", "fedrep", "gpfl", "pfakd", "pfedpara"}


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Iterator[dict[str, Enrolment]]:
    with mosquitto(tmp_path_factory.mktemp("broker"), "one", "two") as (_, known):
        yield known


def told(events: Sequence[Event]) -> list[Event]:
    """What happened, but for G, how long it took, and a digest of data that only devices have."""
    beside = ("G", "seconds", "work", "data_sha256")
    return [{k: v for k, v in e.items() if k not in beside} for e in events]


def common(events: Sequence[Event]) -> list[list[int] | None]:
    return [e["G"] for e in events if e["event"] == "evaluation"]


@pytest.mark.parametrize("name", NAMES)
def test_devices_have_the_bits_of_a_simulation(name, known, tmp_path, monkeypatch):
    one_at_a_time(monkeypatch)
    config = small(name, **SHORTER.get(name, {}))
    alone, here = simulated(config, tmp_path / "alone")
    result, there = on_devices(config, known, tmp_path / name)
    assert result.model_sha256 == alone.model_sha256
    assert told(there) == told(here)  # P counted, who took part, losses, bytes
    untold = name in APART or not get_algorithm_class(name).common
    assert common(there) == ([None] * len(common(here)) if untold else common(here))
