"""End a device with a clear line before its board runs out of memory, by what its jobs needed.

A device runs one job at a time: it needs the memory of one job, and the data of all its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..core.errors import ConfigError

RESERVE = 32 << 20  # that must stay free, for messages and the system
MAX_CLIENTS = 1024  # of one device, by the protocol
ReadBytes = Callable[[], int]


class MemoryGuard:
    """Measures each job, and refuses to begin one that may not fit."""

    def __init__(
        self,
        limit: int | None,
        clients: int,
        data_bytes: int,
        read_used: ReadBytes,
        read_free: ReadBytes,
    ) -> None:
        self.limit = limit  # bytes that the process may use; None: what the board has
        self.clients, self.data_bytes = clients, data_bytes
        self.read_used, self.read_free = read_used, read_free
        self.job_bytes = 0  # the most that a job has needed so far
        self.before = 0

    def compute_free(self) -> int:
        """Return how many more bytes the process may use."""
        free = self.read_free()
        return free if self.limit is None else min(free, self.limit - self.read_used())

    def begin_job(self, client: str) -> None:
        """Raise one line if the next job may not fit."""
        self.before = self.read_used()
        free = self.compute_free()
        if free < self.job_bytes + RESERVE:
            needed = f"a job needs {max(self.job_bytes, RESERVE) / 1e6:.0f} MB"
            measured = ", as measured" if self.job_bytes else " at least"
            raise ConfigError(
                f"too little memory for client {client}: {needed}{measured}, {max(free, 0) / 1e6:.0f} MB are"
                f" left; by that, this board can hold {self.count_possible_clients()} of such clients, not"
                f" {self.clients}: give it fewer, or end other programs"
            )

    def end_job(self, peak: int) -> None:
        """Learn from a job whose process reached this peak."""
        self.job_bytes = max(self.job_bytes, peak - self.before)

    def count_possible_clients(self) -> int:
        """Return how many clients with as much data fit, beside one job."""
        per_client = max(1, self.data_bytes // max(1, self.clients))
        room = self.compute_free() - self.job_bytes - RESERVE
        return min(MAX_CLIENTS, max(0, self.clients + room // per_client))


def read_free_bytes() -> int:
    """Return the memory that the system can still give, within the limit of our control group."""
    free = 1 << 62
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().split("::", 1)[
            1
        ].strip().lstrip("/")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            free = min(free, int(most) - int((group / "memory.current").read_text()))
    return free


def reset_peak() -> None:
    """Let the kernel measure the peak of this process anew, where it allows that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
