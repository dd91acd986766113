"""Trackers: other programs that receive a run's numbers. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..core.errors import ConfigError, choose
from ..runs.summary import Summary
from .points import Point

CLASSES = {  # name of the file, of the --track option and of the pip extra: the class
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "wandb": "WandB",
}


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers see it; ``config`` is flat, as in ``{"training.lr": 0.01}``."""

    name: str
    folder: Path
    config: dict[str, bool | int | float | str]


@runtime_checkable
class Tracker(Protocol):
    """Receives all numbers of a run, from the first round on.

    After a resume it receives the earlier ones again: if it still has them, it must skip them.
    """

    def begin(self, run: TrackedRun) -> None: ...

    def log(self, point: Point) -> None: ...

    def end(self, summary: Summary | None) -> None:
        """End the run; ``None`` means that it did not finish, or that this tracker failed."""


NamedTracker = tuple[str, Tracker]


def select_trackers(track: Sequence[str | Tracker]) -> list[NamedTracker]:
    """Load the trackers, given by name or as objects, each with a name for messages."""
    track = [track] if isinstance(track, str) else track
    asked = [t for i, t in enumerate(track) if t not in track[:i]]
    return [
        (t, load_tracker(t)) if isinstance(t, str) else (type(t).__name__, check_tracker(t))
        for t in asked
    ]


def load_tracker(name: str) -> Tracker:
    """Load the tracker of that name; only now is its package imported."""
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
