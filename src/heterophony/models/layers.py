"""Build a net from feature layers and linear layers, split into base and head."""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net


def build_net(features: list[nn.Module], linears: list[nn.Linear], head_depth: int) -> Net:
    """Put ReLU between the linear layers; the last ``head_depth`` of them are the head."""
    if not 1 <= head_depth <= len(linears):
        raise ConfigError(
            f"model.head_depth: this model has heads of depth 1 to {len(linears)}, not {head_depth}"
        )
    split = len(linears) - head_depth
    base, head = list(features), list[nn.Module]()
    for i, linear in enumerate(linears):
        (base if i < split else head).append(linear)
        if i < len(linears) - 1:
            (base if i < split else head).append(nn.ReLU())
    return Net(nn.Sequential(*base), nn.Sequential(*head))
