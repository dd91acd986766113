"""One pass of a client's training: what ``Client.fit`` was called with, defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from .samples import Samples
from .tensors import Tensors
from .training import Training

Loss = Callable[[Tensor, Tensor], Tensor]  # of input and labels of a mini-batch
Pull = Callable[[Tensors], Tensors]  # of the trained parameters


@dataclass(frozen=True)
class TrainingPass:
    """A loss to minimise, over which parameters and examples, for how long, and in which way."""

    loss: Loss
    named: Tensors  # the parameters that are trained, by name
    data: Samples | None  # None: the client's training examples
    pull: Pull | None
    epochs: int | None
    steps: int | None
    repeat: int
    how: Training
    rates: Mapping[str, float]
    after: Callable[[], None] | None
    phase: str
    turn: int

    @property
    def key(self) -> tuple[object, ...]:
        """What its random draws depend on, beside client and round."""
        return (self.phase, self.turn) if self.turn else (self.phase,)

    def add_pull(self) -> None:
        """Add the terms of ``pull`` to the gradients of the parameters of the same names."""
        if self.pull is None:
            return
        for k, term in self.pull(self.named.map(Tensor.detach)).items():
            p = self.named[k]
            p.grad = term.clone() if p.grad is None else p.grad.add_(term)
