"""ConvNet with a quarter of its channels, for images of half the side (the medium scale of tables).

The structure is that of ``convnet``: two convolutions, three linear layers, heads of depth 1 to 3.
The convolutions are 3x3 and keep the side, because 5x5 ones leave almost nothing of a 14x14 image.
"""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def convnet_small(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ConfigError(
            f"model.name: convnet_small needs images of at least 4x4, not examples of shape {shape}"
        )
    channels, height, width = shape
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    size = 16 * (height // 4) * (width // 4)
    linears = [nn.Linear(size, 96), nn.Linear(96, 48), nn.Linear(48, classes)]
    return build_net(features, linears, head_depth)
