"""Early stops: a run that does worse than most others before it ends before its last round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ..core.errors import FolderError
from ..core.files import read_json, write_json
from .events import EvaluationEvent, Event, Measure, get_start, select_evaluations

STOPPED_FILE = "stopped.json"  # in the run folder: after which round, and why
CHECKPOINTS = (0.25, 0.5, 0.75)  # of the rounds
MIN_RUNS = 4  # that must have reached a checkpoint before anything is compared with their median

Limits = Mapping[int, float]  # by round: the validation accuracy below which a run stops
Stop = Mapping[str, float]  # the round after which a run was stopped, its accuracy and the limit


class StopRunError(Exception):
    """Ends a run from within its listener; never shown to anybody."""


@dataclass
class EarlyStop:
    """Watches the events of one run; raises StopRunError where its accuracy is below a limit."""

    by: Measure
    limits: Limits
    examples: int = 0
    best: float = 0.0
    passed: set[int] = field(default_factory=set)
    stopped: Stop | None = None

    def observe(self, event: Event) -> None:
        """Take one event into account."""
        if event["event"] == "start":
            self.examples = sum(event.get("validation", []))
        if event["event"] != "evaluation":
            return
        value = measure_validation(event, self.by, self.examples)
        if value is None:
            return
        self.best, t = max(self.best, value), event["t"]
        for checkpoint, limit in self.limits.items():
            if t >= checkpoint and checkpoint not in self.passed:
                self.passed.add(checkpoint)
                if self.best < limit:
                    self.stopped = {"round": t, "accuracy": self.best, "limit": limit}
                    raise StopRunError


def measure_validation(event: EvaluationEvent, by: Measure, examples: int) -> float | None:
    """Return the validation accuracy of an evaluation; None if it has none."""
    if not examples:
        return None
    counts = event.get("G_valid") if by == "G" else event.get("P_valid")
    return None if counts is None else sum(c or 0.0 for c in counts) / examples


def list_checkpoints(rounds: int) -> list[int]:
    """List the rounds at which runs are compared."""
    return sorted({max(1, round(part * rounds)) for part in CHECKPOINTS} - {rounds})


def compute_limits(
    rounds: int, earlier: Sequence[Sequence[Event]], by: Measure
) -> dict[int, float]:
    """Compute the limit at each checkpoint: the median of what earlier runs had reached there."""
    limits = {}
    for checkpoint in list_checkpoints(rounds):
        reached = [b for events in earlier if (b := find_best(events, by, checkpoint)) is not None]
        if len(reached) >= MIN_RUNS:
            limits[checkpoint] = median(reached)
    return limits


def find_best(events: Sequence[Event], by: Measure, checkpoint: int) -> float | None:
    """Find the best validation accuracy up to the first evaluation at or after a checkpoint."""
    if not events:
        return None
    examples, best = sum(get_start(events).get("validation", [])), 0.0
    for event in select_evaluations(events):
        value = measure_validation(event, by, examples)
        if value is None:
            continue
        best = max(best, value)
        if event["t"] >= checkpoint:
            return best
    return None


def write_stop(folder: Path, stop: EarlyStop) -> None:
    """Record in the run folder that the run was stopped."""
    write_json(folder / STOPPED_FILE, stop.stopped)


def read_stop(folder: Path) -> Stop | None:
    """Read after which round a run was stopped; None if it was not."""
    path = folder / STOPPED_FILE
    if not path.is_file():
        return None
    content = read_json(path)
    keys = ("round", "accuracy", "limit")
    if not isinstance(content, dict) or not all(type(content.get(k)) in (int, float) for k in keys):
        raise FolderError(f"{path} is damaged: it does not say why the run was stopped")
    return content


def describe_stop(stop: Stop) -> str:
    """Say after which round a run was stopped, and why."""
    return (
        f"stopped after round {stop['round']:.0f}: {100 * stop['accuracy']:.2f} % is below the median"
        f" of earlier trials, {100 * stop['limit']:.2f} %"
    )
