"""Report what each device did in a round: times, bytes, and what its board measured."""

from __future__ import annotations

from collections.abc import Mapping

from ..runs.event_parts import DeviceRound
from .protocol.server_session import ServerSession

Metrics = Mapping[str, float]
MAX_VALUE = 1e15  # a device may report anything


class RoundReport:
    """Takes the state of all devices when a round begins, and compares when it ends."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.bytes: dict[str, tuple[int, int]] = {}
        self.metrics: dict[str, Metrics] = {}
        self.last: dict[str, DeviceRound] = {}

    def begin(self, now: float) -> None:
        self.session.stats.timeline.begin(now)
        self.bytes = {d: (c.bytes_down, c.bytes_up) for d, c in self.session.stats.counters.items()}
        self.metrics = {d: record.metrics for d, record in self.session.registry.devices.items()}

    def end(self, now: float) -> None:
        """Describe the round for all devices that hold clients of the run."""
        stats = self.session.stats
        self.last = {}
        for device in sorted(set(self.session.registry.device_of_client.values())):
            counters, record = stats.get_counters(device), self.session.registry.devices.get(device)
            down, up = self.bytes.get(device, (0, 0))
            metrics = compare_metrics(
                self.metrics.get(device, {}), record.metrics if record else {}
            )
            self.last[device] = stats.timeline.describe(
                device, now, counters.bytes_down - down, counters.bytes_up - up, metrics
            )


def compare_metrics(before: Metrics, after: Metrics) -> dict[str, float]:
    """Return what a device measured since its last report before the round.

    Seconds and joules are counted from the device's start; smaller ones are of a new start.
    """
    if not after or after == before:
        return {}
    if after.get("seconds", 0.0) < before.get("seconds", 0.0):
        before = {}
    out = {k: after[k] for k in ("peak_bytes", "celsius", "clients_possible") if k in after}
    elapsed = after.get("seconds", 0.0) - before.get("seconds", 0.0)
    if elapsed > 0 and "cpu_seconds" in after:
        spent = after["cpu_seconds"] - before.get("cpu_seconds", 0.0)
        out["cpu_share"] = round(spent / elapsed, 3)
    if "joules" in after:
        out["joules"] = round(after["joules"] - before.get("joules", 0.0), 1)
    return {k: v for k, v in out.items() if 0 <= v <= MAX_VALUE}
