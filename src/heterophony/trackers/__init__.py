"""Trackers: other programs that receive a run's numbers. A new tracker is a file, and a line of CLASSES."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core.errors import ConfigError, choose
from ..runs.events import Event
from ..runs.summary import Summary
from .points import Point, PointBuilder

CLASSES = {  # name of the file, --track value and pip extra: class
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "wandb": "WandB",
}


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run for trackers; ``config`` is flat, as in ``{"training.lr": 0.01}``."""

    name: str
    folder: Path
    config: dict[str, bool | int | float | str]


@runtime_checkable
class Tracker(Protocol):
    """Interface of trackers, which receive all numbers of a run.

    After a resume, a tracker receives the earlier numbers again and must skip those it already has.
    """

    def begin(self, run: TrackedRun) -> None:
        """Start to track a run, or continue to track it after a resume."""

    def log(self, point: Point) -> None:
        """Send the numbers of one step to the tracker."""

    def end(self, summary: Summary | None) -> None:
        """End the tracking; ``summary`` is None if the run did not finish, or if this tracker failed."""


NamedTracker = tuple[str, Tracker]


def select_trackers(track: Sequence[str | Tracker]) -> list[NamedTracker]:
    """Return the trackers that a user passed as names or objects, each with a name for messages."""
    track = [track] if isinstance(track, str) else track
    asked = [t for i, t in enumerate(track) if t not in track[:i]]
    return [
        (t, load_tracker(t)) if isinstance(t, str) else (type(t).__name__, check_tracker(t))
        for t in asked
    ]


def load_tracker(name: str) -> Tracker:
    """Import and create the tracker with this name; raise ConfigError if its package is missing."""
    class_name = choose(CLASSES, name, "--track")
    try:
        module = import_module(f".{name}", __name__)
    except ImportError:
        raise ConfigError(
            f"--track {name} needs {name}; install it with pip install 'heterophony[{name}]'"
        ) from None
    made: Tracker = getattr(module, class_name)()
    return made


def check_tracker(tracker: Tracker) -> Tracker:
    """Return the tracker; raise ConfigError if it is a class or lacks a method."""
    if isinstance(tracker, type) or not isinstance(tracker, Tracker):
        raise ConfigError("track: must be names, or objects with begin, log and end")
    return tracker


@contextmanager
def follow_run(
    trackers: Sequence[NamedTracker], run: TrackedRun, warn: Callable[[str], None]
) -> Iterator[RunFollower]:
    """Yield a hook that sends a run's events to trackers; after an error, end the tracking."""
    follower = RunFollower(trackers, run, warn)
    try:
        yield follower
    except BaseException:
        if follower.begun:
            follower.call_each(lambda tracker: tracker.end(None))
        raise


class RunFollower:
    """The hook that sends the numbers in each event of a run to its trackers."""

    def __init__(
        self, trackers: Sequence[NamedTracker], run: TrackedRun, warn: Callable[[str], None]
    ) -> None:
        self.trackers, self.run, self.warn = list(trackers), run, warn
        self.point_builder, self.begun = PointBuilder(), False

    def __call__(self, event: Event) -> None:
        """Send the numbers in a recorded event to the trackers."""
        if not self.begun:
            self.begun = True
            self.call_each(lambda tracker: tracker.begin(self.run), ending=False)
        if self.trackers and (point := self.point_builder.convert_event(event)) is not None:
            self.call_each(lambda tracker: tracker.log(point))

    def end(self, summary: Summary) -> None:
        """Send the finished run's summary to the trackers and end the tracking."""
        self.call_each(lambda tracker: tracker.end(summary))

    def call_each(self, call: Callable[[Tracker], None], ending: bool = True) -> None:
        """Call a function with each tracker; drop a tracker that fails, and try to end it."""
        for name, tracker in list(self.trackers):
            try:
                call(tracker)
            except Exception as error:  # other programs may raise anything
                self.trackers.remove((name, tracker))
                if ending:
                    with suppress(Exception):
                        tracker.end(None)
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self.warn(
                    f"{name} stopped tracking: {lines[0]}; the run continues; resume it with"
                    " the tracker, even after it has finished, to send the missing numbers"
                )
