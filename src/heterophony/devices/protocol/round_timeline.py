"""What each device did in a round, and when, on the server's clock. No I/O, no clock of its own.

A device's clock may be wrong: only durations come from the device, and when a message arrived is
known here. A reply that is announced at ``a`` after ``s`` seconds of work was worked on from a-s to a.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...runs.event_parts import DeviceRound
from .messages import Done, Task

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
