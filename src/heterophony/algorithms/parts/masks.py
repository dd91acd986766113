"""Masks over parameters: pFedGate's blocks and gating layer, FedCAC's packed bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.tensors import Tensors, answer, is_given, match_memory_format


@dataclass(frozen=True)
class ParameterBlocks:
    """A parameter tensor cut into pieces of equal size, the last one shorter."""

    name: str
    sizes: tuple[int, ...]
    in_linear_layer: bool


Blocks = Sequence[ParameterBlocks]


def split_into_blocks(net: nn.Module, pieces: int) -> Blocks:
    """Split every parameter that is learned, but the gate's own, into blocks, in the network's order."""
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
            " a part of it, or choose another algorithm"
        )
    return cut


def select_blocks(cut: Blocks, importance: Tensor, budget: float) -> tuple[Tensor, float]:
    """Select the blocks to keep: the first of every tensor, and the most important that fit.

    ``budget`` is the fraction of all but the first blocks, for linear layers and for other layers
    separately. Returns also the fraction of the model that is kept.
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
    """Return the net's output with every block of ``w`` scaled by its gate."""
    scaled, at = dict(w), 0
    for b in cut:
        sizes = gates.new_tensor(b.sizes, dtype=torch.int64)
        factor = gates[at : at + len(b.sizes)].repeat_interleave(sizes)
        scaled[b.name] = match_memory_format(w[b.name] * factor.view(w[b.name].shape), w[b.name])
        at += len(b.sizes)
    return answer(net, scaled, x)


class SwitchableNorm(nn.Module):
    """Normalise by a learned mixture of the statistics of a channel, an image and a batch."""

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
    """Compute two numbers in (0, 1) per block and example: its importance and its scale."""

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
    """Pack a flat tensor of flags into bytes, the first flag in the lowest bit."""
    rows = torch.cat([flags, flags.new_zeros(-len(flags) % 8)]).view(-1, 8)
    values = flags.new_tensor([1 << i for i in range(8)], dtype=torch.uint8)
    return (rows * values).sum(1, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """Return the flags again, followed by up to seven that are not set."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), bitorder="little")).bool()
