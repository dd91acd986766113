"""FedEM does what its paper says, as stated here.

The server has M models and sends all of them. A client has weights π of them, equal at first. In a round it
computes for every training example the share of each model, q_m ∝ π_m p_m(y | x) (E step, in evaluation
mode), takes their mean as its new π (M step), and trains every model on the loss weighted by its shares. The
server averages each model over all replies, by the agreed weights. A client predicts with Σ π_m p_m; one
that has never taken part computes π once, from equal weights, without training.

The authors' code draws the mini-batches of each model apart; here all models see the same ones. Models begin
apart from each other (the first like FedAvg's), or EM could not tell them apart.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import client_after, digits, keep_order, memory, model, played, same
from heterophony.algorithms.fedem import FedEM, list_outputs

ALONE = {"rounds": 1, "participation": 1.0}


def compute_shares(net: hp.Net, data, weights: torch.Tensor) -> torch.Tensor:
    """Compute the shares by Bayes' rule, example by example."""
    net.eval()
    rows = []
    for i in range(len(data)):
        x, y = data.batch(torch.tensor([i]))
        with torch.no_grad():
            joint = [w * z.double().softmax(1)[0, y[0]] for w, z in zip(weights, list_outputs(net, x), strict=True)]  # fmt: skip
        rows.append(torch.stack(joint) / sum(joint))
    return torch.stack(rows)


def test_weights_are_the_mean_shares_of_the_received_models():
    federation, weights = digits(clients=1, examples=60), torch.full((3,), 1 / 3)
    for rounds in (1, 2):
        before = played(FedEM(), federation, rounds=rounds - 1, participation=1.0)
        after = played(FedEM(), federation, rounds=rounds, participation=1.0)
        net, data = client_after(before, kept={}).net, federation.data("0").train
        weights = compute_shares(net, data, weights).mean(0)
        assert torch.allclose(memory(after, "0")["fedem"]["weights"].double(), weights, atol=1e-5)
    assert float(weights.std()) > 0.01


def test_a_step_is_that_of_the_weighted_losses(monkeypatch):
    keep_order(monkeypatch)
    federation = digits(clients=1, examples=60)
    n = len(federation.data("0").train)
    how = hp.Training(epochs=1, batch=n, lr=0.1, momentum=0.0)
    result = played(FedEM(components=2), federation, training=how, **ALONE)
    before = played(FedEM(components=2), federation, training=how, rounds=0)
    net, data = client_after(before, kept={}).net, federation.data("0").train
    q = compute_shares(net, data, torch.full((2,), 0.5))
    x, y = data.batch(torch.arange(n))
    outputs = list_outputs(net.train(), x)
    loss = sum((q[:, m] * cross_entropy(z.double(), y, reduction="none")).sum() / n for m, z in enumerate(outputs))  # fmt: skip
    loss.backward()
    for name, p in net.named_parameters():
        assert torch.allclose(model(result)[name], (p - 0.1 * p.grad).detach(), atol=1e-6)


def test_models_begin_apart_and_the_first_as_fedavgs():
    start = played(FedEM(), rounds=0)._server.model
    first = played("fedavg", rounds=0)._server.model
    assert same(start.without("components.*"), first)
    other = [start.below(f"components.{m}.") for m in (0, 1)]
    assert not any(same(*pair) for pair in ((first, other[0]), (first, other[1]), tuple(other)))


@pytest.mark.parametrize("client", ["0", "3"])
def test_a_new_client_estimates_its_weights_and_trains_nothing(client):
    result = played(FedEM(), replace(digits(), new=("0", "3")), rounds=2)
    fresh = client_after(result, client, kept={})
    before = hp.state(fresh.net)
    result.plan.algorithm.adapt(fresh)
    shares = compute_shares(fresh.net, fresh.data.train, torch.full((3,), 1 / 3))
    assert torch.allclose(fresh.memory["fedem"]["weights"].double(), shares.mean(0), atol=1e-5)
    assert same(hp.state(fresh.net), before)


def test_the_prediction_is_the_weighted_mean_of_probabilities():
    result = played(FedEM(), **ALONE)
    client = client_after(result)
    x, _ = client.data.test.batch(torch.arange(8))
    client.net.eval()
    with torch.inference_mode():
        got = result.plan.algorithm.predict(client, x).exp()
        kept = memory(result, "0")["fedem"]["weights"]
        each = torch.stack([z.softmax(1) for z in list_outputs(client.net, x)], 2)
    assert torch.allclose(got, each @ kept, atol=1e-6)
