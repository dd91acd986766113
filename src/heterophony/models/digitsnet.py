"""DigitsNet: a small convolutional network for 8x8 digits, fast enough for a demo."""

from __future__ import annotations

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


def digitsnet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ConfigError(f"model.name: digitsnet needs images, not examples of shape {shape}")
    channels, height, width = shape
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(32 * (height // 4) * (width // 4), 64), nn.Linear(64, classes)]
    return build_net(features, linears, head_depth)
