"""ResNet-8: ImageNet's stem and three residual stages, as in FedDecomp for CIFAR-10.

Pooling comes before ReLU: the same values and gradients for a quarter of ReLU's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .layers import build_net


class ResidualBlock(nn.Module):
    """Add two 3x3 convolutions to a shortcut, which is a 1x1 convolution where the width changes."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        stride = 1 if into == out else 2
        self.conv1, self.bn1 = make_conv(into, out, 3, stride), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = make_conv(out, out, 3, 1), nn.BatchNorm2d(out)
        same = into == out
        short = [] if same else [make_conv(into, out, 1, stride), nn.BatchNorm2d(out)]
        self.downsample, self.relu = nn.Sequential(*short), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def make_conv(into: int, out: int, side: int, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(into, out, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def build_resnet(
    shape: tuple[int, ...], classes: int, head_depth: int, widths: Sequence[int]
) -> Net:
    """Build a stem of the first width, one block per width, and a linear layer."""
    if len(shape) != 3:
        raise ConfigError(
            f"model.name: a residual network needs images, not examples of shape {shape}; use mlp"
        )
    stem = [make_conv(shape[0], widths[0], 7, 2), nn.BatchNorm2d(widths[0])]
    stages = [ResidualBlock(a, b) for a, b in pairwise([widths[0], *widths])]
    pooled = [nn.MaxPool2d(3, 2, padding=1), nn.ReLU()]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return build_net([*stem, *pooled, *stages, *flat], [nn.Linear(widths[-1], classes)], head_depth)


def resnet8(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (64, 128, 256))
