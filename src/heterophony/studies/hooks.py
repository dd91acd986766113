"""Hooks, which see every event of a run and may stop it, and the display of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..core.files import clean_line
from ..core.status_line import STDERR, LogLines, NotebookLine, format_seconds
from ..runs.curves import compute_accuracy
from ..runs.events import Event, Measure, get_start, measure_validation, select_evaluations

CHECKPOINTS = (0.25, 0.5, 0.75)  # fractions of all rounds
MIN_RUNS = 4  # trials that must have reached a checkpoint before their median becomes a limit

Limits = Mapping[int, float]  # round -> validation score below which a trial is abandoned


@dataclass(frozen=True)
class Stop:
    """Return value of a hook that stops its run.

    The run finishes the round in progress, evaluates its last state and writes its result. With
    ``abandon`` it stops at once, without a result.
    """

    reason: str
    abandon: bool = False


Hook = Callable[[Event], Stop | None]
"""Called with every event of a run, in order; a resumed run starts with the recorded events."""


class AbandonedError(Exception):
    """Raised by a run that a hook abandons; caught by the search to which the hook belongs."""


class Hooks:
    """The hooks of one run; each event is passed to all of them, and the first stop is kept."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks, self.stop = list(hooks), None

    stop: Stop | None

    def __call__(self, event: Event) -> None:
        """Pass an event to all hooks; raise AbandonedError if one abandons the run."""
        for hook in self.hooks:
            found = hook(event)
            if isinstance(found, Stop) and self.stop is None:
                self.stop = found
        if self.stop is not None and self.stop.abandon:
            raise AbandonedError(self.stop.reason)

    def get_reason(self) -> str:
        """Return why the run must stop; an empty text if it need not."""
        return "" if self.stop is None else self.stop.reason


@dataclass
class ValidationRule:
    """Base of hooks that judge a run by its scores on validation examples."""

    by: Measure
    examples: int = field(default=0, init=False)
    best: float = field(default=-1.0, init=False)

    def __call__(self, event: Event) -> Stop | None:
        if event["event"] == "start":
            self.examples = sum(event.get("validation", []))
        if event["event"] != "evaluation":
            return None
        score = measure_validation(event, self.by, self.examples)
        return None if score is None else self.judge(event["t"], score)

    def judge(self, t: int, score: float) -> Stop | None:
        """Judge the validation score after ``t`` rounds; return a Stop to stop the run."""
        raise NotImplementedError


@dataclass
class Patience(ValidationRule):
    """Stop a run after ``patience`` consecutive evaluations without a better validation score."""

    patience: int
    waited: int = 0

    def judge(self, t: int, score: float) -> Stop | None:
        self.waited = 0 if score > self.best else self.waited + 1
        self.best = max(self.best, score)
        if self.waited < self.patience:
            return None
        return Stop(
            f"no better {self.by} on validation examples in {self.waited} evaluations"
            f" (stop.patience)"
        )


@dataclass
class MedianRule(ValidationRule):
    """Abandon a trial whose validation score is below the median of earlier trials."""

    limits: Limits
    best: float = field(default=0.0, init=False)
    passed: set[int] = field(default_factory=set)
    # round, score and limit at which the trial was abandoned
    stopped: dict[str, float] | None = None

    def judge(self, t: int, score: float) -> Stop | None:
        self.best = max(self.best, score)
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


# Progress -----------------------------------------------------------------------------------------


Clock = Callable[[], float]
SHOWN_RUNS = 3  # how many concurrent runs one line shows


