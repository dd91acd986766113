"""FedDyn: the clients' corrections, the server's state, the dynamic pull, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    memory,
    model,
    net_with_batch_norm,
    played,
    replies,
    same,
    watching,
    wire,
)
from heterophony.algorithms.feddyn import FedDyn
from heterophony.algorithms.fedprox import FedProx
from heterophony.core.algorithm import Reply, Server
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import mix

LONG = replace(QUICK, epochs=2, momentum=0.9)


def near(a: hp.Tensors, b: hp.Tensors, tolerance: float = 1e-6) -> bool:
    return all(bool(((v - b[k]).abs() <= tolerance).all()) for k, v in a.items())


def test_in_round_one_clients_train_as_in_fedprox(monkeypatch):
    how = {"rounds": 1, "training": LONG}
    _, a = replies(monkeypatch, FedDyn(alpha=0.3), **how)
    _, b = replies(monkeypatch, FedProx(mu=0.3), **how)
    assert all(same(x.tensors, y.tensors) for x, y in zip(a[0], b[0], strict=True))


def test_round_one_with_everybody_goes_twice_as_far_as_the_mean(monkeypatch):
    result, sent = replies(monkeypatch, FedDyn(), rounds=1, participation=1.0)
    mean = mix([r.tensors for r in sent[0]], [1 / len(sent[0])] * len(sent[0]))
    assert near(model(result), 2 * mean - result.plan.create_initial_server().model)


def test_the_servers_state_is_the_mean_of_the_clients(monkeypatch):
    result, sent = replies(monkeypatch, FedDyn(alpha=0.1), rounds=4, training=LONG)
    server, clients = result._server, result.plan.federation.clients
    zeros = server.model.zeros()
    g = [memory(result, c).get("g", zeros) for c in clients]
    assert near(server.memory["s"], mix(g, [1 / len(clients)] * len(clients)))
    # and in the form without division: mean of the participants plus mean of all corrections
    mean = mix([r.tensors for r in sent[-1]], [1 / len(sent[-1])] * len(sent[-1]))
    corrections = mix([-1 / 0.1 * x for x in g], [1 / len(clients)] * len(clients))
    assert near(server.model, mean + corrections, 1e-5)


def test_who_does_not_take_part_keeps_its_correction():
    short = played(FedDyn(), rounds=1, participation=Turns([0, 1]))
    long = played(FedDyn(), rounds=2, participation=Turns([0, 1], [1, 2]))
    assert same(memory(short, "0")["g"], memory(long, "0")["g"])
    assert not same(memory(short, "1")["g"], memory(long, "1")["g"])


def pulls(**settings) -> tuple[hp.Tensors, hp.Tensors, hp.Tensors]:
    """In round one, where g is 0: a direction, and the pull at it and at twice it."""
    out = []

    def check(client, fit, loss, pull, **how):
        received = hp.weights(client.net)
        away = received.map(torch.ones_like)
        out.append((away, pull(received + away), pull(received + 2 * away)))
        fit(loss, pull=pull, **how)

    played(watching(FedDyn, check, **settings), rounds=1)
    return out[0]


def test_the_norm_is_squared_so_the_pull_grows_with_the_distance():
    away, once, twice = pulls(alpha=0.5)
    assert near(once, 0.5 * away)
    assert near(twice, 1.0 * away)


def test_the_plain_norm_is_an_option_and_pulls_equally_from_everywhere():
    _, once, twice = pulls(alpha=0.5, norm="plain")
    assert near(once, twice)
    assert float(once.square().sqrt()) == pytest.approx(0.25, rel=1e-4)  # alpha / 2
    still = played(FedDyn(norm="plain"), rounds=1, training=replace(QUICK, lr=0.0))
    assert same(
        model(still), still.plan.create_initial_server().model
    )  # at distance 0 it does not divide by it


def test_the_pull_has_the_correction_in_it():
    seen = []

    def check(client, fit, loss, pull, **how):
        g = client.memory.get("g")
        if g is not None:
            seen.append(same(pull(hp.weights(client.net)), -1 * g))
        fit(loss, pull=pull, **how)

    played(watching(FedDyn, check), rounds=2, participation=1.0)
    assert seen == [True] * 6


def test_alpha_zero_is_refused():
    with pytest.raises(ConfigError, match="alpha: must be above 0"):
        FedDyn(alpha=0.0)


def test_a_tiny_alpha_is_not_fedavg(monkeypatch):
    how = {"rounds": 1, "participation": 1.0, "weights": "uniform"}
    result, a = replies(monkeypatch, FedDyn(alpha=1e-9), **how)
    average, b = replies(monkeypatch, "fedavg", **how)
    assert all(near(x.tensors, y.tensors) for x, y in zip(a[0], b[0], strict=True))
    start = result.plan.create_initial_server().model
    assert near(model(result) - start, 2 * (model(average) - start), 1e-5)
    assert not near(model(result), model(average), 1e-3)


def test_the_server_counts_clients_not_examples_and_divides_by_all_of_them():
    def w(v: float) -> hp.Tensors:
        return hp.Tensors({"base.w": torch.tensor([v])})

    server = Server(3, {"a": 10, "b": 90, "c": 1, "d": 1}, w(1.0), {"s": w(0.5)})
    said = [Reply("a", "train", w(2.0), 10, 10), Reply("b", "train", w(4.0), 90, 90)]
    after = FedDyn(alpha=0.1).merge(server, said)
    s = 0.5 - 0.1 / 4 * (1.0 + 3.0)
    assert float(after.memory["s"]["base.w"]) == pytest.approx(s)
    assert float(after.model["base.w"]) == pytest.approx(3.0 - s / 0.1)


def test_alpha_may_be_scaled_by_the_size_of_the_client():
    result = played(FedDyn(alpha_scaled=True), rounds=1)
    server, sizes = result._server, result.plan.federation.sizes()
    usual = sum(sizes.values()) / len(sizes)
    for c in sizes:
        sent = result.plan.algorithm.send(server, c)["feddyn/usual"]
        assert float(sent) == pytest.approx(usual)
    strengths = {}

    def check(client, fit, loss, pull, **how):
        received = hp.weights(client.net)
        strengths[client.id] = float(
            pull(received + received.map(torch.ones_like))["head.0.bias"][0]
        )
        fit(loss, pull=pull, **how)

    played(watching(FedDyn, check, alpha=0.5, alpha_scaled=True), rounds=1, participation=1.0)
    assert strengths == {c: pytest.approx(0.5 * usual / n) for c, n in sizes.items()}


def test_gradients_may_be_clipped():
    how = hp.Training(epochs=0, steps=1, batch=16, lr=1.0, momentum=0.0)
    start = played(FedDyn(), rounds=0).plan.create_initial_server().model
    for clip, longest in ((1e-3, 1e-3), (None, 1e9)):
        moved = (
            model(
                played(FedDyn(clip=clip), rounds=1, participation=hp.Uniform(count=1), training=how)
            )
            - start
        )
        length = float(moved.square().sqrt())
        assert length <= longest * (1 + 1 / 6) + 1e-6  # the move and its part in -s / alpha
        assert length > 5e-4
    free, loose = (
        model(played(FedDyn(clip=c), rounds=1, participation=hp.Uniform(count=1), training=how))
        for c in (None, 1e6)
    )
    assert near(free, loose, 1e-5)


def test_running_statistics_are_averaged_and_never_corrected(monkeypatch):
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 3}
    result, sent = replies(monkeypatch, FedDyn(), **how)
    last = mix([r.tensors for r in sent[-1]], [1 / 3] * 3)
    names = [k for k in model(result) if "running" in k]
    assert len(names) == 2
    assert all(torch.equal(model(result)[k], last[k]) for k in names)
    assert not any("running" in k for k in result._server.memory["s"])


def test_traffic_is_fedavgs():
    assert wire(FedDyn()) == [(797_962, 797_962)] * 2
