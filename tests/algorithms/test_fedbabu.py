"""FedBABU: a head that never trains in the federation, fine-tuning for P alone, and what travels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, counts, digits, memory, model, played, same, watching, wire
from heterophony.algorithms.fedbabu import FedBABU

MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=0.1)


def test_the_head_is_the_first_one_everywhere_and_always():
    def check(client, fit, loss, **how):
        fit(loss, **how)
        assert same(hp.weights(client.net).only("head.*"), first)

    first = hp.weights(played("fedbabu", rounds=0).plan.template).only("head.*")
    result = played(watching(FedBABU, check), training=MOMENTUM, rounds=4)
    assert same(result._server.average, first)
    for c in result.plan.federation.clients:
        assert same(memory(result, c).get("net", first), first)
    assert same(hp.weights(result.generic().net).only("head.*"), first)
    assert not any(k.startswith("head") for k in model(result))


def test_p_without_fine_tuning_is_g():
    result = played(FedBABU(tune_epochs=0, tune_every=1), rounds=4)
    assert counts(result, "P") == counts(result, "G")
    assert counts(result, "P")[0] != counts(result, "P")[-1]


@pytest.mark.parametrize("part", ["head", "full"])
def test_fine_tuning_leaves_the_federation_as_it_was(part):
    often = played(FedBABU(tune_every=1, tune_part=part), training=MOMENTUM)
    never = played(FedBABU(tune_every=99, tune_epochs=0), training=MOMENTUM)
    assert often.model_sha256 == never.model_sha256
    assert counts(often, "G") == counts(never, "G")
    for c in often.plan.federation.clients:
        assert set(memory(often, c)) <= {"net", "momentum/main"}


def test_p_is_measured_seldom_never_untuned_and_after_the_last_round():
    result = played(FedBABU(tune_every=2, tune_epochs=3), rounds=5)
    own = counts(result, "P")
    assert [p is not None for p in own] == [True, False, True, False, True, True]
    tuned = played(FedBABU(tune_every=1, tune_epochs=3), rounds=5)
    assert [p for p in own if p is not None] == [counts(tuned, "P")[t] for t in (0, 2, 4, 5)]
    assert all(e["P_local"] == [] for e in result.events if e["event"] == "round")
    assert result.summary.P_local is None


def test_fine_tuning_helps_where_classes_are_few():
    how = {"rounds": 4, "training": replace(QUICK, epochs=2), "participation": 1.0}
    result = played(FedBABU(), digits(alpha=0.1), **how)
    assert result.P.last > result.G.last


@pytest.mark.parametrize(("part", "still"), [("head", True), ("full", False)])
def test_fine_tuning_freezes_the_base_and_not_the_head(part, still):
    result = played(FedBABU(tune_part=part), training=MOMENTUM)
    own = hp.weights(result.personal("0").net)
    first = hp.weights(result.plan.template)
    assert same(own.only("base.*"), model(result)) is still
    assert not any(torch.equal(own[k], first[k]) for k in first.only("head.*"))


def test_the_copy_starts_from_the_first_head_and_a_new_optimiser_each_time():
    result = played("fedbabu", training=MOMENTUM)
    a, b = (hp.weights(result.personal("0").net) for _ in range(2))
    assert same(a, b)


@pytest.mark.parametrize(("depth", "shared"), [(1, 796_032), (2, 722_112)])
def test_only_the_base_travels(depth, shared):
    assert wire(FedBABU(tune_epochs=1), 1, depth) == [(shared, shared)]
