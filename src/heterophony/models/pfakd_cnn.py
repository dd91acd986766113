"""PFAKD's CNN for CIFAR-10; for 28x28 images it is the five-layer network of its paper.

By default both linear layers are the head, as in the authors' code; the paper's split is a depth of 1.
Pooling comes before ReLU: the same values and gradients for a quarter of ReLU's work.
"""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def pfakd_cnn(shape: tuple[int, ...], classes: int, head_depth: int = 2) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 24:
        raise ConfigError(
            f"model.name: pfakd_cnn needs images of at least 24x24, not examples of shape {shape}"
        )
    side = [(((n - 2) // 2 - 3) // 2 - 2) // 2 for n in shape[1:]]
    features: list[nn.Module] = [
        *(nn.Conv2d(shape[0], 16, 3), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 4), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(64 * side[0] * side[1], 64), nn.Linear(64, classes)]
    return build_net(features, linears, head_depth)
