"""FedYogi: its second moment moves additively, up and down; test_fedadam.py has what it shares with FedAdam."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

import heterophony as hp
from heterophony.algorithms.fedyogi import FedYogi
from heterophony.core.algorithm import Reply, Server

START = Server(0, {"a": 1}, hp.Tensors({"w": torch.zeros(1, dtype=torch.float64)}))


def step(how: hp.Algorithm, server: Server, by: float) -> Server:
    return how.merge(server, [Reply("a", "train", server.model.map(lambda v: v + by), 1, 1)])


def test_yogi_moves_its_scale_additively_in_both_directions():
    after = step(FedYogi(), START, 1.0)
    v = 1e-6 + 0.01
    assert after.memory["v"]["w"].item() == pytest.approx(v)
    assert after.model["w"].item() == pytest.approx(0.1 * 0.1 / (sqrt(v) + 0.001))
    small = step(FedYogi(), after, 0.05)  # its square is below v
    assert small.memory["v"]["w"].item() == pytest.approx(v - 0.01 * 0.0025)
