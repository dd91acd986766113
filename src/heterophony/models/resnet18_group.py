"""ResNet-18 for CIFAR with GroupNorm of two groups (as in FedDyn), which has no running statistics."""

from __future__ import annotations

from functools import partial

from torch import nn

from ..core.net import Net
from .resnet18 import resnet18


def resnet18_group(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return resnet18(shape, classes, head_depth, partial(nn.GroupNorm, 2))
