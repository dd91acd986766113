"""Hooks: functions that see every event of a run, and may stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..runs.events import Event, Measure, get_start, measure_validation, select_evaluations

CHECKPOINTS = (0.25, 0.5, 0.75)  # of the rounds
MIN_RUNS = 4  # that must have reached a checkpoint before their median is a limit

Limits = Mapping[int, float]  # by round: the validation score below which a trial ends


@dataclass(frozen=True)
class Stop:
    """What a hook returns to stop its run.

    The run finishes the round in progress, evaluates its last state and writes its result. With
    ``abandon`` it ends at once, without a result.
    """

    reason: str
    abandon: bool = False


Hook = Callable[[Event], Stop | None]
"""Called with every event of a run, in order; a resumed run begins with the recorded events."""


class AbandonedError(Exception):
    """Raised by a run that a hook abandons; caught by the search that the hook belongs to."""


class Hooks:
    """The hooks of one run: passes every event to each of them, and keeps the first stop."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks, self.stop = list(hooks), None

    stop: Stop | None

    def __call__(self, event: Event) -> None:
        """Pass on an event; raise AbandonedError if a hook abandons the run."""
        for hook in self.hooks:
            found = hook(event)
            if isinstance(found, Stop) and self.stop is None:
                self.stop = found
        if self.stop is not None and self.stop.abandon:
            raise AbandonedError(self.stop.reason)

    def get_reason(self) -> str:
        """Return why the run is to stop; an empty text if it is not."""
        return "" if self.stop is None else self.stop.reason


@dataclass
class Patience:
    """Stops a run after ``patience`` evaluations in a row without a better validation score."""

    patience: int
    by: Measure = "P"
    examples: int = 0
    best: float = -1.0
    waited: int = 0

    def __call__(self, event: Event) -> Stop | None:
        if event["event"] == "start":
            self.examples = sum(event.get("validation", []))
        if event["event"] != "evaluation":
            return None
        score = measure_validation(event, self.by, self.examples)
        if score is None:
            return None
        self.waited = 0 if score > self.best else self.waited + 1
        self.best = max(self.best, score)
        if self.waited < self.patience:
            return None
        return Stop(
            f"no better {self.by} on validation examples in {self.waited} evaluations"
            f" (stop.patience)"
        )


@dataclass
class MedianRule:
    """Abandons a trial whose validation score is below the median of earlier trials."""

    by: Measure
    limits: Limits
    examples: int = 0
    best: float = 0.0
    passed: set[int] = field(default_factory=set)
    stopped: dict[str, float] | None = None  # after which round, at which score, below which limit

    def __call__(self, event: Event) -> Stop | None:
        if event["event"] == "start":
            self.examples = sum(event.get("validation", []))
        if event["event"] != "evaluation":
            return None
        score = measure_validation(event, self.by, self.examples)
        if score is None:
            return None
        self.best, t = max(self.best, score), event["t"]
        for checkpoint, limit in self.limits.items():
            if t >= checkpoint and checkpoint not in self.passed:
                self.passed.add(checkpoint)
                if self.best < limit:
                    self.stopped = {"round": t, "accuracy": self.best, "limit": limit}
                    return Stop("below the median of earlier trials", abandon=True)
        return None


def list_checkpoints(rounds: int) -> list[int]:
    """List the rounds at which trials are compared."""
    return sorted({max(1, round(part * rounds)) for part in CHECKPOINTS} - {rounds})


def compute_limits(
    rounds: int, earlier: Sequence[Sequence[Event]], by: Measure
) -> dict[int, float]:
    """Compute the limit at each checkpoint: the median of the scores of earlier trials."""
    limits = {}
    for checkpoint in list_checkpoints(rounds):
        reached = [b for events in earlier if (b := find_best(events, by, checkpoint)) is not None]
        if len(reached) >= MIN_RUNS:
            limits[checkpoint] = median(reached)
    return limits


def find_best(events: Sequence[Event], by: Measure, checkpoint: int) -> float | None:
    """Find the best validation score up to the first evaluation at or after a checkpoint."""
    if not events:
        return None
    examples, best = sum(get_start(events).get("validation", [])), 0.0
    for event in select_evaluations(events):
        score = measure_validation(event, by, examples)
        if score is None:
            continue
        best = max(best, score)
        if event["t"] >= checkpoint:
            return best
    return None
