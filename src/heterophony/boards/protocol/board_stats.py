"""Lines for the server's terminal, limited so that no device can flood it. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...runs.events import DeviceRound
from .message_fields import to_single_line
from .messages import Done, Task

MAX_BURST_LINES = 5  # about one subject at once
SECONDS_PER_LINE = 10.0  # after a burst


@dataclass
class TokenBucket:
    """How many lines about one subject may follow; the allowance is refilled over time."""

    updated_at: float
    tokens: float = MAX_BURST_LINES
    suppressed: int = 0

    def try_take(self, now: float) -> bool:
        """Return whether a line is allowed now; count it as suppressed if not."""
        refill = (now - self.updated_at) / SECONDS_PER_LINE
        self.tokens, self.updated_at = min(MAX_BURST_LINES, self.tokens + refill), now
        if self.tokens < 1:
            self.suppressed += 1
            return False
        self.tokens -= 1
        return True


class RateLimitedLog:
    """Lines that were added and not read yet. The caller keeps the number of subjects small."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.buckets: dict[str, TokenBucket] = {}

    def add_line(self, subject: str, line: str, now: float) -> None:
        bucket = self.buckets.setdefault(subject, TokenBucket(now))
        if not bucket.try_take(now):
            return
        if suppressed := bucket.suppressed:
            line, bucket.suppressed = f"{line} (and {suppressed} more, left out)", 0
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


Interval = tuple[float, float]
MAX_SPANS = 3000  # of one device in one round; more are counted, not drawn


@dataclass
class DeviceTimeline:
    """One device in one round."""

    first_want: float | None = None
    last_want: float = 0.0
    announced: dict[str, float] = field(default_factory=dict)  # by task: when its reply was ready
    jobs: list[tuple[str, str, float, float]] = field(default_factory=list)  # as spans
    train: float = 0.0
    evaluate: float = 0.0


class RoundTimeline:
    """The devices of the current round, since ``begin``."""

    def __init__(self) -> None:
        self.start = 0.0
        self.devices: dict[str, DeviceTimeline] = {}

    def begin(self, now: float) -> None:
        self.start, self.devices = now, {}

    def get(self, device: str) -> DeviceTimeline:
        return self.devices.setdefault(device, DeviceTimeline())

    def record_want(self, device: str, now: float) -> None:
        """Record that a device asked for tensors of a task."""
        timeline = self.get(device)
        timeline.first_want = now if timeline.first_want is None else timeline.first_want
        timeline.last_want = now

    def record_done(self, device: str, task: str, now: float) -> None:
        """Record when a reply was announced for the first time."""
        self.get(device).announced.setdefault(task, now)

    def record_taken(self, device: str, task: Task, done: Done, now: float) -> None:
        """Record that a reply was accepted: its work, and the time it took to arrive."""
        timeline = self.get(device)
        ready = timeline.announced.get(task.id, now)
        work = "train" if task.job == "train" else "evaluate"
        if work == "train":
            timeline.train += done.seconds
        else:
            timeline.evaluate += done.seconds
        begun = max(self.start, ready - done.seconds)
        for what, a, b in ((work, begun, ready), ("send", ready, now)):
            if len(timeline.jobs) < MAX_SPANS:
                timeline.jobs.append((what, task.client, self.place(a), self.place(b)))

    def place(self, when: float) -> float:
        """Return the seconds since the round began."""
        return round(max(0.0, when - self.start), 3)

    def describe(
        self, device: str, now: float, sent: int, received: int, metrics: Mapping[str, float]
    ) -> DeviceRound:
        """Return the device's part of the round's event; ``metrics`` are what it reported itself."""
        timeline = self.get(device)
        spans = list(timeline.jobs)
        if timeline.first_want is not None:
            asked = self.place(timeline.first_want), self.place(timeline.last_want)
            spans.insert(0, ("receive", "", *asked))
        moving = [(s[2], s[3]) for s in spans if s[0] in ("receive", "send")]
        busy = measure_union((s[2], s[3]) for s in spans)
        out: DeviceRound = {
            "train": round(timeline.train, 3),
            "evaluate": round(timeline.evaluate, 3),
            "transfer": round(measure_union(moving), 3),
            "wait": round(max(0.0, now - self.start - busy), 3),
            "bytes_down": sent,
            "bytes_up": received,
            "spans": [list(span) for span in spans],
        }
        for name in ("peak_bytes", "celsius", "clients_possible", "cpu_share", "joules"):
            if name in metrics:
                out[name] = metrics[name]
        return out


def measure_union(intervals: Iterable[Interval]) -> float:
    """Return how long at least one of the intervals lasts."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(intervals):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


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
