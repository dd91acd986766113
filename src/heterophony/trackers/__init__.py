"""Trackers: programs that a run's numbers are also sent to. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core.errors import ConfigError, choose
from ..run.summary import Summary
from .points import Point

CLASSES = {  # file name, which is the name users write and that of the extra, and its class
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "wandb": "WandB",
}


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told first; ``config`` is flat, as in ``{"local.lr": 0.01}``."""

    name: str
    folder: Path
    config: dict[str, bool | int | float | str]


@runtime_checkable
class Tracker(Protocol):
    """Is told everything from the first round on, also where a run was resumed in between.

    So one that remembers what it was told before a resume must not write it again.
    """

    def begin(self, run: TrackedRun) -> None: ...

    def log(self, point: Point) -> None: ...

    def end(self, summary: Summary | None) -> None:
        """``None``: the run did not finish, or this tracker failed."""


NamedTracker = tuple[str, Tracker]


def select_trackers(track: Sequence[str | Tracker]) -> list[NamedTracker]:
    """The trackers asked for, by name or as objects of one's own, each with a name for people."""
    track = [track] if isinstance(track, str) else track
    asked = [t for i, t in enumerate(track) if t not in track[:i]]
    return [
        (t, load_tracker(t)) if isinstance(t, str) else (type(t).__name__, check_tracker(t))
        for t in asked
    ]


def load_tracker(name: str) -> Tracker:
    """The tracker behind a name; its package is imported only here."""
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
    if isinstance(tracker, type) or not isinstance(tracker, Tracker):
        raise ConfigError("track: must be names, or objects with begin, log and end")
    return tracker
