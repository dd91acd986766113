"""Send a run's events to trackers; drop a tracker that fails, and continue the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..runs.events import Event
from ..runs.summary import Summary
from . import NamedTracker, TrackedRun, Tracker
from .points import PointBuilder


@contextmanager
def follow_run(
    trackers: Sequence[NamedTracker], run: TrackedRun, warn: Callable[[str], None]
) -> Iterator[RunFollower]:
    """Yield a hook that sends the run's events to its trackers; on an error, end them."""
    follower = RunFollower(trackers, run, warn)
    try:
        yield follower
    except BaseException:
        if follower.begun:
            follower.call_each(lambda tracker: tracker.end(None))
        raise


class RunFollower:
    """Sends each event to the trackers of a run."""

    def __init__(
        self, trackers: Sequence[NamedTracker], run: TrackedRun, warn: Callable[[str], None]
    ) -> None:
        self.trackers, self.run, self.warn = list(trackers), run, warn
        self.point_builder, self.begun = PointBuilder(), False

    def __call__(self, event: Event) -> None:
        """Send an event, which must be recorded already."""
        if not self.begun:
            self.begun = True
            self.call_each(lambda tracker: tracker.begin(self.run), ending=False)
        if self.trackers and (point := self.point_builder.convert_event(event)) is not None:
            self.call_each(lambda tracker: tracker.log(point))

    def end(self, summary: Summary) -> None:
        """Tell the trackers that the run is finished."""
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
                    " the tracker, even after it has finished, to write what is missing"
                )
