"""pFedHN does what its paper says, as stated here.

The server has an embedding v_i of every client and a hypernetwork: an MLP of v_i, and on its output one linear layer for each tensor
of the model. Client i receives θ_i = h(v_i), trains it, and replies. With Δ_i = θ_i less what it trained, the gradient of hypernetwork
and embedding is the chain rule (∂θ_i / ∂φ)ᵀ Δ_i; the server steps along its mean over the round's clients by SGD with momentum, clipped at 50.

The authors' code has one client in a round, weight decay, and layers that begin at random, so that generated models begin with another
variance than the net's own; here the layers' weights begin at 0 and their biases as the initial model. A client that the server does not
know is sent the model of the mean embedding, and trains that; in the paper it learns an embedding alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import heterophony as hp
from helpers.support import client_after, digits, model, net_with_batch_norm, played, replies, same
from heterophony.algorithms.parts import hypernetworks
from heterophony.algorithms.pfedhn import PFedHN, get_embedding

SMALL = {"hidden": 5, "layers": 2, "embedding": 3}
ALL = {"participation": 1.0}


class Hypernetwork(nn.Module):
    """The same function as a module: its gradients come from torch alone."""

    def __init__(self, w: hp.Tensors, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.inner = nn.ModuleList(nn.Linear(*w[f"mlp.{i}.weight"].T.shape) for i in range(2))
        self.outer = nn.ModuleList(nn.Linear(*w[f"made/{k}/weight"].T.shape) for k in names)
        for i, layer in enumerate(self.inner):
            layer.load_state_dict({k: w[f"mlp.{i}.{k}"] for k in ("weight", "bias")})
        for name, layer in zip(names, self.outer, strict=True):
            layer.load_state_dict({k: w[f"made/{name}/{k}"] for k in ("weight", "bias")})

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        z = self.inner[1](self.inner[0](v).relu())
        return torch.cat([layer(z) for layer in self.outer])


def test_a_round_is_a_step_of_torchs_own_sgd(monkeypatch):
    """By `nn.Module`, `backward` and `torch.optim.SGD`: two rounds, the second with momentum."""
    how = PFedHN(**SMALL, server_lr=0.3, server_momentum=0.5)
    first = played(how, rounds=1, **ALL)
    result, rounds = replies(monkeypatch, how, rounds=2, **ALL)
    w, names = first._server.memory["hypernetwork"], sorted(first._server.model)
    net = Hypernetwork(w, names)
    vectors = {c: nn.Parameter(w[f"embedding/{c}"].clone()) for c in first._server.clients}
    optimiser = torch.optim.SGD([*net.parameters(), *vectors.values()], lr=0.3)
    loss = 0
    for r in rounds[1]:
        made = net(vectors[r.client])
        trained = torch.cat([r.tensors[k].flatten() for k in names])
        loss = loss + made @ (made.detach() - trained) / len(rounds[1])
    loss.backward()
    optimiser.step()
    speed, after = first._server.memory["momentum"], result._server.memory["hypernetwork"]
    for i, name in enumerate(names):
        expected = net.outer[i].weight - 0.3 * 0.5 * speed[f"made/{name}/weight"]
        assert torch.allclose(after[f"made/{name}/weight"], expected, atol=1e-5)
    for i, layer in enumerate(net.inner):
        expected = layer.weight - 0.3 * 0.5 * speed[f"mlp.{i}.weight"]
        assert torch.allclose(after[f"mlp.{i}.weight"], expected, atol=1e-5)
    for c, v in vectors.items():
        expected = v - 0.3 * 0.5 * speed[f"embedding/{c}"]
        assert torch.allclose(get_embedding(after, c), expected, atol=1e-5)
    assert any(not torch.equal(after[f"embedding/{c}"], w[f"embedding/{c}"]) for c in vectors)


def test_clients_have_models_of_their_own_from_the_second_round_on():
    result = played(PFedHN(), rounds=2, **ALL)
    how, server = result.plan.algorithm, result._server
    start = result.plan.create_initial_server()
    assert same(how.send(start, "0"), how.send(start, "1"))
    assert not same(how.send(server, "0"), how.send(server, "1"))


def test_a_gradient_larger_than_fifty_is_clipped(monkeypatch):
    monkeypatch.setattr(hypernetworks, "LARGEST_NORM", 1e-3)
    speed = played(PFedHN(**SMALL), rounds=1)._server.memory["momentum"]
    assert abs(float(speed.square().sqrt()) - 1e-3) < 1e-8


def test_running_statistics_are_averaged_and_not_made():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 2}
    result = played(PFedHN(**SMALL), **how)
    assert "base.1.running_mean" in model(result)
    assert not any("running" in k for k in result._server.memory["hypernetwork"])


def test_a_new_client_is_sent_the_model_of_the_mean_embedding():
    result = played(PFedHN(), replace(digits(), new=("0", "3")), rounds=2, **ALL)
    w = result._server.memory["hypernetwork"]
    assert "embedding/0" not in w
    middle = torch.stack([w[f"embedding/{c}"] for c in result._server.clients]).mean(0)
    expected = hypernetworks.make_model(w, middle, model(result))
    assert same(hp.weights(client_after(result, "0", kept={}).net), expected)
