"""How many workers share a GPU: measured jobs decide, by the memory that they needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .compute import Compute
from .resident_examples import CACHE_BYTES

MEMORY_SHARE = 0.95  # of a GPU's memory, divided evenly among the workers that share it
MARGIN = 1.25  # times the measured peak: other clients may have longer sequences or larger memories
CONTEXT_BYTES = 1 << 29  # what a process takes on a GPU before its first tensor, at most
DEFAULT_WORKERS_PER_GPU = 4  # where torch cannot tell how much memory there is


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a GPU as a worker sees it after a job, in bytes."""

    peak: int  # that torch reserved for this worker at most
    reserved: int  # by torch, for this worker, now
    free: int
    total: int

    def count_fitting_workers(self) -> int:
        """Count the workers that fit: what is free without this one, by what each may need."""
        outside = max(0, self.total - self.free - self.reserved)  # also of other programs
        context = min(outside, CONTEXT_BYTES)
        available = self.free + self.reserved + context
        need = MARGIN * self.peak + CACHE_BYTES + context
        return max(1, int(MEMORY_SHARE * available / need))


def measure_memory(compute: Compute) -> MemoryUse | None:
    """Measure the memory of the device that this process computes on; None if torch cannot tell."""
    module: Any = None if compute.is_cpu else torch.get_device_module(compute.device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(compute.device)
    peak, now = (f(compute.device) for f in (module.max_memory_reserved, module.memory_reserved))
    return MemoryUse(peak, now, free, total)


def limit_memory(compute: Compute, sharing: int) -> None:
    """Let this process use its part of a GPU: a worker that needs more fails, not its neighbours."""
    if compute.device.type == "cuda" and sharing > 1:
        torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE / sharing, compute.device)
