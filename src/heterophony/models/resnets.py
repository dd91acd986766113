"""Residual nets: ResNet-8 and -10 (FedDecomp), and ResNet-18 for 32x32 and for ImageNet images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..core.net import Net
from .convnets import build_net, check_image_shape


class NarrowBlock(nn.Module):
    """A residual block: two 3x3 convolutions and a shortcut, a 1x1 convolution if the width changes."""

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
    """Make a convolution without bias, initialised for ReLU (He et al., 2015)."""
    conv = nn.Conv2d(into, out, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def build_resnet(
    shape: tuple[int, ...], classes: int, head_depth: int, widths: Sequence[int]
) -> Net:
    """Build a residual net: a stem of the first width, one block per width, and a linear layer."""
    check_image_shape("a residual net", shape, advice="; use mlp")
    stem = [make_conv(shape[0], widths[0], 7, 2), nn.BatchNorm2d(widths[0])]
    stages = [NarrowBlock(a, b) for a, b in pairwise([widths[0], *widths])]
    pooled = [nn.MaxPool2d(3, 2, padding=1), nn.ReLU()]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return build_net([*stem, *pooled, *stages, *flat], [nn.Linear(widths[-1], classes)], head_depth)


def resnet8(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (64, 128, 256))


def resnet8_small(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (16, 32, 64))


def resnet10(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (64, 128, 256, 512))


def resnet10_small(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return build_resnet(shape, classes, head_depth, (16, 32, 64, 128))


NormLayer = Callable[[int], nn.Module]


class ResidualBlock(nn.Module):
    """A residual block like ``NarrowBlock``, with a selectable normalisation layer."""

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
    check_image_shape("resnet18", shape, advice="; use mlp")
    stem = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), norm(64), nn.ReLU()]
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [ResidualBlock(a, b, norm) for a, b in pairwise(widths)]
    flat = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return build_net([*stem, *blocks, *flat], [nn.Linear(512, classes)], head_depth)


def resnet18_group(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    return resnet18(shape, classes, head_depth, partial(nn.GroupNorm, 2))


WIDTHS = (64, 128, 256, 512)


def resnet18_imagenet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("resnet18_imagenet", shape, advice="; use mlp")
    if head_depth != 1:
        raise ConfigError(f"model.head_depth: this model has heads of depth 1, not {head_depth}")
    # pooling before ReLU gives the same values and gradients with a quarter of ReLU's work
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
    """Make a stage of two residual blocks, the first of which changes the width."""
    widths: Sequence[tuple[int, int]] = ((into, out), (out, out))
    return nn.Sequential(*(NarrowBlock(a, b) for a, b in widths))
