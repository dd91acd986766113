"""Count the floating-point operations of a net, and measure how fast this machine does them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import deepcopy
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..core.tensors import matches_any


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


def count_phase_flops(
    net: nn.Module, shape: tuple[int, ...], batch: int, steps: int, trained: Iterable[str] = ("*",)
) -> int:
    """Count the operations of a phase of one step or more on images, forward and backward.

    It computes nothing, and counts what training would do, also to make weights out of others
    (parametrisations). ``trained`` are patterns of parameters; the others are frozen.
    """
    patterns, copy = tuple(trained), deepcopy(net).to("meta").train()
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(matches_any(name, patterns))
    counted: list[int] = []
    for _ in range(min(2, steps)):  # what is made once is in the first; all later ones are alike
        with FlopCounterMode(display=False) as counter:
            copy(torch.empty(batch, *shape, device="meta")).sum().backward()
        counted.append(counter.get_total_flops())
    return counted[0] + (steps - 1) * counted[-1]


def measure_sgemm_rate() -> float:
    """Measure the floating-point operations per second of a large matrix product."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for _ in range(12):
        begun = time.perf_counter()
        torch.mm(a, b)
        rates.append(2 * 1024**3 / (time.perf_counter() - begun))
    return median(rates[2:])
