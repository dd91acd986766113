"""Hooks, which see every event of a run and may stop it, and the display of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..core.files import clean_line
from ..core.status_line import STDERR, LogLines, NotebookLine, format_seconds
from ..runs.curves import compute_accuracy
from ..runs.events import Event, Measure, get_start, measure_validation, select_evaluations

COMPARED_AT = (0.25, 0.5, 0.75)  # fractions of all rounds after which trials are compared
MIN_RUNS = 4  # trials that must have reached a round before their median becomes its limit

Limits = Mapping[int, float]  # round -> validation score below which a trial is abandoned


@dataclass(frozen=True)
class Stop:
    """The value that a hook returns to stop its run.

    The run finishes the current round, evaluates the last state and writes its result. With
    ``abandon``, it stops at once, without a result.
    """

    reason: str
    abandon: bool = False


Hook = Callable[[Event], Stop | None]
"""Called with every event of a run, in order; a resumed run starts with the recorded events."""


class AbandonedError(Exception):
    """Raised when a hook abandons a run; the search that set the hook catches it."""


class Hooks:
    """All hooks of one run: passes each event to every hook, and keeps the first ``Stop``."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks, self.stop = list(hooks), None

    stop: Stop | None

    def __call__(self, event: Event) -> None:
        """Pass an event to all hooks; raise AbandonedError if one of them abandons the run."""
        for hook in self.hooks:
            found = hook(event)
            if isinstance(found, Stop) and self.stop is None:
                self.stop = found
        if self.stop is not None and self.stop.abandon:
            raise AbandonedError(self.stop.reason)

    def get_reason(self) -> str:
        """Return the reason to stop the run; an empty string if no hook has stopped it."""
        return "" if self.stop is None else self.stop.reason


@dataclass
class ValidationRule:
    """Base class of hooks that stop a run because of its score on validation examples."""

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
        """Return a ``Stop`` if the validation score after ``t`` rounds is a reason to stop the run."""
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
        for due, limit in self.limits.items():
            if t >= due and due not in self.passed:
                self.passed.add(due)
                if self.best < limit:
                    self.stopped = {"round": t, "accuracy": self.best, "limit": limit}
                    return Stop("below the median of earlier trials", abandon=True)
        return None


def list_comparison_rounds(rounds: int) -> list[int]:
    """List the rounds after which a search compares trials and abandons the worse ones."""
    return sorted({max(1, round(part * rounds)) for part in COMPARED_AT} - {rounds})


def compute_median_limits(
    rounds: int, earlier: Sequence[Sequence[Event]], by: Measure
) -> dict[int, float]:
    """Return the limit after each round of comparison: the median score of earlier trials."""
    limits = {}
    for t in list_comparison_rounds(rounds):
        reached = [b for events in earlier if (b := find_best_score(events, by, t)) is not None]
        if len(reached) >= MIN_RUNS:
            limits[t] = median(reached)
    return limits


def find_best_score(events: Sequence[Event], by: Measure, t: int) -> float | None:
    """Return a trial's best validation score up to its first evaluation at or after round ``t``.

    Return None if there is no such evaluation.
    """
    if not events:
        return None
    examples, best = sum(get_start(events).get("validation", [])), 0.0
    for event in select_evaluations(events):
        score = measure_validation(event, by, examples)
        if score is None:
            continue
        best = max(best, score)
        if event["t"] >= t:
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
        """Show a description of the current activity until the next event; start timing rounds."""
        self.phase = phase
        self._round_ends.clear()
        self.on_change(self)

    def estimate_seconds_left(self) -> float | None:
        """Estimate the remaining time of the run from the mean time of its rounds.

        The first round is used only while it is the only one, because it includes starting the workers.
        """
        if not self._round_ends:
            return None
        (first, begun), (last, now) = self._round_ends[0], self._round_ends[-1]
        if last == first:
            return (now - self.begun) * (self.rounds - last)
        return (now - begun) / (last - first) * (self.rounds - last)

    def describe(self) -> str:
        """Return the progress of the run as one line of text."""
        spent = format_seconds(self.clock() - self.begun)
        if self.finished:
            rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
            return f"{self.label}: {rounds}, G {self.G}, P {self.P}, {spent}"
        left = self.estimate_seconds_left()
        parts = [f"round {self.done}/{self.rounds}", f"G {self.G}", f"P {self.P}", self.phase]
        times = [f"{spent} so far", "" if left is None else f"{format_seconds(left)} left"]
        return f"{self.label}: {', '.join(filter(None, [*parts, *times]))}"


def format_accuracy(correct: Sequence[float | None], test_sizes: Sequence[int]) -> str:
    """Format the accuracy over all test examples in percent, for the display of progress."""
    return f"{100 * compute_accuracy(correct, test_sizes):.2f}"


class Display:
    """Shows the progress of runs; this base class shows nothing."""

    def start(self) -> None:
        """Start to display progress."""

    def update(self, status: RunStatus) -> None:
        """Show that a run has started, or that its status has changed."""

    def stop(self, finished: bool = False) -> None:
        """Stop displaying progress; with ``finished``, show the final state of all runs."""


class RunsProgress:
    """The progress of several runs, shown on one display."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def begin_run(self, label: str, rounds: int, test_sizes: Sequence[int] = ()) -> RunStatus:
        """Add a run to the display; return the hook that follows its events."""
        status = RunStatus(label, rounds, test_sizes, self.display.update)
        self.display.update(status)
        return status

    def stop(self) -> None:
        self.display.stop()


class BarDisplay(Display):
    """A display with a progress bar for every run, on a terminal."""

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


class LineDisplay(Display):
    """A display with one line about all runs: updated in a notebook, printed every 30 seconds in a log."""

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
        """Return the line: how many runs are finished, if there are several, and the progress of the others."""
        if not self.statuses:
            return "starting"
        if len(self.statuses) == 1:
            return self.statuses[0].describe()
        running = [s for s in self.statuses if not s.finished]
        count = len(self.statuses) - len(running)
        finished = f"{count} run{'s' * (count != 1)} finished"
        return "; ".join([finished, *(s.describe() for s in running[:SHOWN_RUNS])])

    def compute_fraction(self) -> float:
        """Return the completed fraction of the rounds of all runs."""
        rounds = sum(s.rounds for s in self.statuses)
        return sum(s.done for s in self.statuses) / rounds if rounds else 0.0


@contextmanager
def show_progress(show: bool = True) -> Iterator[RunsProgress]:
    """Show the progress of runs on a terminal, in a notebook or in a log, inside the ``with`` block."""
    display = choose_display(show)
    display.start()
    try:
        yield RunsProgress(display)
    except BaseException:
        display.stop()
        raise
    display.stop(finished=True)


def choose_display(show: bool) -> Display:
    """Return the display of progress that suits stderr: a terminal, a notebook or a log."""
    if not show:
        return Display()
    if STDERR.is_jupyter or not STDERR.is_terminal:
        return LineDisplay(notebook=STDERR.is_jupyter)
    return BarDisplay()
