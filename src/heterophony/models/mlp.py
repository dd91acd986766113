"""MLP: the two-layer network of the FedReb testbed, with 100 hidden units."""

from __future__ import annotations

from math import prod

from torch import nn

from ..core.net import Net
from .layers import build_net


def mlp(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    linears = [nn.Linear(prod(shape), 100), nn.Linear(100, classes)]
    return build_net([nn.Flatten()], linears, head_depth)
