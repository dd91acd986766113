"""FedCP: a split that sums to one, a frozen generic head, and what of both heads is sent."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize, softmax

import heterophony as hp
from helpers.support import (
    QUICK,
    digits,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    watching,
    wire,
)
from heterophony.algorithms import fedcp
from heterophony.algorithms.fedcp import FedCP, compute_context, compute_policy
from heterophony.algorithms.parts.distillation import BANDWIDTHS, compute_mmd
from heterophony.algorithms.parts.layers import multiply_weights
from heterophony.core.randomness import seeded


def built(depth: int = 1) -> hp.Net:
    with seeded("built"):
        net = hp.Net(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.ReLU()),
            nn.Linear(7, 10) if depth == 1 else nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 10)),
        )
        return FedCP().build(net)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_the_shares_of_a_feature_sum_to_one_and_are_the_papers():
    net, z = built(), drawn(4, 7)
    context = compute_context(net)
    assert torch.allclose(context, normalize(net.own.weight.sum(0), dim=0))
    generic, personal = compute_policy(net, z, context)
    assert torch.allclose(generic + personal, torch.ones(4, 7))
    told = net.policy(z * context)
    want = softmax(torch.stack([told[:, :7], told[:, 7:]]), 0)
    assert torch.allclose(torch.stack([generic, personal]), want, atol=1e-6)


def test_the_context_of_a_deep_head_multiplies_its_layers():
    net = built(depth=2)
    assert torch.allclose(multiply_weights(list(net.own)), net.own[1].weight @ net.own[0].weight)
    assert compute_context(net).shape == (7,)


def test_with_both_heads_alike_and_no_bias_p_is_g():
    net, x = built(), drawn(5, 1, 8, 8)
    net.head.bias.data.zero_()
    net.own.load_state_dict(net.head.state_dict())
    split = fedcp.forward_split(net, net.base(x), compute_context(net))
    assert torch.allclose(split, net(x), atol=1e-6)


def test_mmd_is_zero_for_the_same_features_and_by_its_formula():
    a, b = drawn(6, 3), drawn(7, 3)[:6] + 1
    assert compute_mmd(a, a.clone()).abs() < 1e-6

    def kernel(x, y):
        squares = (x[:, None] - y[None]).square().sum(-1)
        return sum((squares / (-2 * w)).exp() for w in BANDWIDTHS)

    want = (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)).mean()
    assert torch.allclose(compute_mmd(a, b), want, atol=1e-6)


def test_the_generic_head_is_frozen_and_the_mean_of_both_is_sent():
    def check(client, fit, loss, **how):
        before = hp.weights(client.net)
        fit(loss, **how)
        after = hp.weights(client.net)
        assert same(before.only("head.*"), after.only("head.*"))
        for part in ("base.*", "own.*", "policy.*"):
            assert not same(before.only(part), after.only(part))

    result = played(watching(FedCP, check), digits(clients=1, examples=80), rounds=1)
    start, own = result.plan.create_initial_server().model, memory(result, "0")["net"]
    heads = 0.5 * (start.only("head.*").below("head.") + own.below("own."))
    assert same(model(result).below("head."), heads)


def test_the_loss_is_the_sum_of_heads_and_lam_times_mmd():
    def check(client, fit, loss, **how):
        fit(loss, **how)
        net, (x, y) = client.net, client.data.train.batch(torch.arange(6))
        base = client.received.only("base.*")
        z = net.base(x)
        received = torch.func.functional_call(net.base, dict(base.below("base.")), (x,))
        generic, own = compute_policy(net, z, contexts[client.id])
        out = cross_entropy(net.head(z * generic) + net.own(z * own), y)
        assert torch.allclose(loss(x, y), out + 3.0 * compute_mmd(z, received), atol=1e-5)

    contexts = {}

    class Kept(FedCP):
        def local(self, client):
            contexts[client.id] = compute_context(client.net).clone()
            return super().local(client)

    played(watching(Kept, check, lam=3.0), rounds=1)
    assert len(contexts) == 3


def test_without_lam_the_teacher_does_not_matter(monkeypatch):
    there = played(FedCP(lam=0.0), rounds=2)
    monkeypatch.setattr(fedcp, "compute_mmd", lambda *_: 1 / 0)
    assert identical(there, played(FedCP(lam=0.0), rounds=2))


def test_batch_norm_is_no_discrepancy_at_the_start_of_a_round():
    """The teacher normalises by the batch, as the student does."""
    seen = []

    def check(client, fit, loss, **how):
        client.net.train()
        x, _ = client.data.train.batch(torch.arange(8))
        teacher = fedcp.make_teacher(client.net)
        seen.append(torch.equal(client.net.base(x), teacher(x)))
        fit(loss, **how)

    played(watching(FedCP, check), model=net_with_batch_norm, rounds=2, training=QUICK)
    assert seen == [True] * 6


def test_what_travels_is_the_net_and_the_policy():
    policy = 2 * 192 * 192 + 2 * 192 + 4 * 192
    assert wire(FedCP()) == [(797_962 + policy, 797_962 + policy)] * 2
