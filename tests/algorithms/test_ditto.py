"""Ditto: FedAvg's common model, own models pulled towards it, and what absent clients keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    counts,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    watching,
    wire,
)
from heterophony.algorithms.ditto import Ditto

MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("lam", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_the_common_model_is_fedavgs_for_every_pull(lam, net):
    how = {"training": replace(MOMENTUM, lr=0.02), "model": net}
    a, b = played(Ditto(lam=lam, own_epochs=1), **how), played("fedavg", **how)
    assert same(model(a), model(b))
    if net == "mlp":
        assert counts(a, "G") == counts(b, "G")


def test_without_pull_the_own_models_are_those_of_local_training():
    how = {"participation": 1.0, "training": replace(MOMENTUM, epochs=2)}
    a, b = played(Ditto(lam=0.0, own_epochs=2), **how), played("local", **how)
    for c in a.plan.federation.clients:
        assert same(memory(a, c)["net"].below("own."), memory(b, c)["net"])
    assert counts(a, "P") == counts(b, "P")


def test_who_does_not_take_part_keeps_its_model_and_broadcasts_do_not_touch_it():
    short = played(Ditto(), rounds=1, participation=Turns([0, 1]))
    long = played(Ditto(), rounds=2, participation=Turns([0, 1], [1, 2]))
    kept = memory(long, "0")["net"]
    assert same(memory(short, "0")["net"], kept)
    assert not same(memory(short, "1")["net"], memory(long, "1")["net"])
    now = hp.Tensors(long.personal("0").net.state_dict())
    assert same(now.only("own.*"), kept)
    assert not same(now.only("base.*"), kept.below("own.").only("base.*"))
    never = hp.Tensors(long.personal("5").net.state_dict()).below("own.")
    assert same(never, long.plan.create_initial_server().model)


def test_the_own_model_is_pulled_to_the_received_one_with_momentum():
    seen = []

    def check(client, fit, loss, pull=None, **how):
        if pull is not None:
            received, own = client.received, hp.weights(client.net).only("own.*")
            seen.append(same(pull(own).below("own."), 3.0 * (own.below("own.") - received)))
        fit(loss, pull=pull, **how)

    result = played(watching(Ditto, check, lam=3.0), rounds=2, participation=1.0)
    assert seen == [True] * 12
    names = set(memory(result, "0")["momentum/main"])
    assert {k for k in names if k.startswith("own.")} == {f"own.{k}" for k in model(result)}


def test_a_stronger_pull_ends_nearer():
    def far(lam: float) -> float:
        how = hp.Training(epochs=1, batch=16, lr=0.01)
        result = played(Ditto(lam=lam), rounds=1, participation=hp.Uniform(count=1), training=how)
        (client,) = result.events[2]["clients"]
        own = memory(result, client)["net"].below("own.")
        return float((own - result.plan.create_initial_server().model).square())

    assert far(10.0) < far(1.0) < far(0.0)


def test_g_and_p_are_two_lists_and_p_is_not_the_better_of_both():
    result = played(Ditto(own_epochs=0), rounds=4, participation=1.0)
    own, common = counts(result, "P"), counts(result, "G")
    assert own == [own[0]] * 5  # own models never trained: whatever G does, P stands still
    assert sum(common[-1]) > sum(own[-1])
    assert result.P.best < result.G.best


def test_p_is_the_own_model():
    result = played(Ditto(), rounds=2)
    for i, c in enumerate(result.plan.federation.clients):
        data, mine = result.plan.federation.data(c).test, result.personal(c)
        x, y = data.batch(torch.arange(len(data)))
        assert int((mine.net.own(x).argmax(1) == y).sum()) == counts(result, "P")[-1][i]


def test_traffic_is_fedavgs():
    assert wire(Ditto()) == [(797_962, 797_962)] * 2
