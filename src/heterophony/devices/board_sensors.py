"""What a device measures on its board: memory, CPU time, temperature, and energy where /sys tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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
        """Return the numbers that a device reports; what the board does not tell is left out."""
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
