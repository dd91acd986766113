"""Layers that algorithms find in a net or add to it: linear layers, GPFL's valve, fixed directions, pFedGate's gate."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ...core.errors import ConfigError
from ...core.net import Net
from ...core.randomness import make_generator
from ...core.tensors import Tensors, answer, is_given, match_memory_format


def list_linear_layers(net: Net) -> list[nn.Linear]:
    """List the linear layers of the head in order; the features are the input of the first."""
    layers = [m for m in net.head.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError(
            "model: the head has no linear layer, and this algorithm needs one; end the head in nn.Linear"
        )
    return layers


def find_linear_head(net: Net, name: str) -> nn.Linear:
    """Return the linear layer that is the head; raise ConfigError if the head is deeper or frozen."""
    layers = list_linear_layers(net)
    if len(layers) > 1:
        raise ConfigError(f"model.head_depth: {name} needs a head of one linear layer; set it to 1")
    if not all(p.requires_grad for p in layers[0].parameters()):
        raise ConfigError(
            f"{name}: the head is frozen, so it cannot be trained; unfreeze it, or choose another"
            " algorithm"
        )
    return layers[0]


def multiply_weights(layers: list[nn.Linear]) -> Tensor:
    """Multiply the weights of a head's linear layers into one, outputs × features; ignore activations."""
    product = layers[0].weight.detach()
    for layer in layers[1:]:
        product = layer.weight.detach() @ product
    return product


class ConditionalValve(nn.Module):
    """GPFL's conditional valve: scales and shifts features by a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)) for _ in "gb"
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        out: Tensor = z * (self.gamma(condition) + 1) + self.beta(condition)
        return out.relu()


class FixedDirections(nn.Module):
    """A last layer with fixed class directions: each logit is the inner product of features and direction.

    The directions follow from the sizes alone, so they are neither sent nor stored.
    """

    directions: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("directions", make_directions(features, classes), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return linear(z, self.directions)


class ProjectedFeatures(nn.Module):
    """A layer that projects features and scales them to one common length, which is learned."""

    def __init__(self, inputs: int, width: int, length: float) -> None:
        super().__init__()
        self.projection = nn.Linear(inputs, width)
        self.length = nn.Parameter(torch.tensor(length))

    def forward(self, z: Tensor) -> Tensor:
        return self.length * normalize(self.projection(z), dim=-1)


class ScaledFeatures(nn.Module):
    """A layer that scales all feature vectors to the same length."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, z: Tensor) -> Tensor:
        return self.length * normalize(z, dim=-1)


def make_directions(features: int, classes: int) -> Tensor:
    """Make the fixed directions of the classes: a unit vector for each.

    With at least as many features as classes, all pairs have the same angle: a simplex, rotated at
    random, identically in every run. With fewer features the directions are random, and angles
    differ.
    """
    generator = make_generator(0, "fixed directions", features, classes)
    corners = np.eye(classes) - (classes > 1) / classes
    rotation = generator.standard_normal((features, classes))
    if features >= classes:
        rotation = np.linalg.qr(rotation)[0]
    rows = corners @ rotation.T
    return torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)).float()


def find_last_linear(net: Net, replaced: bool) -> tuple[str, nn.Linear]:
    """Find a head's last linear layer; return its name and the layer. If ``replaced``, it must not be frozen."""
    head = net.get_submodule("head")
    found = [(name, m) for name, m in head.named_modules() if isinstance(m, nn.Linear)]
    if not found:
        raise ConfigError(
            "model: the head has no linear layer to replace; make nn.Linear its last layer, or choose another"
            " algorithm"
        )
    if replaced and not found[-1][1].weight.requires_grad:
        raise ConfigError(
            "model: this algorithm replaces the last layer of the head, which is frozen; unfreeze it, or"
            " choose another algorithm"
        )
    return found[-1]


def cut_last_linear(net: Net) -> tuple[nn.Module, nn.Linear]:
    """Return the head without its last linear layer, and that layer."""
    name, last = find_last_linear(net, True)
    if not name:
        return nn.Identity(), last
    net.set_submodule(f"head.{name}", nn.Identity())
    return net.get_submodule("head"), last


def replace_last_linear(net: Net, fixed: bool, length: float) -> None:
    """Replace the last linear layer of the shared head by one with fixed directions or scaled features.

    With learned weights and a length of 0 the layer is left unchanged.
    """
    name, last = find_last_linear(net, fixed)
    layer = FixedDirections(last.in_features, last.out_features) if fixed else last
    scaled = nn.Sequential(ScaledFeatures(length), layer) if length else layer
    net.set_submodule(f"head.{name}".rstrip("."), scaled)


@dataclass(frozen=True)
class ParameterBlocks:
    """A parameter tensor cut into pieces of equal size; the last one may be shorter."""

    name: str
    sizes: tuple[int, ...]
    in_linear_layer: bool


