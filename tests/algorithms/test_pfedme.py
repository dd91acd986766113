"""pFedMe: the proximal inner steps, the moves of the local model and the server, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.pfedme import PFedMe
from heterophony.core.randomness import seeded


def test_without_pull_the_common_model_is_constant():
    result = played(PFedMe(lam=0.0))
    start = result.plan.create_initial_server().model
    assert same(model(result), start)
    client = result.events[-3]["clients"][0]
    assert not same(memory(result, client)["own"], start)


def test_without_a_step_of_the_server_g_is_constant():
    frozen = played(PFedMe(beta=0.0))
    assert same(model(frozen), frozen.plan.create_initial_server().model)
    assert len({tuple(e["G"]) for e in frozen.events if e["event"] == "evaluation"}) == 1


def test_by_default_the_server_is_not_frozen():
    assert PFedMe().beta == 1.0
    assert PFedMe().lam == 15.0
    result = played("pfedme")
    assert not same(model(result), result.plan.create_initial_server().model)


@pytest.mark.parametrize("lam", [15.0, 40.0])
def test_at_a_full_step_the_local_model_is_the_own_one(lam):
    """η λ = 1; beyond it, where the paper's step would overshoot, it is held there."""

    @dataclass(frozen=True)
    class Watched(PFedMe):
        def local(self, client):
            out = super().local(client)
            own = client.memory["own"]
            assert same(out, own.only(*out))
            return out

    result = played(Watched(lam=lam, local_lr=1 / 15, own_lr=0.01))
    assert result.summary.rounds == 3


def test_one_round_is_the_papers():
    """By hand: K steps on each batch, from where the last batch ended; then w follows."""
    one = digits(clients=1, examples=80)
    how = PFedMe(lam=3.0, inner_steps=4, own_lr=0.05, local_lr=0.1, beta=0.5)
    training = replace(QUICK, epochs=2, momentum=0.9)  # momentum is not the paper's: not used
    result = played(how, one, rounds=1, training=training)
    net, data = result.plan.model(), one.data("0").train
    start = result.plan.create_initial_server().model
    net.load_state_dict(start)
    w = start
    with seeded(0, "fit", 0, "0", "main"):
        for _ in range(2):
            order = torch.randperm(len(data))[: len(data) // 16 * 16]
            for at in order.split(16):
                x, y = data.batch(at)
                for _ in range(4):
                    loss = cross_entropy(net(x), y)
                    named = hp.params(net)
                    slopes = torch.autograd.grad(loss, named.values())
                    with torch.no_grad():
                        for (k, p), g in zip(named.items(), slopes, strict=True):
                            p -= 0.05 * (g + 3.0 * (p - w[k]))
                w = w - 0.1 * 3.0 * (w - hp.weights(net))
    own = memory(result, "0")["own"]
    assert all(torch.allclose(v, own[k], atol=1e-5) for k, v in hp.weights(net).items())
    expected = 0.5 * start + 0.5 * w
    assert all(torch.allclose(v, model(result)[k], atol=1e-5) for k, v in expected.items())


def test_p_is_the_own_model_that_was_trained_and_is_kept():
    result = played("pfedme", participation=1.0)
    rounds = [e for e in result.events if e["event"] == "round"]
    evaluations = [e for e in result.events if e["event"] == "evaluation"]
    for t, e in enumerate(rounds):
        assert [right for right, _ in e["P_local"]] == evaluations[t + 1]["P"]
    assert not same(memory(result, "0")["own"], model(result))


def test_clients_count_the_same_and_traffic_is_fedavgs():
    a = played("pfedme")
    assert same(model(a), model(played("pfedme", weights="uniform")))
    assert a.summary.bytes == played("fedavg").summary.bytes


def test_running_statistics_are_averaged_and_do_not_follow():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1}
    a, b = (played(PFedMe(beta=x), **how) for x in (0.0, 1.0))
    assert same(model(a).only("*running*"), model(b).only("*running*"))
    start = a.plan.create_initial_server().model
    assert not same(model(a).only("*running*"), start.only("*running*"))
    assert same(model(a).without("*running*"), start.without("*running*"))
