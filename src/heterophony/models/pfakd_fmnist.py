"""PFAKD's network for Fashion-MNIST, as in the authors' code: two convolutions, two linear layers.

Pooling comes before ReLU: the same values and gradients for a quarter of ReLU's work.
"""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def pfakd_fmnist(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 12:
        raise ConfigError(
            f"model.name: pfakd_fmnist needs images of at least 12x12, not examples of shape {shape}"
        )
    side = [((n - 4) // 2 - 2) // 2 for n in shape[1:]]
    features: list[nn.Module] = [
        *(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(32 * side[0] * side[1], 128), nn.Linear(128, classes)]
    return build_net(features, linears, head_depth)