Blocks = Sequence[ParameterBlocks]


def split_into_blocks(net: nn.Module, pieces: int) -> Blocks:
    """Split every trained parameter of a net into blocks for pFedGate, except those of the gate."""
    linear = {id(p) for m in net.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    cut = []
    for name, p in net.named_parameters():
        if name.startswith("gate.") or is_given(p):
            continue
        size = -(-p.numel() // min(pieces, p.numel()))
        whole, rest = divmod(p.numel(), size)
        sizes = (size,) * whole + ((rest,) if rest else ())
        cut.append(ParameterBlocks(name, sizes, id(p) in linear))
    if not cut:
        raise ConfigError(
            "pfedgate: all parameters of the model are frozen, so there is no block to gate; unfreeze"
            " a part of the model, or choose another algorithm"
        )
    return cut


def select_blocks(cut: Blocks, importance: Tensor, budget: float) -> tuple[Tensor, float]:
    """Select the blocks that pFedGate keeps: the first of every tensor, and the most important that fit.

    ``budget`` is the fraction of the other blocks that may be kept, in linear layers and in other layers
    separately. Return a mask of the blocks, and the fraction of the model that is kept.
    """
    flat = [(b.in_linear_layer, i > 0, n) for b in cut for i, n in enumerate(b.sizes)]
    keep = [not later for _, later, _ in flat]
    order = importance.argsort(descending=True, stable=True).tolist()
    for group in (True, False):
        others = [i for i in order if flat[i][0] == group and flat[i][1]]
        left = round(budget * sum(flat[i][2] for i in others))
        for i in others:
            if flat[i][2] <= left:
                keep[i] = True
                left -= flat[i][2]
    sizes = torch.tensor([n for _, _, n in flat])
    share = float(sizes[torch.tensor(keep)].sum() / sizes.sum())
    return importance.new_tensor(keep, dtype=torch.bool), share


def forward_gated(net: nn.Module, cut: Blocks, gates: Tensor, w: Tensors, x: Tensor) -> Tensor:
    """Return a net's output with every block of its parameters ``w`` scaled by its gate."""
    scaled, at = dict(w), 0
    for b in cut:
        sizes = gates.new_tensor(b.sizes, dtype=torch.int64)
        factor = gates[at : at + len(b.sizes)].repeat_interleave(sizes)
        scaled[b.name] = match_memory_format(w[b.name] * factor.view(w[b.name].shape), w[b.name])
        at += len(b.sizes)
    return answer(net, scaled, x)


class SwitchableNorm(nn.Module):
    """A normalisation layer that uses a learned mixture of channel, image and batch statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.running_mean: Tensor
        self.running_var: Tensor
        self.weight, self.bias = (nn.Parameter(f(channels)) for f in (torch.ones, torch.zeros))
        self.of_mean, self.of_variance = (nn.Parameter(torch.ones(3)) for _ in range(2))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean, square = x.mean((2, 3)), x.square().mean((2, 3))
        layer, layer_square = mean.mean(1, keepdim=True), square.mean(1, keepdim=True)
        batch, variance = self.running_mean, self.running_var
        if self.training:
            batch = mean.mean(0)
            variance = square.mean(0) - batch.square()
            with torch.no_grad():
                self.running_mean.mul_(0.9).add_(0.1 * batch)
                self.running_var.mul_(0.9).add_(0.1 * variance)
        a, b = self.of_mean.softmax(0), self.of_variance.softmax(0)
        centre = a[0] * mean + a[1] * layer + a[2] * batch
        spread = b[0] * (square - mean.square()) + b[1] * (layer_square - layer.square())
        scale = self.weight / (spread + b[2] * variance + 1e-5).sqrt()
        return (x - centre[..., None, None]) * scale[..., None, None] + self.bias[:, None, None]


class GatingLayer(nn.Module):
    """pFedGate's gate: computes two numbers in (0, 1) per block and example, its importance and its scale."""

    def __init__(self, shape: tuple[int, ...], gates: int, separate: bool) -> None:
        super().__init__()
        self.norm = SwitchableNorm(shape[0]) if len(shape) == 3 else nn.Identity()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(prod(shape), gates), nn.BatchNorm1d(gates))
            for _ in range(1 + separate)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x.float()).flatten(1)
        gates = [head(z).sigmoid() for head in self.heads]
        return gates[0], gates[-1]


def pack_bits(flags: Tensor) -> Tensor:
    """Pack a flat tensor of flags into bytes for sending, the first flag in the lowest bit."""
    rows = torch.cat([flags, flags.new_zeros(-len(flags) % 8)]).view(-1, 8)
    values = flags.new_tensor([1 << i for i in range(8)], dtype=torch.uint8)
    return (rows * values).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """Unpack the flags packed by ``pack_bits``; up to seven unset flags follow."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), bitorder="little")).bool()
