"""APFL: the mixture of own and common model, its learned share, and its limits Local and FedAvg."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.apfl import APFL, mix_models

MOMENTUM = replace(QUICK, epochs=2, momentum=0.9, weight_decay=1e-3)
ALL = {"participation": 1.0, "training": MOMENTUM}


class WithDropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 20), nn.Dropout(), nn.ReLU(), nn.Linear(20, 10)
        )


def dropout() -> hp.Net:
    return hp.split(WithDropout(), 4)


NETS = pytest.mark.parametrize("net", ["mlp", net_with_batch_norm, dropout])


def personal(result: hp.Result) -> list[list[int]]:
    return [e["P"] for e in result.events if e["event"] == "evaluation"]


@NETS
def test_with_a_share_of_one_it_is_local(net):
    a, b = (played(x, model=net, **ALL) for x in (APFL(alpha=1.0, adaptive=False), "local"))
    for c in a.plan.federation.clients:
        own, alone = memory(a, c)["net"].below("own."), memory(b, c)["net"]
        assert same(own.only(*alone), alone)
    assert personal(a) == personal(b)


def test_with_a_share_of_zero_p_is_the_common_model():
    result = played(APFL(alpha=0.0, adaptive=False), **ALL)
    assert all(e["P"] == e["G"] for e in result.events if e["event"] == "evaluation")


@NETS
@pytest.mark.parametrize("algorithm", [APFL(), APFL(alpha=1.0), APFL(alpha=0.2, adaptive=False)])
def test_the_common_model_is_fedavgs_whatever_the_share(algorithm, net):
    how = {"model": net, "weights": "uniform", "training": MOMENTUM, "buffers": "average"}
    assert same(model(played(algorithm, **how)), model(played("fedavg", **how)))


def test_one_round_is_the_papers():
    """By hand: w steps, then v along α times the slope at the mixture; α once, from its first."""
    one = digits(clients=1, examples=80)
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    @dataclass(frozen=True)
    class Watched(APFL):
        def local(self, client):
            fit = client.fit

            def watched(loss, **rest):
                def seen(x, y):
                    steps.append((x, y))
                    return loss(x, y)

                fit(seen, **rest)

            client.fit = watched
            return super().local(client)

    how = replace(QUICK, lr=0.5, momentum=0.0, steps=3)
    result = played(Watched(alpha=0.3), one, rounds=1, training=how)
    net = result.plan.model()
    net.load_state_dict(result.plan.create_initial_server().model)
    w, v, alpha = hp.weights(net), hp.weights(net), 0.3

    def slope(at: hp.Tensors, x: torch.Tensor, y: torch.Tensor) -> hp.Tensors:
        live = at.map(lambda p: p.clone().requires_grad_())
        cross_entropy(functional_call(net, dict(live), (x,)), y).backward()
        return live.map(lambda p: p.grad)

    assert len(steps) == 6
    for i, (x, y) in enumerate(steps[::2]):
        assert torch.equal(x, steps[2 * i + 1][0])  # both models see the same mini-batch
        w = w - 0.5 * slope(w, x, y)
        mixed = alpha * v + (1 - alpha) * w
        g, apart = slope(mixed, x, y), v - w
        v = v - 0.5 * alpha * g
        if i == 0:
            alpha = min(1.0, max(0.0, alpha - 0.5 * float(g.dot(apart))))
    kept = memory(result, "0")
    assert alpha != 0.3
    assert kept["apfl"]["share"].item() == pytest.approx(alpha, abs=1e-6)
    own = kept["net"].below("own.")
    assert all(torch.allclose(t, own[k], atol=1e-5) for k, t in v.items())
    assert all(torch.allclose(t, model(result)[k], atol=1e-5) for k, t in w.items())


def test_the_share_is_learned_within_its_range_stays_and_is_recorded():
    wild = replace(QUICK, lr=0.3, momentum=0.0)
    result = played("apfl", training=wild, participation=1.0, rounds=4)
    shares = [memory(result, c)["apfl"]["share"].item() for c in result.plan.federation.clients]
    assert len(set(shares)) > 1
    assert all(0 <= s <= 1 for s in shares)
    last = [e for e in result.events if e["event"] == "round"][-1]["measures"]["alpha"]
    assert min(shares) <= last <= max(shares)
    assert not any("own" in k or "/" in k for k in model(result))


def test_the_own_model_is_not_overwritten_by_the_mixture():
    @dataclass(frozen=True)
    class Watched(APFL):
        def predict(self, client, x):
            before = hp.weights(client.net)
            out = super().predict(client, x)
            assert same(before, hp.weights(client.net))
            return out

        def local(self, client):
            now = hp.weights(client.net).only("own.*")
            assert same(now, client.memory.get("seen", now))
            out = super().local(client)
            client.memory["seen"] = hp.weights(client.net).only("own.*")
            return out

    assert played(Watched(), participation=1.0).summary.rounds == 3


def test_running_statistics_are_mixed_too_and_counters_are_not():
    half = torch.tensor(0.25)
    own = hp.Tensors({"running_mean": torch.tensor([4.0]), "count": torch.tensor(3)})
    common = hp.Tensors({"running_mean": torch.tensor([8.0]), "count": torch.tensor(9)})
    mixed = mix_models(half, own, common)
    assert mixed["running_mean"].item() == 7.0
    assert mixed["count"].item() == 3


def test_p_uses_the_new_common_model():
    """P is measured after the generic model arrived: by hand, from the share, own and common."""
    result = played("apfl", participation=1.0, model=net_with_batch_norm, buffers="average")
    net, last = result.plan.model().eval(), result.events[-2]
    for i, c in enumerate(result.plan.federation.clients):
        kept, test = memory(result, c), result.plan.federation.data(c).test
        own = kept["net"].below("own.").without("*tracked*")
        mixed = mix_models(kept["apfl"]["share"], own, model(result))
        x, y = test.batch(torch.arange(len(test)))
        with torch.no_grad():
            said = functional_call(net, dict(mixed), (x,)).argmax(1)
        assert int((said == y).sum()) == last["P"][i]


def test_clients_count_the_same_and_traffic_is_fedavgs():
    a = played("apfl")
    assert same(model(a), model(played("apfl", weights="uniform")))
    assert a.summary.bytes == played("fedavg").summary.bytes
