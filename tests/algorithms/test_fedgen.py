"""FedGen: a generator trained on the heads that were sent, and features that clients learn from."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

import heterophony as hp
from helpers.support import digits, model, played, same, watching
from heterophony.algorithms import fedgen
from heterophony.algorithms.fedgen import FedGen
from heterophony.algorithms.parts.distillation import (
    GeneratorTraining,
    compute_diversity_loss,
    generate_features,
    make_generator,
    train_generator,
)
from heterophony.core.randomness import seeded

LABELS = torch.tensor([0.5, 0.0, 0.5])


def heads() -> hp.Tensors:
    draw = torch.Generator().manual_seed(0)
    return hp.Tensors(
        {"head.weight": torch.randn(3, 6, generator=draw), "head.bias": torch.zeros(3)}
    )


def trained(steps: int, kept: hp.Tensors, w: hp.Tensors) -> tuple[hp.Tensors, hp.Tensors]:
    how = GeneratorTraining(steps, batch=16, noise=4, lr=0.01, diversity=0.0)
    return train_generator(w, heads(), LABELS, how, kept)


def test_the_generator_learns_the_labels_of_the_heads_and_goes_on_where_it_was():
    with seeded("made"):
        w = hp.weights(make_generator(3, 6, 4, 8))
        y, eps = torch.tensor([0, 2] * 50), torch.randn(100, 4)

    def loss(w):
        return cross_entropy(linear(generate_features(w, y, eps), *(heads()[k] for k in ("head.weight", "head.bias"))), y)  # fmt: skip

    with seeded("trained"):
        whole, _ = trained(60, hp.Tensors(), w)
    with seeded("trained"):
        half, adam = trained(30, hp.Tensors(), w)
        again, _ = trained(30, adam, half)
    assert same(whole, again)
    assert loss(whole) < 0.5 * loss(w)


def test_the_spread_of_features_is_rewarded():
    with seeded("spread"):
        eps, z = torch.randn(8, 4), torch.randn(8, 6)
    assert compute_diversity_loss(torch.ones(8, 6), eps) == 1
    assert compute_diversity_loss(z, eps) < 1


def test_clients_learn_from_features_of_labels_that_others_hold(monkeypatch):
    seen = []
    real = fedgen.generate_features

    def spy(w, y, eps):
        seen.append((y, eps))
        return real(w, y, eps)

    monkeypatch.setattr(fedgen, "generate_features", spy)
    result = played(FedGen(), rounds=2, participation=1.0)
    labels = result._server.memory["labels"]["fedgen/labels"]
    counts = sum(result.plan.federation.data(c).counts for c in result.plan.federation.clients)
    assert torch.allclose(labels, counts / counts.sum())
    drawn = torch.cat([y for y, _ in seen])
    assert set(drawn.tolist()) <= set(counts.nonzero().flatten().tolist())
    assert len(set(drawn.tolist())) > 5
    noise = torch.cat([eps.flatten() for _, eps in seen])
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1) < 0.05


def test_in_the_first_round_it_is_fedavg_and_the_generator_is_not_trained_by_clients():
    def check(client, fit, loss, **how):
        before = hp.weights(client.net)
        fit(loss, **how)
        assert same(hp.weights(client.net).only("generator.*"), before.only("generator.*"))

    a, b = (played(x, rounds=1) for x in (watching(FedGen, check), "fedavg"))
    assert same(model(a).without("generator.*"), model(b))
    start = a.plan.create_initial_server().model
    assert not same(model(a).only("generator.*"), start.only("generator.*"))


def test_the_loss_is_of_the_head_on_generated_features(monkeypatch):
    checked = []

    def check(client, fit, loss, **how):
        if "fedgen/labels" in client.received:
            net, (x, y) = client.net, client.data.train.batch(torch.arange(6))
            monkeypatch.setattr(fedgen, "draw_labels", lambda shares, n: torch.arange(n) % 10)
            monkeypatch.setattr(
                fedgen, "generate_features", lambda w, y, eps: torch.ones(len(y), 100)
            )
            made = cross_entropy(net.head(torch.ones(32, 100)), torch.arange(32) % 10)
            want = cross_entropy(net(x), y) + 0.5 * made
            checked.append(torch.allclose(loss(x, y), want, atol=1e-6))
            monkeypatch.undo()
        fit(loss, **how)

    played(watching(FedGen, check, alpha=0.5), rounds=2)
    assert checked == [True] * 3


def test_the_generator_goes_down_and_counts_go_up():
    result = played(FedGen(), digits(clients=3, examples=90), rounds=2, participation=1.0)
    net = 4 * sum(v.numel() for v in model(result).without("generator.*").values())
    made = 4 * sum(v.numel() for v in model(result).only("generator.*").values())
    events = [e for e in result.events if e["event"] == "round"]
    assert [e["bytes_up"] for e in events] == [3 * (net + 40)] * 2
    assert [e["bytes_down"] for e in events] == [3 * (net + made), 3 * (net + made + 40)]


def test_a_head_of_several_layers_is_refused():
    with pytest.raises(hp.HeterophonyError, match="a head of one linear layer"):
        played(FedGen(), head_depth=2)
