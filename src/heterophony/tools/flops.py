"""Count the floating-point operations of a net, and measure how fast this machine does them."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn


def count_training_flops(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Count the operations of one example, forward and backward, without the input's gradient."""
    layers = count_forward_flops(net, shape)
    return 3 * sum(layers) - layers[0]


def count_forward_flops(net: nn.Module, shape: tuple[int, ...]) -> list[int]:
    """Count the operations of one example, layer by layer; a multiply-add counts as two."""
    counts: list[int] = []

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            counts.append(2 * layer.weight[0].numel() * out[0].numel())
        elif isinstance(layer, nn.LSTM):  # every weight, at every position of the sequence
            counts.append(2 * sum(p.numel() for p in layer.parameters()) * shape[0])

    handles = [m.register_forward_hook(count) for m in net.modules()]
    text = len(shape) == 1 and any(isinstance(m, nn.Embedding) for m in net.modules())
    net.eval()  # BatchNorm has no statistics of one example
    with torch.no_grad():
        net(torch.zeros(1, *shape, dtype=torch.long if text else torch.float))
    for handle in handles:
        handle.remove()
    return counts


def measure_sgemm_rate() -> float:
    """Measure the floating-point operations per second of a large matrix product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for _ in range(12):
        begun = time.perf_counter()
        torch.mm(a, b)
        rates.append(2 * 1024**3 / (time.perf_counter() - begun))
    return median(rates[2:])