class RunStatus:
    """The progress of one run: round, G, P and time left; call it with every event."""

    def __init__(
        self,
        label: str,
        rounds: int,
        test_sizes: Sequence[int] = (),
        on_change: Callable[[RunStatus], None] = lambda status: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.label, self.rounds, self.on_change, self.clock = label, rounds, on_change, clock
        self.test_sizes = list(test_sizes)  # the first event of a new run contains them
        self.done, self.G, self.P, self.phase = 0, "–", "–", "starting"
        self.begun, self.has_started, self.finished = clock(), False, False
        self._round_ends = list[tuple[int, float]]()  # number of rounds done, and when

    def __call__(self, event: Event) -> None:
        self.has_started = True
        if event["event"] == "start":
            self.test_sizes = event["test"]
            self.phase = "first evaluation, round 1" if self.rounds else "first evaluation"
        elif event["event"] == "evaluation" and self.test_sizes:
            self.done = event["t"]
            if event["G"] is not None:
                self.G = format_accuracy(event["G"], self.test_sizes)
            if event["P"] is not None:  # not every algorithm measures P every time
                self.P = format_accuracy(event["P"], self.test_sizes)
        elif event["event"] == "round":
            self.done = event["t"] + 1
            self._round_ends.append((self.done, self.clock()))
            self.phase = "last evaluation" if self.done == self.rounds else ""
        elif event["event"] == "end":
            self.finished, self.phase = True, ""
        self.on_change(self)

    def end_early(self) -> None:
        """Show that the run was stopped before its last round."""
        self.finished, self.phase = True, "stopped early"
        self.on_change(self)

    def name_phase(self, phase: str) -> None:
        """Show what the run is doing until the next event; rounds are timed from now on."""
        self.phase = phase
        self._round_ends.clear()
        self.on_change(self)

    def estimate_seconds_left(self) -> float | None:
        """Estimate the remaining time from the mean time of a round.

        The first round is skipped once there are others, because it includes starting the workers.
        """
        if not self._round_ends:
            return None
        (first, begun), (last, now) = self._round_ends[0], self._round_ends[-1]
        if last == first:
            return (now - self.begun) * (self.rounds - last)
        return (now - begun) / (last - first) * (self.rounds - last)

    def describe(self) -> str:
        """Return the state of the run as one line of text."""
        spent = format_seconds(self.clock() - self.begun)
        if self.finished:
            rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
            return f"{self.label}: {rounds}, G {self.G}, P {self.P}, {spent}"
        left = self.estimate_seconds_left()
        parts = [f"round {self.done}/{self.rounds}", f"G {self.G}", f"P {self.P}", self.phase]
        times = [f"{spent} so far", "" if left is None else f"{format_seconds(left)} left"]
        return f"{self.label}: {', '.join(filter(None, [*parts, *times]))}"


def format_accuracy(correct: Sequence[float | None], test_sizes: Sequence[int]) -> str:
    return f"{100 * compute_accuracy(correct, test_sizes):.2f}"


class Display(Protocol):
    """Base of displays, which show the status of every run."""

    def start(self) -> None: ...

    def update(self, status: RunStatus) -> None:
        """Show that a run has started, or that its status has changed."""

    def stop(self, finished: bool = False) -> None:
        """Remove temporary output; if all runs are finished, show their final state."""


class RunsProgress:
    """The progress of several runs on one display."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def begin_run(self, label: str, rounds: int, test_sizes: Sequence[int] = ()) -> RunStatus:
        """Add a run to the display; return the hook that follows its events."""
        status = RunStatus(label, rounds, test_sizes, self.display.update)
        self.display.update(status)
        return status

    def stop(self) -> None:
        self.display.stop()


class NoDisplay:
    """Display that shows nothing."""

    def start(self) -> None: ...

    def update(self, status: RunStatus) -> None: ...

    def stop(self, finished: bool = False) -> None: ...


class BarDisplay:
    """Display with a bar for every run, on a terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("round {task.completed}/{task.total}"),
            TextColumn("G {task.fields[G]}  P {task.fields[P]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[phase]}"),
        )
        self.progress, self.tasks = Progress(*columns, console=STDERR), dict[RunStatus, TaskID]()

    def start(self) -> None:
        self.progress.start()

    def update(self, status: RunStatus) -> None:
        fields: dict[str, Any] = {"G": status.G, "P": status.P, "phase": status.phase}
        if status not in self.tasks:
            label = escape(clean_line(status.label))
            task = self.progress.add_task(label, total=status.rounds, **fields)
            self.tasks[status] = task
        self.progress.update(self.tasks[status], completed=status.done, **fields)

    def stop(self, finished: bool = False) -> None:
        self.progress.stop()


class LineDisplay:
    """Display with one line about all runs: updated in place in a notebook, else printed every 30 seconds."""

    def __init__(self, notebook: bool) -> None:
        self.statuses = list[RunStatus]()
        self.line = (
            NotebookLine(self.describe, self.compute_fraction)
            if notebook
            else LogLines(self.describe)
        )

    def start(self) -> None:
        self.line.start()

    def update(self, status: RunStatus) -> None:
        if status not in self.statuses:
            self.statuses.append(status)
        self.line.update()

    def stop(self, finished: bool = False) -> None:
        self.line.stop()
        if finished and any(s.has_started for s in self.statuses):
            self.line.print_line()

    def describe(self) -> str:
        """Return the line: the state of a single run, or the number of finished runs and the state of running ones."""
        if not self.statuses:
            return "starting"
        if len(self.statuses) == 1:
            return self.statuses[0].describe()
        running = [s for s in self.statuses if not s.finished]
        count = len(self.statuses) - len(running)
        finished = f"{count} run{'s' * (count != 1)} finished"
        return "; ".join([finished, *(s.describe() for s in running[:SHOWN_RUNS])])

    def compute_fraction(self) -> float:
        """Return the completed fraction of all rounds."""
        rounds = sum(s.rounds for s in self.statuses)
        return sum(s.done for s in self.statuses) / rounds if rounds else 0.0


@contextmanager
def show_progress(show: bool = True) -> Iterator[RunsProgress]:
    """Show the progress of runs on stderr, in the form that a terminal, notebook or log can display."""
    display = choose_display(show)
    display.start()
    try:
        yield RunsProgress(display)
    except BaseException:
        display.stop()
        raise
    display.stop(finished=True)


def choose_display(show: bool) -> Display:
    """Choose a display for a terminal, a notebook or a log."""
    if not show:
        return NoDisplay()
    if STDERR.is_jupyter or not STDERR.is_terminal:
        return LineDisplay(notebook=STDERR.is_jupyter)
    return BarDisplay()
