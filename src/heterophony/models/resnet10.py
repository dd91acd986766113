"""ResNet-10: ResNet-8 with a fourth stage, as in FedDecomp for CIFAR-100 and Tiny ImageNet."""

from __future__ import annotations

from ..core.net import Net
from .resnet8 import build_resnet


def resnet10(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (64, 128, 256, 512))
