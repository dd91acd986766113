"""ResNet-18 with ImageNet's stem, in the names of torchvision (FedDecomp's Table 6).

Its parts are called as in torchvision's state dict, below ``base`` and ``head``, so that
``model.init`` takes such a state dict, saved as safetensors, as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net
from .resnet8 import ResidualBlock, make_conv

WIDTHS = (64, 128, 256, 512)


def resnet18_imagenet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    if len(shape) != 3:
        raise ConfigError(
            f"model.name: resnet18_imagenet needs images, not examples of shape {shape}; use mlp"
        )
    if head_depth != 1:
        raise ConfigError(f"model.head_depth: this model has heads of depth 1, not {head_depth}")
    # pooling comes before ReLU: the same values and gradients for a quarter of ReLU's work
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=make_conv(shape[0], 64, 7, 2),
        bn1=nn.BatchNorm2d(64),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
        relu=nn.ReLU(),
    )
    for i, width in enumerate(WIDTHS):
        parts[f"layer{i + 1}"] = make_stage([64, *WIDTHS][i], width)
    parts |= OrderedDict(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    head: OrderedDict[str, nn.Module] = OrderedDict(fc=nn.Linear(WIDTHS[-1], classes))
    return Net(nn.Sequential(parts), nn.Sequential(head))


def make_stage(into: int, out: int) -> nn.Sequential:
    """Make two residual blocks, of which the first changes the width."""
    widths: Sequence[tuple[int, int]] = ((into, out), (out, out))
    return nn.Sequential(*(ResidualBlock(a, b) for a, b in widths))
