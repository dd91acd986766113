"""SGD for the training loop: the kernel of ``torch.optim.SGD(fused=True)``, called directly.

In a small network a step of ``torch.optim.SGD`` takes longer than forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .tensors import Tensors
from .training import Training


class SGD:
    """Updates named parameters by their gradients; ``momentum`` holds their buffers by name.

    A parameter without a gradient is not updated, not even by momentum or weight decay.
    """

    def __init__(
        self, named: Tensors, how: Training, rates: Mapping[str, float], momentum: Tensors
    ) -> None:
        """``rates`` are learning rates by pattern of names; ``momentum`` has buffers to begin with."""
        self.named, self.how = named, how
        groups = [(how.lr, named.without(*rates))]
        groups += [(lr, named.only(pattern)) for pattern, lr in rates.items()]
        if sum(len(group) for _, group in groups) > len(named):
            raise ValueError(f"a parameter has two learning rates: {', '.join(rates)}")
        self.groups = [(lr, names) for lr, group in groups for names in part_by_dtype(group)]
        self.momentum = {
            # in the parameter's own memory format
            k: torch.empty_like(named[k]).copy_(v)
            for k, v in momentum.items()
            if k in named
        }

    def zero_grad(self) -> None:
        for p in self.named.values():
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for lr, names in self.groups:
            grads = {k: g for k in names if (g := self.named[k].grad) is not None}
            if not self.how.momentum:
                self.update(lr, grads, [], False)
                continue
            new = {k: g for k, g in grads.items() if k not in self.momentum}
            known = {k: g for k, g in grads.items() if k not in new} if new else grads
            self.update(lr, known, [self.momentum[k] for k in known], False)
            if new:
                buffers = [torch.empty_like(g) for g in new.values()]
                self.update(lr, new, buffers, True)
                self.momentum.update(zip(new, buffers, strict=True))

    def update(
        self, lr: float, grads: Mapping[str, Tensor], buffers: list[Tensor], first: bool
    ) -> None:
        """Call the kernel; in their ``first`` step, it fills the buffers with the gradients."""
        if grads:
            torch._fused_sgd_(
                [self.named[k] for k in grads],
                list(grads.values()),
                buffers,
                weight_decay=self.how.weight_decay,
                momentum=self.how.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=first,
            )


def part_by_dtype(named: Tensors) -> list[list[str]]:
    """Part the names by the type of their tensors: the kernel takes one type at a time."""
    parts = dict[torch.dtype, list[str]]()
    for name, v in named.items():
        parts.setdefault(v.dtype, []).append(name)
    return list(parts.values())
