"""GPFL: the conditional valve, embeddings, label shares and losses, and what travels and stays."""

from __future__ import annotations

from dataclasses import replace
from inspect import getclosurevars

import pytest
import torch
from torch.nn.functional import cross_entropy, layer_norm, normalize

import heterophony as hp
from helpers.support import (
    QUICK,
    counts,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    wire,
)
from helpers.support import watching as watching_fit
from heterophony.algorithms.gpfl import GPFL
from heterophony.algorithms.parts.layers import ConditionalValve
from heterophony.models.convnets import convnet


def watching(check, **settings) -> GPFL:
    """GPFL, calling ``check(client, what its loss knows)`` before and after each training."""

    def around(client, fit, loss, **how):
        known = getclosurevars(loss).nonlocals
        check(client, known, "before", how)
        fit(loss, **how)
        check(client, known, "after", how)

    return watching_fit(GPFL, around, **settings)


def test_the_valve_is_the_papers():
    d = 7
    valve = ConditionalValve(d)
    assert sum(p.numel() for p in valve.parameters()) == 2 * d * d + 6 * d
    z, c = torch.randn(4, d), torch.randn(d)
    gamma, beta = (
        layer_norm((part[0].weight @ c + part[0].bias).relu(), (d,))
        for part in (valve.gamma, valve.beta)
    )
    assert torch.allclose(valve(z, c), (z * (gamma + 1) + beta).relu(), atol=1e-6)


def test_what_travels_is_the_papers():
    shared = 796_032 + 74_880 + 1_920
    assert wire(GPFL()) == [(shared, shared)] * 2
    assert round(shared / 797_962, 4) == 1.0938
    net = GPFL().build(convnet((3, 32, 32), 10, 1))
    assert sum(p.numel() for p in net.valve.parameters()) == 2 * 192**2 + 6 * 192 == 74_880
    table = net.get_parameter("embed.weight")
    assert table.shape == (10, 192)
    assert abs(float(table.detach().std()) - 1) < 0.1  # N(0, 1)


def test_targets_do_not_move_while_embeddings_do():
    seen = []

    def check(client, known, when, how):
        if when == "after":
            received = client.received["embed.weight"]
            seen.append(torch.equal(known["e"], received))
            assert not torch.equal(known["table"], received)

    played(watching(check))
    assert seen == [True] * 9


def test_conditions_come_from_the_received_embeddings_from_the_first_round_on():
    seen = []

    def check(client, known, when, how):
        e, n = client.received["embed.weight"], client.data.counts
        assert torch.equal(known["everybody"], e.mean(0))
        assert torch.equal(known["own"], n / n.sum() @ e)  # the whole set, no batch dropped
        assert int(n.sum()) == len(client.data.train)
        seen.append(client.t)

    played(watching(check), rounds=2, participation=1.0)
    assert sorted(set(seen)) == [0, 1]


def test_with_all_classes_alike_the_own_condition_is_everybodys():
    seen = []

    def check(client, known, when, how):
        seen.append(torch.allclose(known["own"], known["everybody"], atol=1e-6))

    x = torch.rand(12, 5, generator=torch.Generator().manual_seed(0)).numpy()
    y = (torch.arange(12) % 3).numpy()
    played(watching(check), hp.federate([(x, y, x, y)]), rounds=1)
    assert seen == [True, True]


@pytest.mark.parametrize(("lam", "equal"), [(0.0, True), (0.1, False)])
def test_without_lambda_the_targets_do_not_matter(lam, equal):
    def spoil(client, known, when, how):
        known["e"].fill_(7.0)

    a, b = played(watching(spoil, lam=lam)), played(GPFL(lam=lam))
    assert same(model(a), model(b)) is equal


def test_the_loss_is_the_papers():
    def check(client, fit, loss, **how):
        net, known = client.net, getclosurevars(loss).nonlocals
        x, y = client.data.train.batch(torch.arange(6))
        z, e = net.base(x), client.received["embed.weight"]
        g = net.valve(z, known["everybody"])
        cosines = torch.stack([normalize(g) @ normalize(row, dim=0) for row in e], 1)
        distance = (g - e[y]).square().sum().sqrt()  # Frobenius
        own = cross_entropy(net.head(net.valve(z, known["own"])), y)
        told = own + cross_entropy(cosines, y) + 0.3 * distance
        assert torch.allclose(loss(x, y), told, rtol=1e-5)
        fit(loss, **how)

    played(watching_fit(GPFL, check, lam=0.3), rounds=1)


def test_mu_is_the_weight_decay_of_valve_and_embeddings_instead_of_the_common_one():
    seen = []

    def check(client, known, when, how):
        w = hp.weights(client.net)
        extra = how["pull"](w)
        assert same(extra, (0.25 - 0.125) * w.only("valve.*", "embed.*"))
        seen.append(len(extra))

    training = replace(QUICK, weight_decay=0.125)
    played(watching(check, mu=0.25), rounds=1, training=training)
    assert set(seen) == {9}


def test_with_one_participant_g_is_its_p():
    result = played(GPFL(), participation=hp.Uniform(count=1))
    for e, g, p in list(zip(rounds(result), counts(result, "G")[1:], counts(result, "P")[1:])):  # noqa: B905
        at = result.plan.federation.clients.index(e["clients"][0])
        assert g[at] == p[at]


def rounds(result: hp.Result) -> list[dict]:
    return [e for e in result.events if e["event"] == "round"]


def test_g_averages_heads_and_label_shares_and_uses_the_new_embeddings():
    result = played(GPFL(), rounds=2)
    server, federation = result._server, result.plan.federation
    chosen = rounds(result)[-1]["clients"]
    n = {c: federation.data(c).counts.double() for c in chosen}
    prior = sum(n.values()) / sum(v.sum() for v in n.values())  # w_k n_kc / n_k, added up
    assert torch.allclose(server.average["prior"].double(), prior, atol=1e-6)
    net = result.generic().net
    x, _ = federation.data("0").test.batch(torch.arange(5))
    with torch.no_grad():
        told = net.head(
            net.valve(net.base(x), server.average["prior"] @ server.model["embed.weight"])
        )
        assert torch.equal(result.generic()(x), told)


def test_p_uses_the_new_embeddings_too():
    result = played(GPFL(), rounds=2)
    for c in ("0", "5"):
        data = result.plan.federation.data(c)
        x, _ = data.test.batch(torch.arange(3))
        net = result.personal(c).net
        with torch.no_grad():
            own = data.counts / len(data.train) @ model(result)["embed.weight"]
            assert torch.equal(result.personal(c)(x), net.head(net.valve(net.base(x), own)))


def test_head_and_label_shares_stay_even_where_statistics_travel():
    how = {"model": net_with_batch_norm, "buffers": "average"}
    result = played(GPFL(), **how)
    assert not {k for k in model(result) if k == "prior" or k.startswith("head")}
    assert "base.1.running_mean" in model(result)


def test_stale_conditions_start_at_zero_and_are_then_the_clients_own():
    seen = []

    def check(client, known, when, how):
        if when == "before":
            before = client.memory.get("embed", hp.Tensors()).get("trained")
            own = torch.zeros(100) if before is None else before.mean(0)
            assert torch.equal(known["everybody"], own)
            seen.append(before is None)

    stale = played(watching(check, conditions="stale"), rounds=2, participation=1.0)
    assert sorted(seen) == [False] * 6 + [True] * 6
    assert not identical(stale, played(GPFL(), rounds=2, participation=1.0))
    assert "embed" not in memory(played(GPFL(), rounds=1, participation=1.0), "0")
