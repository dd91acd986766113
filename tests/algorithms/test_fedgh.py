"""FedGH: the server trains the head on mean features; heads of clients are neither sent nor kept."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, linear

from helpers.support import client_after, memory, model, played, same
from heterophony.algorithms.fedgh import FedGH
from heterophony.core.algorithm import Reply, Server
from heterophony.core.tensors import Tensors


def test_the_head_takes_a_step_on_the_mean_features():
    torch.manual_seed(0)
    head = Tensors({"head.0.weight": torch.randn(3, 4), "head.0.bias": torch.randn(3)})
    sent = [{"mean/0": torch.randn(4), "mean/2": torch.randn(4)}, {"mean/2": torch.randn(4)}]
    replies = [Reply(str(i), "train", Tensors(s), 9, 9) for i, s in enumerate(sent)]
    server = Server(0, {"0": 9, "1": 9}, head)
    after = FedGH(server_lr=0.5, server_batch=8).merge(server, replies)
    weight, bias = (head[f"head.0.{k}"].clone().requires_grad_() for k in ("weight", "bias"))
    z = torch.stack([sent[0]["mean/0"], sent[0]["mean/2"], sent[1]["mean/2"]])
    cross_entropy(linear(z, weight, bias), torch.tensor([0, 2, 2])).backward()
    assert torch.allclose(after.model["head.0.weight"], (weight - 0.5 * weight.grad).detach())
    assert torch.allclose(after.model["head.0.bias"], (bias - 0.5 * bias.grad).detach())


def test_without_steps_of_the_server_the_head_is_the_initial_one():
    result = played(FedGH(server_epochs=0))
    initial = result.plan.create_initial_server().model
    assert same(model(result), initial)
    assert set(initial) == {"head.0.weight", "head.0.bias"}


def test_clients_keep_no_head_and_send_no_parameter():
    result = played("fedgh")
    trained = [c for c in result.plan.federation.clients if memory(result, c)]
    assert all(set(memory(result, c)["net"]) == {"base.1.weight", "base.1.bias"} for c in trained)
    client = client_after(result, trained[0])
    sent = result.plan.algorithm.local(client)
    held = client.data.counts.nonzero().flatten().tolist()
    assert set(sent) == {f"mean/{c}" for c in held}
    z, labels = client.features(), client.data.train.labels
    assert all(torch.equal(sent[f"mean/{c}"], z[labels == c].mean(0)) for c in held)


def test_a_round_without_mean_features_changes_nothing():
    server = Server(0, {"0": 0}, Tensors({"head.0.weight": torch.ones(2, 2)}))
    assert FedGH().merge(server, [Reply("0", "train", Tensors(), 0, 1)]) is server
