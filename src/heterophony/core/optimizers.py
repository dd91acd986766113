"""The optimisers of the training loop: SGD with torch's fused kernel, Adam and AdamW."""

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
    """Group the names by dtype: the kernels take one dtype at a time."""
    parts = dict[torch.dtype, list[str]]()
    for name, v in named.items():
        parts.setdefault(v.dtype, []).append(name)
    return list(parts.values())


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
        self.nesterov = bool(how.nesterov and self.momentum_factor)

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
                nesterov=self.nesterov,
                maximize=False,
                is_first_step=first,
            )


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


def create_optimizer(
    named: Tensors, how: Training, rates: Mapping[str, float], kept: Tensors, factor: float = 1.0
) -> Optimizer:
    """Create the optimiser of these parameters.

    ``rates`` are learning rates by pattern of names; other parameters have ``how.lr``. ``factor``
    scales all of them. ``kept`` is the state of an earlier optimiser to continue from.
    """
    kind = SGD if how.optimizer == "sgd" else Adam
    return kind(named, how, rates, kept, factor)
