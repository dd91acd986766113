"""What every optimiser of the training loop has: named parameters, grouped by rate and type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from .tensors import Tensors
from .training import Training


class Optimizer(ABC):
    """Updates named parameters by their gradients.

    A parameter without a gradient is not updated, not even by momentum or weight decay.
    """

    def __init__(
        self, named: Tensors, how: Training, rates: Mapping[str, float], factor: float = 1.0
    ) -> None:
        """``rates`` are learning rates by pattern of names; ``factor`` scales all rates."""
        self.named, self.how = named, how
        groups = [(how.lr, named.without(*rates))]
        groups += [(lr, named.only(pattern)) for pattern, lr in rates.items()]
        if sum(len(group) for _, group in groups) > len(named):
            raise ValueError(f"a parameter has two learning rates: {', '.join(rates)}")
        self.groups = [
            (lr * factor, names) for lr, group in groups for names in part_by_dtype(group)
        ]

    def zero_grad(self) -> None:
        for p in self.named.values():
            p.grad = None

    @abstractmethod
    def step(self) -> None:
        """Update the parameters."""

    @abstractmethod
    def state(self) -> Mapping[str, Tensor]:
        """Return the tensors that another optimiser needs to continue."""

    def copy_buffers(self, kept: Tensors) -> dict[str, Tensor]:
        """Copy the buffers of the parameters' names, in the parameter's own memory format."""
        return {
            k: torch.empty_like(self.named[k]).copy_(v) for k, v in kept.items() if k in self.named
        }


def part_by_dtype(named: Tensors) -> list[list[str]]:
    """Part the names by the type of their tensors: the kernels take one type at a time."""
    parts = dict[torch.dtype, list[str]]()
    for name, v in named.items():
        parts.setdefault(v.dtype, []).append(name)
    return list(parts.values())
