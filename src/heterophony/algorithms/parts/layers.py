"""Layers that algorithms add to a net: linear layers to find, GPFL's valve, FixHead's fixed directions."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ...core.errors import ConfigError
from ...core.net import Net
from ...core.randomness import make_generator


def list_linear_layers(net: Net) -> list[nn.Linear]:
    """List the linear layers of the head, in order; the first one's input are the features."""
    layers = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError("model: the head has no linear layer; this algorithm needs one")
    return layers


def multiply_weights(layers: list[nn.Linear]) -> Tensor:
    """Multiply the weights of linear layers: outputs × features, as if nothing were between them."""
    product = layers[0].weight.detach()
    for layer in layers[1:]:
        product = layer.weight.detach() @ product
    return product


class ConditionalValve(nn.Module):
    """Scale and shift features by a condition: the conditional valve of the paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in "gb"
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        out: Tensor = z * (self.gamma(condition) + 1) + self.beta(condition)
        return out.relu()


class FixedDirections(nn.Module):
    """Compute a logit for each class as the product of the features with its direction.

    The directions follow from the sizes alone, so they are neither sent nor stored.
    """

    directions: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("directions", make_directions(features, classes), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return linear(z, self.directions)


class ScaledFeatures(nn.Module):
    """Give all feature vectors the same length."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, z: Tensor) -> Tensor:
        return self.length * normalize(z, dim=-1)


def make_directions(features: int, classes: int) -> Tensor:
    """Make a unit vector for each class.

    With at least as many features as classes, the angle between any two is the same: a simplex, rotated
    at random, the same way in every run. With fewer features the directions are random, and angles differ.
    """
    generator = make_generator(0, "fixed directions", features, classes)
    corners = np.eye(classes) - (classes > 1) / classes
    rotation = generator.standard_normal((features, classes))
    if features >= classes:
        rotation = np.linalg.qr(rotation)[0]
    rows = corners @ rotation.T
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)).float()


def replace_last_linear(net: Net, fixed: bool, length: float) -> None:
    """Replace the last linear layer of the shared head by one with fixed directions or scaled features.

    With learned weights and a length of 0 it stays as it is.
    """
    head = net.get_submodule("head")
    found = [(name, m) for name, m in head.named_modules() if isinstance(m, nn.Linear)]
    if not found:
        raise ConfigError(
            "fixhead: the head of this model has no linear layer to replace;"
            " end it in nn.Linear, or choose another algorithm"
        )
    name, last = found[-1]
    if fixed and not last.weight.requires_grad:
        raise ConfigError(
            "fixhead: it replaces the last layer of the head, which is frozen; unfreeze it, or choose"
            " directions = learned"
        )
    layer = FixedDirections(last.in_features, last.out_features) if fixed else last
    scaled = nn.Sequential(ScaledFeatures(length), layer) if length else layer
    parent, _, child = f"head.{name}".rstrip(".").rpartition(".")
    net.get_submodule(parent).add_module(child, scaled)
