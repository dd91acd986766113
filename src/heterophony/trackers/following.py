"""Send a run's events to trackers; a tracker that fails is dropped, and the run continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..runs.events import Event
from ..runs.summary import Summary
from . import NamedTracker, TrackedRun, Tracker
from .points import PointBuilder


@contextmanager
def follow_run(
    trackers: Sequence[NamedTracker],
    run: TrackedRun,
    recorded: Callable[[], Iterable[Event]],
    warn: Callable[[str], None],
) -> Iterator[RunFollower]:
    """Yield a follower that receives the run's events; on an error, end its trackers."""
    follower = RunFollower(trackers, run, recorded, warn)
    try:
        yield follower
    except BaseException:
        if follower.begun:
            follower.call_each(lambda tracker: tracker.end(None))
        raise


class RunFollower:
    """Sends each event to the trackers; with the first one also those ``recorded`` before a resume."""

    def __init__(
        self,
        trackers: Sequence[NamedTracker],
        run: TrackedRun,
        recorded: Callable[[], Iterable[Event]],
        warn: Callable[[str], None],
    ) -> None:
        self.trackers, self.run = list(trackers), run
        self.read_recorded, self.warn = recorded, warn
        self.point_builder, self.begun = PointBuilder(), False

    def __call__(self, event: Event) -> None:
        """Send an event, which must already be recorded."""
        if self.begun:
            self._log_event(event)
        else:
            self._begin()

    def end(self, summary: Summary) -> None:
        if not self.begun:  # no round was left to run
            self._begin()
        self.call_each(lambda tracker: tracker.end(summary))

    def _begin(self) -> None:
        self.begun = True
        self.call_each(lambda tracker: tracker.begin(self.run), ending=False)
        for event in self.read_recorded() if self.trackers else ():
            self._log_event(event)

    def _log_event(self, event: Event) -> None:
        if self.trackers and (point := self.point_builder.convert_event(event)) is not None:
            self.call_each(lambda tracker: tracker.log(point))

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
                    " the tracker, even after it has finished, to write what is missing"
                )
