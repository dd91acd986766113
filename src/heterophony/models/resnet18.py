"""ResNet-18 with a stem for CIFAR, a 3x3 convolution without pooling (PFAKD's for CIFAR-100)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net

NormLayer = Callable[[int], nn.Module]


class ResidualBlock(nn.Module):
    """Add two 3x3 convolutions to a shortcut, which is a 1x1 convolution where the width changes."""

    def __init__(self, into: int, out: int, norm: NormLayer) -> None:
        super().__init__()
        stride = 1 if into == out else 2
        self.within = nn.Sequential(
            *(nn.Conv2d(into, out, 3, stride, 1, bias=False), norm(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), norm(out)),
        )
        beside = [] if into == out else [nn.Conv2d(into, out, 1, stride, bias=False), norm(out)]
        self.shortcut, self.relu = nn.Sequential(*beside), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.within(x) + self.shortcut(x))
        return out


def resnet18(
    shape: tuple[int, ...], classes: int, head_depth: int = 1, norm: NormLayer = nn.BatchNorm2d
) -> Net:
    if len(shape) != 3:
        raise ConfigError(
            f"model.name: resnet18 needs images, not examples of shape {shape}; use mlp"
        )
    stem = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [ResidualBlock(a, b, norm) for a, b in pairwise(widths)]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return build_net([*stem, *blocks, *flat], [nn.Linear(512, classes)], head_depth)
