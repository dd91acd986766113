"""SGD for the training loop: the kernel of ``torch.optim.SGD(fused=True)``, called directly.

In a small network a step of ``torch.optim.SGD`` takes longer than forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .optimizer import Optimizer
from .tensors import Tensors
from .training import Training


class SGD(Optimizer):
    """SGD with or without momentum; ``momentum`` holds the buffers by parameter name."""

    def __init__(
        self,
        named: Tensors,
        how: Training,
        rates: Mapping[str, float],
        kept: Tensors,
        factor: float = 1.0,
    ) -> None:
        """``kept`` has momentum buffers to begin with."""
        super().__init__(named, how, rates, factor)
        self.momentum, self.momentum_factor = self.copy_buffers(kept), how.momentum or 0.0

    def state(self) -> Mapping[str, Tensor]:
        return self.momentum if self.momentum_factor else {}

    @torch.no_grad()
    def step(self) -> None:
        for lr, names in self.groups:
            grads = {k: g for k in names if (g := self.named[k].grad) is not None}
            if not self.momentum_factor:
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
                momentum=self.momentum_factor,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=first,
            )
