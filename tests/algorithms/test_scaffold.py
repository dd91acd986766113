"""SCAFFOLD: control variates of clients and server, absent clients, the server's rate, and traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.scaffold import Scaffold

PLAIN = replace(QUICK, momentum=0.0)
EQUAL = {"weights": "uniform", "participation": 1.0}


def control(result: hp.Result) -> hp.Tensors:
    return result._server.memory["control"]


def test_its_first_round_is_fedavg_with_plain_sgd():
    a, b = (played(x, rounds=1, training=PLAIN, **EQUAL) for x in ("scaffold", "fedavg"))
    assert same(model(a), model(b))
    assert not same(
        model(played("scaffold", rounds=2, training=PLAIN, **EQUAL)),
        model(played("fedavg", rounds=2, training=PLAIN, **EQUAL)),
    )


def test_the_servers_control_is_the_mean_of_the_clients_after_full_rounds():
    for rounds in (1, 2, 3):
        result = played("scaffold", rounds=rounds, **EQUAL)
        own = [memory(result, c)["control"] for c in result.plan.federation.clients]
        apart = control(result) - hp.mix(own, [1 / len(own)] * len(own))
        assert max(float(v.abs().max()) for v in apart.values()) < 1e-6


def test_absent_clients_count_in_the_mean_of_the_controls():
    result = played("scaffold", rounds=1, participation=0.5)
    own = [memory(result, c)["control"] for c in result.events[-3]["clients"]]
    assert len(own) == 3
    apart = control(result) - hp.mix(own, [1 / 6] * 3)
    assert max(float(v.abs().max()) for v in apart.values()) < 1e-6


def test_with_one_client_there_is_nothing_to_correct():
    @dataclass(frozen=True)
    class Watched(Scaffold):
        def local(self, client):
            c = client.received.below("control/")
            assert same(c, client.memory.get("control", c.zeros()))
            return super().local(client)

    one = digits(clients=1, examples=80)
    result = played(Watched(), one, rounds=5)
    assert same(control(result), memory(result, "0")["control"])
    assert same(model(result), model(played("fedavg", one, rounds=5, training=PLAIN)))


@pytest.mark.parametrize("how", [QUICK, replace(QUICK, epochs=3), replace(QUICK, steps=7)])
def test_the_control_is_the_mean_slope_of_the_real_steps_without_momentum(how):
    """K is the number of real steps, and momentum, where it is set, is not used."""
    result = played("scaffold", rounds=1, training=how, **EQUAL)
    alone = replace(how, momentum=0.0)
    start = result.plan.create_initial_server().model
    local = played(hp.Local(clients="all"), rounds=1, training=alone)
    for c in result.plan.federation.clients:
        kept = memory(result, c)
        steps = how.steps or how.epochs * max(1, len(result.plan.federation.train[c]) // how.batch)
        moved = memory(local, c)["net"] - start
        slope = moved / -(steps * how.lr)
        assert kept.keys() == {"control"}
        assert all(torch.allclose(v, slope[k], atol=1e-6) for k, v in kept["control"].items())


def test_the_control_is_the_mean_slope_at_the_rate_of_its_round():
    """With one client c and c_1 are equal, so its steps are those of plain SGD."""
    one, half = digits(clients=1, examples=80), {"schedule": "exponential", "decay_factor": 0.5}
    first, second = (
        played("scaffold", one, rounds=r, training=replace(QUICK, **half)) for r in (1, 2)
    )
    steps = len(one.train["0"]) // QUICK.batch
    slope = (model(first) - model(second)) / (steps * QUICK.lr / 2)
    assert all(torch.allclose(v, slope[k], atol=1e-5) for k, v in control(second).items())


def test_the_server_steps_by_its_rate():
    whole, half = (played(Scaffold(server_lr=lr), rounds=1, **EQUAL) for lr in (1.0, 0.5))
    start = whole.plan.create_initial_server().model
    expected = start + 0.5 * (model(whole) - start)
    assert all(torch.allclose(v, model(half)[k], atol=1e-6) for k, v in expected.items())


def test_running_statistics_have_no_control_and_are_averaged():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1, **EQUAL}
    a = played(Scaffold(server_lr=3.0), training=PLAIN, **how)
    b = played("fedavg", training=PLAIN, **how)
    assert not any("running" in k for k in control(a))
    assert same(model(a).only("*running*"), model(b).only("*running*"))
    assert len(model(a).only("*running*")) == 2


def test_twice_the_traffic_of_fedavg():
    a, b = (played(x).summary.bytes for x in ("scaffold", "fedavg"))
    assert a == {"up": 2 * b["up"], "down": 2 * b["down"]}


@pytest.mark.parametrize("how", [replace(QUICK, lr=0.0), replace(QUICK, epochs=0)])
def test_without_steps_nothing_moves(how):
    result = played("scaffold", training=how)
    assert same(model(result), result.plan.create_initial_server().model)
    assert float(control(result).square()) == 0
