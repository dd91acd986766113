"""Per-FedAvg: the first-order and the Hessian-free step, adaptation for P, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.perfedavg import PerFedAvg
from heterophony.core.tensors import state

BETA = replace(QUICK, lr=0.05, momentum=0.0)


class WithDropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 20), nn.Dropout(), nn.ReLU(), nn.Linear(20, 10)
        )


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm, lambda: hp.split(WithDropout(), 4)])
def test_without_adaptation_first_order_is_sgd_on_the_second_batches(net):
    how = {"model": net, "weights": "uniform", "buffers": "average"}
    a = played(PerFedAvg(alpha=0.0, beta=0.05), **how)
    assert same(model(a), model(played("fedavg", training=BETA, **how)))


def test_its_rate_is_beta_not_the_clients_and_it_trains_once_a_round():
    seen: list[int] = []

    @dataclass(frozen=True)
    class Watched(PerFedAvg):
        def local(self, client):
            fit = client.fit

            def watched(loss, how, **rest):
                assert how.lr == 0.001
                assert how.momentum == 0

                def counted(x, y):
                    seen.append(len(y))
                    return loss(x, y)

                fit(counted, how=how, **rest)

            client.fit = watched
            before = len(seen)
            out = super().local(client)
            assert len(seen) - before == client.steps
            return out

    played(Watched())
    assert seen


def test_one_first_order_step_is_the_papers():
    one, how = digits(clients=1, examples=80), replace(QUICK, steps=1)

    @dataclass(frozen=True)
    class Kept(PerFedAvg):
        def local(self, client):
            x, y = next(client.draws("first"))
            before = hp.weights(client.net)
            net = client.net
            grads = torch.autograd.grad(cross_entropy(net(x), y), hp.params(net).values())
            first = hp.Tensors(dict(zip(hp.params(net), grads, strict=True)))
            client.memory["ahead"] = before - self.alpha * first
            return super().local(client)

    result = played(Kept(alpha=0.3, beta=0.05), one, rounds=1, training=how)
    ahead = memory(result, "0")["ahead"]

    # plain SGD from w' on the same second batch takes the same step
    @dataclass(frozen=True)
    class FromAhead(hp.Algorithm):
        def local(self, client):
            client.net.load_state_dict(ahead)
            return super().local(client)

    there = played(FromAhead(), one, rounds=1, training=replace(how, lr=0.05, momentum=0.0))
    moved = model(result) - result.plan.create_initial_server().model
    expected = model(there) - ahead
    assert all(torch.allclose(v, expected[k], atol=1e-6) for k, v in moved.items())


def small() -> hp.Net:
    return hp.Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()), nn.Linear(6, 10))


def test_hessian_free_differs_from_first_order_by_the_hessian_vector_product():
    one = digits(clients=1, examples=80)
    how = replace(QUICK, steps=1, batch=40)
    alpha, beta = 0.5, 0.5

    @dataclass(frozen=True)
    class Kept(PerFedAvg):
        """Remembers what the exact product needs."""

        def local(self, client):
            client.memory["third"] = hp.Tensors(
                dict(zip("xy", next(client.draws("third")), strict=True))
            )
            return super().local(client)

    ways = {
        order: played(
            Kept(order=order, alpha=alpha, beta=beta), one, rounds=1, training=how, model=small
        )
        for order in ("first", "hessian_free")
    }
    start = ways["first"].plan.create_initial_server().model
    g2 = (start - model(ways["first"])) / beta
    third = memory(ways["first"], "0")["third"]
    net = small()
    net.load_state_dict(start)
    named = hp.params(net)
    first = torch.autograd.grad(
        cross_entropy(net(third["x"]), third["y"]), named.values(), create_graph=True
    )
    along = sum((g * g2[k]).sum() for k, g in zip(named, first, strict=True))
    product = torch.autograd.grad(along, named.values())
    apart = model(ways["hessian_free"]) - model(ways["first"])
    scale = max(float(h.abs().max()) for h in product) * alpha * beta
    for k, h in zip(named, product, strict=True):
        assert float((apart[k] - beta * alpha * h).abs().max()) < 1e-3 * max(scale, 1.0)
        assert torch.allclose(apart[k], beta * alpha * h, rtol=0.05, atol=0.02 * scale)


@pytest.mark.parametrize("order", ["first", "hessian_free"])
def test_only_the_second_batches_change_running_statistics(order):
    """With β = 0 every batch is seen by the same weights, but α = 0 must be the same statistics."""
    seen: list[hp.Tensors] = []

    @dataclass(frozen=True)
    class Watched(PerFedAvg):
        def local(self, client):
            counted = client.steps
            before = int(client.net.get_buffer("base.1.num_batches_tracked"))
            out = super().local(client)
            after = int(client.net.get_buffer("base.1.num_batches_tracked"))
            assert after - before == counted
            seen.append(state(client.net).only("*running*"))
            return out

    how = {"model": net_with_batch_norm, "rounds": 1}
    for alpha in (0.0, 1e-9):
        played(Watched(order=order, alpha=alpha, beta=0.0), **how)
    half = len(seen) // 2
    for a, b in zip(seen[:half], seen[half:], strict=True):
        assert all(torch.allclose(v, b[k], rtol=1e-5) for k, v in a.items())


def test_using_it_leaves_the_common_model_alone_and_adapts_by_one_step_or_epoch():
    result = played(PerFedAvg(alpha=0.5, beta=0.05), rounds=2)
    seldom = played(PerFedAvg(alpha=0.5, beta=0.05), rounds=2, evaluate_every=2)
    assert same(model(result), model(seldom))
    taken: list[int] = []

    @dataclass(frozen=True)
    class Counted(PerFedAvg):
        def tune(self, client):
            before, received = state(client.net), client.net.base

            def count(*_):
                taken.append(1)

            hook = received.register_forward_hook(count)
            super().tune(client)
            hook.remove()
            assert not same(before, state(client.net))

    one = digits(clients=1, examples=80)
    played(Counted(alpha=0.5), one, rounds=0)
    assert len(taken) == 1
    taken.clear()
    played(Counted(alpha=0.5, adapt="epoch"), one, rounds=0)
    assert len(taken) == len(one.data("0").train) // 16


def test_without_adaptation_p_is_g():
    result = played(PerFedAvg(alpha=0.0, beta=0.05))
    assert all(e["P"] == e["G"] for e in result.events if e["event"] == "evaluation")


def test_clients_count_the_same():
    a = played(PerFedAvg(beta=0.05))
    assert same(model(a), model(played(PerFedAvg(beta=0.05), weights="uniform")))
    assert a.summary.bytes == played("fedavg").summary.bytes
