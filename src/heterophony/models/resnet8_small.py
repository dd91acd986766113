"""ResNet-8 with a quarter of its channels (the medium scale of published tables)."""

from __future__ import annotations

from ..core.net import Net
from .resnet8 import build_resnet


def resnet8_small(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (16, 32, 64))
