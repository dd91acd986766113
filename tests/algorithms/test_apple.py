"""APPLE: core models go up, p stays; the personal model is the sum of all core models."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    digits,
    keep_order,
    memory,
    model,
    net_with_batch_norm,
    played,
    replies,
    same,
)
from heterophony.algorithms.apple import APPLE
from heterophony.algorithms.parts.mixing import choose_wanted_cores
from heterophony.core.randomness import seeded

WHOLE = {"participation": 1.0}


def shares(result: hp.Result, client: str) -> torch.Tensor:
    sizes = dict(result.plan.federation.sizes())
    own = sizes.pop(client)
    p = torch.tensor([float(own), *map(float, sizes.values())])
    return p / p.sum()


# An implementation of its own: the authors' rule in plain torch, for clients who all take part
def run_plain(result: hp.Result, lr_net: float, lr_coef: float, mu: float, factor: float = 1.0):
    """Their optimiser steps the own core model and p together, and begins anew in every round."""
    federation, how, net = result.plan.federation, result.plan.training, result.plan.template
    algorithm, rounds = result.plan.algorithm, result.summary.rounds
    data = [federation.data(c).train for c in federation.clients]
    examples = [d.batch(torch.arange(len(d))) for d in data]
    p0 = torch.tensor([float(len(d)) for d in data])
    p0 = p0 / p0.sum()
    cores = [dict(sorted(hp.weights(net).items())) for _ in data]
    ps = [p0.clone() for _ in data]
    for r in range(rounds):
        last = int(rounds * algorithm.until)
        shape = {"cosine": (cos(pi / last * r) + 1) / 2, "exponential": 0.001 ** (r / last)}
        coefficient = mu * shape[algorithm.fading] if r < last else 0.0
        sent, cores = cores, []
        for i, (x, y) in enumerate(examples):
            own = {k: v.clone().requires_grad_() for k, v in sent[i].items()}
            p = ps[i].clone().requires_grad_()
            groups = [{"params": own.values()}, {"params": [p], "lr": lr_coef}]
            optimiser = torch.optim.SGD(groups, lr=lr_net, momentum=how.momentum, fused=True)
            for xs, ys in zip(x.split(how.batch), y.split(how.batch), strict=True):
                models = [*sent[:i], own, *sent[i + 1 :]]
                whole = {k: sum(q * m[k] for q, m in zip(p, models, strict=True)) for k in own}
                loss = cross_entropy(functional_call(net, whole, (xs,)), ys)
                optimiser.zero_grad()
                (loss + ((p - p0) ** 2).sum() * coefficient).backward()
                for v in own.values():
                    v.grad *= factor
                optimiser.step()
            cores.append({k: v.detach() for k, v in own.items()})
            ps[i] = p.detach()
    return cores, ps


@pytest.mark.parametrize("fading", ["exponential", "cosine"])
@pytest.mark.parametrize("scaled", [False, True])
def test_it_is_the_authors_code_in_plain_torch(monkeypatch, fading, scaled):
    """Their defaults: rates 0.01 and 0.001, momentum 0.9, and twice the penalty of the paper."""
    keep_order(monkeypatch)
    federation, mu = digits(clients=3, examples=100, alpha=2.0), 0.1
    how = hp.Training(epochs=1, batch=16, lr=0.01, momentum=0.9, momentum_state="reset")
    apple = APPLE(weight_lr=0.001, mu=2 * mu, until=0.7, fading=fading, scale_lr=scaled)
    result = played(apple, federation, rounds=4, training=how, **WHOLE)
    cores, ps = run_plain(result, 0.01, 0.001, mu, 3 if scaled else 1)
    for i, c in enumerate(federation.clients):
        ours = result._server.memory[f"core/{c}"]
        assert all(torch.allclose(v, cores[i][k], atol=2e-6) for k, v in ours.items())
        theirs = torch.stack([ps[i][i], *ps[i][:i], *ps[i][i + 1 :]])  # ours has the own first
        assert torch.allclose(memory(result, c)["weights"]["p"], theirs, atol=2e-6)
        assert not torch.allclose(theirs, shares(result, c), atol=1e-4)


def test_its_core_models_are_those_of_plain_torch_to_the_bit(monkeypatch):
    """Two clients and fixed weights: then sums have one order."""
    keep_order(monkeypatch)
    federation = digits(clients=2, examples=100, alpha=2.0)
    how = replace(QUICK, momentum_state="reset")
    for factor, scaled in ((1, False), (2, True)):
        apple = APPLE(weight_lr=0.0, scale_lr=scaled, until=1.0)
        result = played(apple, federation, training=how, **WHOLE)
        cores, _ = run_plain(result, how.lr, 0.0, 0.0, factor)
        for c, core in zip(federation.clients, cores, strict=True):
            assert same(result._server.memory[f"core/{c}"], hp.Tensors(core))


def test_p_begins_as_the_shares_of_examples_and_stays_there_without_a_rate():
    result = played(APPLE(weight_lr=0.0, mu=5.0), rounds=2, **WHOLE)
    for c in result.plan.federation.clients:
        assert torch.equal(memory(result, c)["weights"]["p"], shares(result, c))


def test_a_strong_pull_holds_p_and_fades():
    free, held = (played(APPLE(weight_lr=0.01, mu=mu, until=1.0), **WHOLE) for mu in (0.0, 50.0))
    far = [(memory(r, "0")["weights"]["p"] - shares(r, "0")).norm() for r in (free, held)]
    assert far[1] < far[0]


def test_the_pull_falls_by_half_a_cosine_or_exponentially():
    client = type("At", (), {"rounds": 40})()

    def fading(t, **how):
        client.t = t
        return APPLE(until=0.5, **how).compute_fading(client)

    assert [round(fading(t), 6) for t in (0, 10, 20, 30)] == [1.0, 0.5, 0.0, 0.0]
    assert [round(fading(t, fading="exponential"), 6) for t in (0, 10, 20)] == [1.0, 0.031623, 0.0]
    assert APPLE(until=0.0).compute_fading(client) == 0.0


def test_the_personal_model_is_the_sum_of_the_newest_core_models():
    """Client 4 never took part: its core model is the initial one, for all the others."""
    result = played(APPLE(), participation=Turns([0, 1], [1, 2, 3, 5], [0, 5]))
    server, net = result._server, result.plan.template
    x = digits().data("0").test.batch(torch.arange(5))[0]
    for c in ("0", "4"):
        order = [c, *(o for o in server.clients if o != c)]
        cores = [server.memory.get(f"core/{o}", server.model) for o in order]
        assert ("core/4" in server.memory) is False
        p = memory(result, c)["weights"]["p"] if c == "0" else shares(result, c)
        mixed = hp.mix(cores, p.tolist())
        with torch.no_grad():
            want = functional_call(net, dict(mixed), (x,))
            assert torch.allclose(result.personal(c)(x), want, atol=1e-5)


def test_the_initial_model_is_kept_by_the_server_and_there_is_no_g():
    result = played(APPLE(), **WHOLE)
    assert same(model(result), result.plan.create_initial_server().model)
    assert result.G is None


def test_p_never_travels_and_every_core_model_that_exists_goes_down():
    result = played(APPLE(), digits(clients=3, examples=90), rounds=2, **WHOLE)
    size = 4 * sum(v.numel() for v in model(result).values())
    rounds = [e for e in result.events if e["event"] == "round"]
    assert [e["bytes_up"] for e in rounds] == [3 * size] * 2
    assert [e["bytes_down"] for e in rounds] == [3 * (size + 8), 3 * (3 * size + 8)]


def test_running_statistics_are_never_multiplied_by_p():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 2, **WHOLE}
    result = played(APPLE(), **how)
    server = replace(result._server, statistics=result.plan.buffer_names)
    sent = result.plan.algorithm.send(server, "0")
    assert any("running" in k for k in sent)
    assert not any("running" in k for k in sent if k.startswith("core/"))


def test_the_rate_of_p_follows_the_schedule():
    """In the first of three rounds, a warm-up of one round halves all rates."""
    still = replace(QUICK, lr=0.0)
    once = Turns([0], [1], [1])
    runs = [
        played(APPLE(weight_lr=lr), participation=once, training=replace(still, warmup=warmup))
        for lr, warmup in ((0.02, 0), (0.04, 1))
    ]
    p = [memory(r, "0")["weights"]["p"] for r in runs]
    assert torch.equal(*p)
    assert not torch.equal(p[0], shares(runs[0], "0"))


def test_the_momentum_of_p_is_kept_or_reset_like_that_of_the_net():
    kept, reset = (
        played(APPLE(), training=replace(QUICK, momentum=0.9, momentum_state=state), **WHOLE)
        for state in ("persist", "reset")
    )
    assert set(memory(kept, "0")["weights"]) == {"p", "momentum"}
    assert set(memory(reset, "0")["weights"]) == {"p"}
    assert not torch.equal(*(memory(r, "0")["weights"]["p"] for r in (kept, reset)))


# Limited downloads --------------------------------------------------------------------------
def five() -> hp.Federation:
    return digits(clients=5, examples=200)


def test_with_limited_downloads_a_client_receives_what_it_asked_for(monkeypatch):
    result, rounds = replies(monkeypatch, APPLE(downloads=2), five(), rounds=5, **WHOLE)
    size = 4 * sum(v.numel() for v in model(result).values())
    events = [e for e in result.events if e["event"] == "round"]
    asked, sizes = 8 * 2, 4 * 4  # two positions up, four sizes down
    assert [e["bytes_up"] for e in events] == [5 * (size + asked)] * 5
    assert [e["bytes_down"] for e in events] == [5 * (size + sizes)] + [5 * (3 * size + sizes)] * 4
    for i in range(5):  # four others: two rounds until each was received once
        wanted = [rounds[t][i].tensors["apple/wanted"].tolist() for t in range(5)]
        assert sorted(wanted[0] + wanted[1]) == [0, 1, 2, 3]
        assert all(len(set(w)) == 2 for w in wanted)


def test_what_is_not_received_is_used_as_it_was_received_last():
    """After the last round each client has the core models of several rounds; P is of their sum."""
    result = played(APPLE(downloads=1), five(), rounds=4, **WHOLE)
    plan, server, kept = result.plan, result._server, memory(result, "0")
    wanted = server.memory["wanted/0"]["apple/wanted"].tolist()
    sent = plan.algorithm.send(server, "0")
    others = [c for c in server.clients if c != "0"]
    assert {k.split("/")[1] for k in sent if k.startswith("core/")} == {str(i) for i in wanted}
    cores = [server.memory["core/0"]]
    for i, c in enumerate(others):
        old = kept.get(f"core/{i}", plan.create_initial_server().model)
        cores.append(server.memory[f"core/{c}"] if i in wanted else old)
    assert any(
        not same(a, server.memory[f"core/{c}"]) for a, c in zip(cores[1:], others, strict=True)
    )
    mixed = hp.mix(cores, kept["weights"]["p"].tolist())
    x = five().data("0").test.batch(torch.arange(4))[0]
    with torch.no_grad():
        want = functional_call(plan.template, dict(mixed), (x,))
        assert torch.allclose(result.personal("0")(x), want, atol=1e-5)


def test_models_of_large_weight_are_asked_for_more_often_the_longer_the_run_lasts():
    """In proportion to base ** |p|, with the base max(1.5, rounds · M / N)."""

    def count(t, p):
        found = [0] * 4
        for draw in range(200):
            client = type("Drawing", (), {"t": t, "memory": {f"core/{i}": 1 for i in range(4)}})()
            client.apart = lambda _, draw=draw: seeded("wanted", t, draw)
            (i,) = choose_wanted_cores(client, torch.tensor([9.0, *p]), 1)["apple/wanted"].tolist()
            found[i] += 1
        return found

    even, late = count(0, (0.0, -1.0, 0.0, 0.0)), count(199, (0.0, -1.0, 0.0, 0.0))
    assert 45 <= even[1] <= 90  # 1.5 of 4.5: a third of 200
    assert late[1] >= 175  # 40 of 43
