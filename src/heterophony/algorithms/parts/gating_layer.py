"""The gating layer of pFedGate: it computes from examples which blocks to keep, and their scale."""

from math import prod

import torch
from torch import Tensor, nn


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
