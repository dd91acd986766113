"""ConvNet: FedDyn's CIFAR network, also for 28x28 images (FedReG, FedReb, FedAvg2Rep).

Pooling comes before ReLU: the same values and gradients for a quarter of ReLU's work.
"""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def convnet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise ConfigError(
            f"model.name: convnet needs images of at least 16x16, not examples of shape {shape}; "
            "use digitsnet (8x8) or mlp"
        )
    channels, height, width = shape
    side = [((n - 4) // 2 - 4) // 2 for n in (height, width)]
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(64 * side[0] * side[1], 384), nn.Linear(384, 192), nn.Linear(192, classes)]
    return build_net(features, linears, head_depth)
