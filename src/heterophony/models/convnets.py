"""Convolutional nets and the MLP: feature layers, then linear layers, split into base and head."""

from __future__ import annotations

from math import prod

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net


def check_image_shape(model: str, shape: tuple[int, ...], least: int = 1, advice: str = "") -> None:
    """Raise ConfigError unless the examples are images of at least ``least`` pixels on each side."""
    if len(shape) != 3 or min(shape[1:]) < least:
        size = f" of at least {least}x{least}" if least > 1 else ""
        raise ConfigError(
            f"model.name: {model} needs images{size}, not examples of shape {shape}{advice}"
        )


def build_net(features: list[nn.Module], linears: list[nn.Linear], head_depth: int) -> Net:
    """Build a net from feature layers and linear layers with ReLU between; the last ones are the head.

    ``head_depth`` is the number of linear layers in the head.
    """
    if not 1 <= head_depth <= len(linears):
        raise ConfigError(
            f"model.head_depth: must be 1 to {len(linears)} for this model, not {head_depth}"
        )
    split = len(linears) - head_depth
    base, head = list(features), list[nn.Module]()
    for i, linear in enumerate(linears):
        (base if i < split else head).append(linear)
        if i < len(linears) - 1:
            (base if i < split else head).append(nn.ReLU())
    return Net(nn.Sequential(*base), nn.Sequential(*head))


def mlp(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    linears = [nn.Linear(prod(shape), 100), nn.Linear(100, classes)]
    return build_net([nn.Flatten()], linears, head_depth)


def digitsnet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("digitsnet", shape, 4)
    channels, height, width = shape
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(32 * (height // 4) * (width // 4), 64), nn.Linear(64, classes)]
    return build_net(features, linears, head_depth)


def smallcnn(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("smallcnn", shape, 4)
    channels, *sides = shape
    height, width = ((n + 3) // 4 for n in sides)  # halved twice, rounded up
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Flatten(),
    ]
    return build_net(features, [nn.Linear(32 * height * width, classes)], head_depth)


def convnet(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("convnet", shape, 16, "; use digitsnet (8x8) or mlp")
    channels, height, width = shape
    side = [((n - 4) // 2 - 4) // 2 for n in (height, width)]
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(64 * side[0] * side[1], 384), nn.Linear(384, 192), nn.Linear(192, classes)]
    return build_net(features, linears, head_depth)


def convnet_small(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("convnet_small", shape, 4)
    channels, height, width = shape
    features: list[nn.Module] = [
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    size = 16 * (height // 4) * (width // 4)
    linears = [nn.Linear(size, 96), nn.Linear(96, 48), nn.Linear(48, classes)]
    return build_net(features, linears, head_depth)


def pfakd_cnn(shape: tuple[int, ...], classes: int, head_depth: int = 2) -> Net:
    check_image_shape("pfakd_cnn", shape, 24)
    side = [(((n - 2) // 2 - 3) // 2 - 2) // 2 for n in shape[1:]]
    features: list[nn.Module] = [
        *(nn.Conv2d(shape[0], 16, 3), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 4), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(64 * side[0] * side[1], 64), nn.Linear(64, classes)]
    return build_net(features, linears, head_depth)


def pfakd_fmnist(shape: tuple[int, ...], classes: int, head_depth: int = 1) -> Net:
    check_image_shape("pfakd_fmnist", shape, 12)
    side = [((n - 4) // 2 - 2) // 2 for n in shape[1:]]
    features: list[nn.Module] = [
        *(nn.Conv2d(shape[0], 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Flatten(),
    ]
    linears = [nn.Linear(32 * side[0] * side[1], 128), nn.Linear(128, classes)]
    return build_net(features, linears, head_depth)
