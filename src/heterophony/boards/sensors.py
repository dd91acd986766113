"""What a board measures: memory, CPU time, temperature, and energy where /sys reports it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..core.errors import ConfigError

SAMPLE_SECONDS = 1.0  # between two readings of the power
ReadWatts = Callable[[], float]


class BoardSensors:
    """Reads the sensors of the board that this process runs on; ``root`` has its proc and sys."""

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self.root, self.clock = root, clock
        self.start = clock()
        self.peak = 0
        self.counters = list(root.glob("sys/class/powercap/intel-rapl:[0-9]/energy_uj"))
        self.last_counts = {path: self.read_number(path) for path in self.counters}
        self.read_watts = None if self.counters else find_power_sensor(root)
        self.joules = 0.0
        self.sampled_at = self.start
        self.lock = threading.Lock()
        if self.read_watts is not None:
            threading.Thread(target=self.sample_repeatedly, name="power", daemon=True).start()

    def read(self) -> dict[str, float]:
        """Return the numbers that a board reports; what the board does not tell is left out."""
        out = {"seconds": self.clock() - self.start, "cpu_seconds": time.process_time()}
        if (peak := self.read_status_bytes("VmHWM")) is not None:
            self.peak = max(self.peak, peak)  # the kernel's may have been reset
            out["peak_bytes"] = self.peak
        if (heat := self.read_temperature()) is not None:
            out["celsius"] = heat
        if self.counters or self.read_watts is not None:
            out["joules"] = self.update_energy()
        return out

    def read_status_bytes(self, key: str) -> int | None:
        """Return a line of this process's memory, as VmRSS or VmHWM (its peak)."""
        with suppress(OSError, ValueError, IndexError):
            for line in (self.root / "proc/self/status").read_text().splitlines():
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
        return None

    def read_temperature(self) -> float | None:
        """Return the highest temperature of all zones, in °C."""
        zones = self.root.glob("sys/class/thermal/thermal_zone*/temp")
        found = [n / 1000 for zone in zones if (n := self.read_number(zone)) is not None]
        return max(found, default=None)

    def update_energy(self) -> float:
        """Add the energy since the last reading; return the sum in joules."""
        with self.lock:
            for path in self.counters:
                before, now = self.last_counts[path], self.read_number(path)
                if before is not None and now is not None:
                    self.joules += max(0.0, now - before) / 1e6  # a counter that wrapped adds none
                self.last_counts[path] = now
            if self.read_watts is not None:
                now = self.clock()
                with suppress(OSError, ValueError):
                    self.joules += self.read_watts() * (now - self.sampled_at)
                self.sampled_at = now
            return self.joules

    def sample_repeatedly(self) -> None:
        while True:
            time.sleep(SAMPLE_SECONDS)
            self.update_energy()

    @staticmethod
    def read_number(path: Path) -> float | None:
        with suppress(OSError, ValueError):
            return float(path.read_text())
        return None


def find_power_sensor(root: Path) -> ReadWatts | None:
    """Return a function that reads the board's power; None if it has no sensor that we know.

    Jetson boards have an INA3221, whose first channel is the whole board: under JetPack 4 its power
    in mW, later its voltage and current. Others may have a power of hwmon, in µW.
    """
    for path in sorted(root.glob("sys/bus/i2c/drivers/ina3221x/*/iio:device*/in_power0_input")):
        return lambda: float(path.read_text()) / 1e3
    for volts in sorted(root.glob("sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*/in1_input")):
        amperes = volts.with_name("curr1_input")
        if amperes.exists():
            return lambda: float(volts.read_text()) * float(amperes.read_text()) / 1e6
    for path in sorted(root.glob("sys/class/hwmon/hwmon*/power1_input")):
        return lambda: float(path.read_text()) / 1e6
    return None


RESERVE = 32 << 20  # that must stay free, for messages and the system
MAX_CLIENTS = 1024  # of one board, by the protocol
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
    """Reset the kernel's peak memory counter of this process, where that is allowed."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
