"""Exact counts of what each device did since this start of the server. No I/O, no clock.

Nothing here grows with what a device sends: reasons are cut, and devices that were not admitted
share one set of counters when there are many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .message_fields import to_single_line
from .messages import Done, Task
from .rate_limited_log import RateLimitedLog
from .round_timeline import RoundTimeline

MAX_REASON_LENGTH = 300  # characters
MAX_UNADMITTED_DEVICES = 64  # that have counters of their own
MAX_LISTED_CLIENTS = 12  # in a line of the log
MAX_REPORTED_SECONDS = 1e9


class RecordFact(Protocol):
    """Takes a fact for the journal: its kind, the device, and details."""

    def __call__(self, kind: str, device: str = "-", **details: Any) -> None: ...


def ignore_fact(kind: str, device: str = "-", **details: Any) -> None:
    """Keep no journal."""


@dataclass
class DeviceCounters:
    """The counts of one device, or of all unadmitted devices beyond the limit."""

    admitted: bool = False  # it holds clients of the run
    state: str = "arriving"  # or expected, here, gone, refused, shut_out
    since: float | None = None  # in the server's own time
    bytes_down: int = 0
    bytes_up: int = 0
    tasks: int = 0  # whose replies were accepted
    seconds: float = 0.0  # of work on them, as the device reports
    refused: int = 0  # rejected replies and failed tasks
    wrong: int = 0  # invalid messages and refused Hellos
    reconnects: int = 0
    last_reason: str = ""  # of the last refusal or invalid message

    @property
    def problems(self) -> int:
        return self.refused + self.wrong


class DeviceStats:
    """The counters of all devices; the caller sets ``now`` before each message."""

    def __init__(self, expected: Iterable[str], now: float = 0.0) -> None:
        self.now, self.log = now, RateLimitedLog()
        self.record_fact: RecordFact = ignore_fact  # the caller may keep a journal
        self.counters = {d: DeviceCounters(True, "expected") for d in sorted(set(expected))}
        self.other_counters = DeviceCounters()
        self.timeline = RoundTimeline()
        self.foreign_messages = 0  # on topics that belong to no device of the run

    def get_counters(self, device: str) -> DeviceCounters:
        if device not in self.counters:
            unadmitted = sum(not c.admitted for c in self.counters.values())
            if unadmitted >= MAX_UNADMITTED_DEVICES:
                return self.other_counters
            self.counters[device] = DeviceCounters(since=self.now)
        return self.counters[device]

    # Connections ----------------------------------------------------------------------------
    def record_welcome(self, device: str, clients: Sequence[str], returned: bool) -> None:
        """Record that a device takes part; ``returned`` if it was away or has restarted."""
        counters = self.get_counters(device)
        if counters is self.other_counters:
            counters = self.counters[device] = DeviceCounters()
        counters.admitted = True
        counters.reconnects += returned
        if returned or counters.state != "here":
            more = " …" if len(clients) > MAX_LISTED_CLIENTS else ""
            listed = ", ".join(clients[:MAX_LISTED_CLIENTS]) + more
            verb = "reconnected" if returned else "connected"
            self.log_line(device, f"device {device} {verb} (clients {listed})")
            self.record_fact("joined", device, clients=list(clients))
            counters.state, counters.since = "here", self.now

    def record_return(self, device: str) -> None:
        """Record that a device reconnected without a restart."""
        counters = self.get_counters(device)
        counters.reconnects += 1
        counters.state, counters.since = "here", self.now
        self.log_line(device, f"device {device} reconnected")
        self.record_fact("returned", device)

    def record_departure(self, device: str) -> None:
        counters = self.get_counters(device)
        if counters.state != "gone":
            if counters.state in ("here", "arriving"):
                self.log_line(device, f"device {device} disconnected")
                self.record_fact("left", device)
            counters.state, counters.since = "gone", self.now

    def record_arrival(self, device: str) -> None:
        """Record that a device is connected and not (yet) welcomed."""
        counters = self.get_counters(device)
        if counters.state in ("expected", "gone"):
            counters.state, counters.since = "arriving", self.now

    def record_refusal(self, device: str, why: str) -> None:
        """Record that a Hello was refused; a device that takes part already continues to."""
        counters = self.get_counters(device)
        if counters.state not in ("here", "refused"):
            counters.state, counters.since = "refused", self.now
        counters.wrong += 1
        self.record_problem(counters, device, f"device {device} is refused", why)

    def record_shut_out(self, device: str, why: str) -> None:
        """Record that nothing of a device is taken any more."""
        counters = self.get_counters(device)
        counters.state, counters.since = "shut_out", self.now
        counters.wrong += 1
        counters.last_reason = to_single_line(why)[:MAX_REASON_LENGTH]
        # once per enrolled device, so it needs no limit; its flood has used up that of its lines
        self.log.lines.append(f"device {device} is shut out: {counters.last_reason}")
        self.record_fact("shut_out", device, why=counters.last_reason)

    # Messages and work ----------------------------------------------------------------------
    def count_received(self, device: str, size: int) -> None:
        self.get_counters(device).bytes_up += size

    def count_sent(self, device: str, size: int) -> None:
        self.get_counters(device).bytes_down += size

    def record_taken_reply(self, device: str, task: Task, done: Done) -> None:
        counters = self.get_counters(device)
        counters.tasks += 1
        counters.seconds += min(max(done.seconds, 0.0), MAX_REPORTED_SECONDS)
        self.timeline.record_taken(device, task, done, self.now)

    def record_rejected_reply(self, device: str, why: str) -> None:
        """Record that a reply was rejected, or that a task failed."""
        counters = self.get_counters(device)
        counters.refused += 1
        self.record_problem(counters, device, f"device {device}: task failed", why)

    def record_invalid_message(self, device: str, why: object) -> None:
        counters = self.get_counters(device)
        counters.wrong += 1
        self.record_problem(counters, device, f"device {device}: invalid message", why)

    def record_problem(self, counters: DeviceCounters, device: str, what: str, why: object) -> None:
        counters.last_reason = to_single_line(why)[:MAX_REASON_LENGTH]
        self.log_line(device, f"{what}: {counters.last_reason}")
        self.record_fact("refused", device, why=counters.last_reason)

    def log_line(self, device: str, line: str) -> None:
        """Log a line; all unadmitted devices share one rate limit."""
        subject = device if self.get_counters(device).admitted else ""
        self.log.add_line(subject, line, self.now)
