"""Adam and AdamW for the training loop: the kernels of ``torch.optim``, called directly.

They have the bits of ``torch.optim.Adam(fused=True)`` and ``torch.optim.AdamW(fused=True)``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .optimizer import Optimizer
from .tensors import Tensors
from .training import Training


class Adam(Optimizer):
    """Adam, or AdamW if ``how.optimizer`` says so; every parameter counts its own steps."""

    def __init__(
        self,
        named: Tensors,
        how: Training,
        rates: Mapping[str, float],
        kept: Tensors,
        factor: float = 1.0,
    ) -> None:
        """``kept`` has the moments and the numbers of steps to begin with."""
        super().__init__(named, how, rates, factor)
        self.means = self.copy_buffers(kept.below("exp_avg/"))
        self.squares = self.copy_buffers(kept.below("exp_avg_sq/"))
        self.steps = {k: v.clone() for k, v in kept.below("step/").items() if k in named}
        self.update = torch._fused_adamw_ if how.optimizer == "adamw" else torch._fused_adam_
        self.beta1, self.beta2 = how.betas or (0.0, 0.0)

    def state(self) -> Mapping[str, Tensor]:
        moments = {"exp_avg/": self.means, "exp_avg_sq/": self.squares, "step/": self.steps}
        return {prefix + k: v for prefix, part in moments.items() for k, v in part.items()}

    @torch.no_grad()
    def step(self) -> None:
        for lr, names in self.groups:
            grads = {k: g for k in names if (g := self.named[k].grad) is not None}
            if not grads:
                continue
            for k in grads:
                if k not in self.steps:
                    self.means[k] = torch.zeros_like(self.named[k])
                    self.squares[k] = torch.zeros_like(self.named[k])
                    self.steps[k] = self.named[k].new_zeros((), dtype=torch.float32)
            steps = [self.steps[k] for k in grads]
            torch._foreach_add_(steps, 1)
            self.update(
                [self.named[k] for k in grads],
                list(grads.values()),
                [self.means[k] for k in grads],
                [self.squares[k] for k in grads],
                [],
                steps,
                lr=lr,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=self.how.weight_decay,
                eps=self.how.eps or 0.0,
                amsgrad=False,
                maximize=False,
            )
