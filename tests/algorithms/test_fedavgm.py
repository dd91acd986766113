"""FedAvgM: heavy-ball momentum at the server; without momentum it is FedAvg, with FedAvg's traffic."""

from __future__ import annotations

from dataclasses import replace

import torch

import heterophony as hp
from helpers.support import QUICK, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedavgm import FedAvgM
from heterophony.core.algorithm import Reply, Server


def moved(server: Server, by: float) -> Server:
    reply = Reply("a", "train", server.model.map(lambda v: v + by), 1, 1)
    return FedAvgM(beta=0.5, server_lr=2.0).merge(server, [reply])


def test_without_momentum_it_is_fedavg():
    a, b = played(FedAvgM(beta=0.0)), played("fedavg")
    assert all(torch.allclose(v, model(b)[k], rtol=0, atol=1e-6) for k, v in model(a).items())


def test_it_is_a_heavy_ball_and_not_nesterovs():
    server = Server(0, {"a": 1}, hp.Tensors({"w": torch.zeros(1)}))
    server = moved(server, 1.0)
    assert server.memory["velocity"]["w"].item() == 1.0
    assert server.model["w"].item() == 2.0
    server = moved(server, 1.0)
    assert server.memory["velocity"]["w"].item() == 1.5
    assert server.model["w"].item() == 5.0


def test_without_moves_nothing_moves():
    result = played("fedavgm", training=replace(QUICK, lr=0.0))
    assert same(model(result), result.plan.create_initial_server().model)


def test_running_statistics_are_averaged_and_have_no_velocity():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1}
    a, b = played(FedAvgM(server_lr=50.0), **how), played("fedavg", **how)
    assert same(model(a).only("*running*"), model(b).only("*running*"))
    assert len(model(a).only("*running*")) == 2
    assert not any("running" in k for k in a._server.memory["velocity"])


def test_bytes_are_fedavgs():
    assert played("fedavgm").summary.bytes == played("fedavg").summary.bytes
