"""ResNet-18 for CIFAR with GroupNorm of two groups (as FedDyn has it): no statistics to keep."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..core.net import Net
from .resnet18 import resnet18


def resnet18_group(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return resnet18(shape, classes, head_depth, partial(nn.GroupNorm, 2))
