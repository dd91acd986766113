"""FedAdam, and what FedYogi shares with it: the server's steps without bias correction, buffers, and traffic."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, model, net_with_batch_norm, played, same
from heterophony.algorithms import get_algorithm_class
from heterophony.algorithms.fedadam import FedAdam
from heterophony.core.algorithm import Reply, Server

both = pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
START = Server(0, {"a": 1}, hp.Tensors({"w": torch.zeros(1, dtype=torch.float64)}))


def step(how: hp.Algorithm, server: Server, by: float) -> Server:
    return how.merge(server, [Reply("a", "train", server.model.map(lambda v: v + by), 1, 1)])


def test_the_first_adam_step_is_the_papers():
    after = step(FedAdam(server_lr=0.1), START, 1.0)
    m, v = 0.1, 0.01 + 0.99e-6
    assert after.memory["m"]["w"].item() == pytest.approx(m, rel=1e-12)
    assert after.memory["v"]["w"].item() == pytest.approx(v, rel=1e-12)
    assert after.model["w"].item() == pytest.approx(0.1 * m / (sqrt(v) + 0.001), rel=1e-12)


def test_the_second_adam_step_has_no_bias_correction():
    after = step(FedAdam(), step(FedAdam(), START, 1.0), -2.0)
    v = 0.99 * (0.01 + 0.99e-6) + 0.01 * 4
    assert after.memory["m"]["w"].item() == pytest.approx(0.9 * 0.1 - 0.2)
    assert after.memory["v"]["w"].item() == pytest.approx(v)


@both
def test_without_moves_nothing_moves(name):
    result = played(name, training=replace(QUICK, lr=0.0))
    assert same(model(result), result.plan.create_initial_server().model)


@both
def test_running_statistics_are_averaged_and_never_stepped(name):
    """Through the optimiser a variance would become negative."""
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1}
    a, b = played(get_algorithm_class(name)(server_lr=50.0), **how), played("fedavg", **how)
    assert same(model(a).only("*running*"), model(b).only("*running*"))
    assert float(model(a)["base.1.running_var"].min()) > 0
    assert not any("running" in k for part in "mv" for k in a._server.memory[part])


@both
def test_it_resumes_with_running_statistics(name, tmp_path):
    """Which names are statistics is known again after a resume."""
    how = {"model": net_with_batch_norm, "buffers": "average"}
    out = tmp_path / "run"

    class StopError(Exception):
        pass

    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise StopError

    with pytest.raises(StopError):
        played(name, out=out, on_event=stop, **how)
    assert same(model(played(name, out=out, resume=True, **how)), model(played(name, **how)))


@both
def test_bytes_are_fedavgs(name):
    assert played(name).summary.bytes == played("fedavg").summary.bytes
