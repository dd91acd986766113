"""SmallCNN: three convolutions and a linear layer, so that attacks on gradients take seconds."""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def smallcnn(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ConfigError(f"model.name: smallcnn needs images, not examples of shape {shape}")
    channels, *sides = shape
    height, width = ((n + 3) // 4 for n in sides)  # halved twice, rounded up
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Flatten(),
    ]
    return build_net(features, [nn.Linear(32 * height * width, classes)], head_depth)
