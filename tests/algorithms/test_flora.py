"""FLoRA: the merged net is the exact mean of the clients' updates, whatever their ranks."""

from __future__ import annotations

import torch
from torch import nn

import heterophony as hp
from heterophony.algorithms.flora import A, B, FLoRA
from heterophony.core.net import copy_module
from heterophony.core.tensors import load_into_net

HOW = hp.Training(steps=2, batch=8, lr=0.1)


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))


def run(algorithm: FLoRA, clients: int = 3, **how):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = how.pop("model", None) or make_net()
    federation = hp.federate("digits", clients=clients)
    how = {"rounds": 1, "training": HOW, "participation": 1.0, "progress": False, **how}
    return hp.run(algorithm, federation, model=net, engine="serial", **how)


def test_one_client_has_the_net_that_plain_torch_merges():
    """The first round of one client: LoRA from the drawn A, then W + s B A."""
    seen = {}

    class Watched(FLoRA):
        def merge(self, server, replies):
            seen["before"], seen["reply"] = server.model, replies[0].tensors
            return super().merge(server, replies)

    result = run(Watched(rank=2, alpha=4.0), clients=1)
    weight = "base.1.update"
    a, b = seen["reply"][A + weight], seen["reply"][B + weight]
    assert (a.shape, b.shape) == ((2, 64), (6, 2))
    net = copy_module(result.plan.template).eval()
    load_into_net(net, result._server.model)
    assert torch.equal(net.base[1].update, b @ a)
    assert not seen["before"][weight].any()
    x = torch.rand(5, 1, 8, 8)
    plain = result.generic(merge=True)
    assert torch.equal(plain(x), net(x))
    assert not net.base[1].lora_B.any()  # nothing is left of the client's adapter


def test_ranks_are_halved_from_client_to_client():
    ranks = {}

    class Watched(FLoRA):
        def merge(self, server, replies):
            name = next(k for k in replies[0].tensors if k.startswith(A))
            for r in replies:
                ranks[r.client] = int(r.tensors[name].flatten(1).any(1).sum())
                assert len(r.tensors[name]) == 8
            return super().merge(server, replies)

    run(Watched(halvings=2), clients=4)
    assert ranks == {"0": 8, "1": 4, "2": 2, "3": 8}
