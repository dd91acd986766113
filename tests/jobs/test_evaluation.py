"""Evaluation: the generic model is built only where it is not the client's own."""

from __future__ import annotations

import pytest

import heterophony as hp
from helpers.support import digits, identical, net_with_batch_norm, played
from heterophony.jobs import evaluation

HELD_OUT = hp.federate(
    (digits().x.numpy().transpose(0, 2, 3, 1), digits().y.numpy()),
    clients=4,
    partition=hp.IID(),
    validation_fraction=0.2,
)
CASES = {
    "fedavg": {},
    "fedprox": {"model": "digitsnet"},
    "fedper": {},
    "fedbabu": {},
    "scaffold": {"federation": HELD_OUT},
    "fedavgm": {"model": net_with_batch_norm},
    "fedadam": {"model": net_with_batch_norm, "buffers": "average"},
}


@pytest.mark.parametrize("name", CASES)
def test_g_is_the_same_whether_or_not_the_generic_model_is_built(name, monkeypatch):
    short = played(name, **CASES[name])
    monkeypatch.setattr(evaluation, "is_generic_model", lambda *_: False)
    assert identical(short, played(name, **CASES[name]))


def count_builds(monkeypatch, name: str, **how) -> int:
    built, build = list[str](), evaluation.build_generic_model

    def record(plan, job, *rest):
        built.append(job.client)
        return build(plan, job, *rest)

    monkeypatch.setattr(evaluation, "build_generic_model", record)
    played(name, **how)
    return len(built)


def test_where_all_clients_have_one_model_it_is_not_built_twice(monkeypatch):
    assert count_builds(monkeypatch, "fedavg") == 0


def test_where_clients_have_their_own_parameters_it_is(monkeypatch):
    assert (
        count_builds(monkeypatch, "fedper", participation=1.0) == 18
    )  # not before the first round


def test_where_the_algorithm_predicts_in_its_own_way_it_always_is(monkeypatch):
    assert count_builds(monkeypatch, "pfedgate") == 24
