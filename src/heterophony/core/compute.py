"""Where and how a job computes: its device and its precision, set around each job.

They belong to the process that runs the job, never to the plan. Algorithms do not know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from .resident_examples import ResidentExamples
from .tensors import Memory, Tensors

CPU = torch.device("cpu")
Precision = Literal["float32", "bfloat16"]
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Compute:
    """The device of a client's net and batches, the precision of the passes, and determinism."""

    device: torch.device = CPU
    precision: Precision = "float32"
    deterministic: bool = True
    resident: ResidentExamples = field(default_factory=ResidentExamples, compare=False, repr=False)

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    def place(self, tensors: Tensors) -> Tensors:
        """Return the tensors on the device; on the CPU, the same object."""
        return tensors if self.is_cpu else tensors.map(lambda v: v.to(self.device))

    def place_memory(self, memory: Memory) -> Memory:
        return memory if self.is_cpu else {k: self.place(v) for k, v in memory.items()}

    def place_net(self, net: Module) -> Module:
        return net if self.is_cpu else net.to(self.device)


ON_CPU = Compute()
AS_IT_IS = nullcontext()  # one for all: a training step takes microseconds
CURRENT = ContextVar("compute", default=ON_CPU)


def get_compute() -> Compute:
    """Return where the job of this thread computes; outside of jobs, that is the CPU."""
    return CURRENT.get()


@contextmanager
def computing(compute: Compute) -> Iterator[None]:
    """Compute on this device, in this precision, inside the ``with`` block."""
    token = CURRENT.set(compute)
    try:
        yield
    finally:
        CURRENT.reset(token)


def autocast() -> AbstractContextManager[object]:
    """Run the operations inside in the job's precision; in float32 nothing is changed.

    The same object can be entered again, after it was left.
    """
    compute = get_compute()
    if compute.precision == "float32":
        return AS_IT_IS
    return torch.autocast(compute.device.type, torch.bfloat16)


# Back on the CPU --------------------------------------------------------------------------------


def bring_back(tensors: Tensors) -> Tensors:
    """Return the tensors on the CPU; if the job computes there, the same object."""
    return tensors if get_compute().is_cpu else tensors.map(Tensor.cpu)


def bring_back_memory(memory: Memory) -> Memory:
    return memory if get_compute().is_cpu else {k: bring_back(v) for k, v in memory.items()}


def widen(tensor: Tensor) -> Tensor:
    """Return what autocast computed as float32; other tensors are returned as they are."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def read_loss(value: Tensor) -> float:
    """Return a loss to add up: a number, or on a GPU a tensor there, so that no step waits for it.

    Whoever has added them up converts the sum to a number, which waits once.
    """
    if value.is_cpu:
        return value.item()
    # Apple's devices have no float64
    there: Any = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
    return there  # type: ignore[no-any-return]
