"""FedAS does what its paper says, as stated here.

Heads are personal. A client that has trained before first aligns the base that it receives: it computes the
mean features of its classes with the base that it trained last, and trains the received one for an epoch of
plain SGD on the squared distance of features to the mean of their class (mean over width and examples of a
class, summed over the classes of the mini-batch). Then it trains as in FedPer. After that it adds up the
squared gradients of its mini-batches, in evaluation mode over base and head: the trace of its Fisher
information, by which the server weighs its base. P is measured on the newest base, aligned the same way.

The authors' code aligns the server's model in place, so that each client's alignment reaches the next one,
and aligns first-time clients with their untrained net. Both are left out here on purpose.
"""

from __future__ import annotations

import torch

import heterophony as hp
from helpers.support import client_after, digits, memory, model, played, replies, same
from heterophony.algorithms.fedas import FedAS, compute_class_means, compute_fisher_trace

ALL = {"participation": 1.0}


def test_replies_count_by_their_fisher_trace(monkeypatch):
    result, ((*sent,),) = replies(monkeypatch, FedAS(), rounds=1, **ALL)
    traces = torch.stack([r.tensors["fedas/fisher"] for r in sent]).double()
    assert float(traces.std() / traces.mean()) > 0.1
    for name, v in model(result).items():
        each = torch.stack([r.tensors[name].double() for r in sent], -1)
        assert torch.allclose(v.double(), each @ traces / traces.sum(), atol=1e-6)


def test_the_trace_is_the_sum_of_squared_gradients_of_batches():
    client = client_after(played(FedAS(), rounds=1, **ALL))
    net, data, total = client.net.eval(), client.data.train, 0.0
    for at in torch.arange(len(data)).split(client.training.batch):
        net.zero_grad()
        x, y = data.batch(at)
        (-net(x).log_softmax(1)[torch.arange(len(y)), y]).mean().backward()
        total += sum(float(p.grad.double().square().sum()) for p in net.parameters())
    assert abs(float(compute_fisher_trace(client)) / total - 1) < 1e-5


def test_without_any_gradient_all_count_alike():
    how = FedAS()
    server = played(how, rounds=0)._server
    sent = hp.Tensors({"fedas/fisher": torch.tensor(0.0)})
    two = [
        hp.Reply(c, "train", sent | {k: v + i for k, v in server.model.items()}, 10, 10.0 * (i + 1))
        for i, c in enumerate("ab")
    ]
    after = how.merge(server, two).model
    assert all(torch.allclose(after[k], v + 0.5, atol=1e-6) for k, v in server.model.items())


def test_the_alignment_leads_to_the_class_means_of_the_own_base():
    result = played(FedAS(align_lr=0.05, align_epochs=5), digits(clients=2), rounds=2, **ALL)
    client = client_after(result)
    means = compute_class_means(client, memory(result, "0")["base"])

    def distance() -> float:
        z = client.features()
        return float((z - means[client.data.train.labels]).square().mean())

    before, head = distance(), hp.weights(client.net.head)
    result.plan.algorithm.adapt(client)
    assert distance() < 0.9 * before
    assert same(hp.weights(client.net.head), head)


def test_class_means_are_those_of_the_kept_base():
    result = played(FedAS(), digits(clients=2), rounds=1, **ALL)
    client = client_after(result)
    kept = memory(result, "0")["base"]
    means = compute_class_means(client, kept)
    client.net.base.load_state_dict(kept)
    z, labels = client.features(), client.data.train.labels
    for c in labels.unique():
        assert torch.allclose(means[c], z[labels == c].mean(0), atol=1e-6)
