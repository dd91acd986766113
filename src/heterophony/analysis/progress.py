"""How far runs got, told from as little of their folders as will do: there may be thousands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, StorageError
from ..core.files import read_json
from ..run.run_index import (
    CONFIG,
    EVENTS,
    RESULT,
    below,
    last_event,
)
from ..run.summary import Accuracy, Spread
from .runs import load


@dataclass(frozen=True)
class Standing:
    """One run, so far."""

    folder: Path
    state: str  # finished, how far it got, not begun, damaged, unreadable
    algorithm: str | None = None
    G: Accuracy | None = None
    P: Accuracy | None = None


def standings(path: Path) -> list[Standing]:
    """The runs at or below the path, newest first."""
    found = sorted(below(path), key=lambda folder: -(folder / CONFIG).stat().st_mtime_ns)
    return [standing(folder) for folder in found]


def standing(folder: Path) -> Standing:
    """How far a run got; one that cannot be read must not hide the others."""
    try:
        last = last_event(folder / EVENTS)
        if last is None:
            return Standing(folder, "not begun")
        if last["event"] == "end" and (folder / RESULT).is_file():
            return finished(folder)
        return underway(folder)
    except (FolderError, KeyError, TypeError):
        return Standing(folder, "damaged")
    except StorageError:
        return Standing(folder, "unreadable")


def finished(folder: Path) -> Standing:
    """From result.json alone: it has all that is asked, and the events are many times as long."""
    told = read_json(folder / RESULT)
    g, p = (told[k] and accuracy(told[k]) for k in "GP")
    return Standing(folder, "finished", told["algorithm"], g, p)


def accuracy(told: dict[str, Any]) -> Accuracy:
    last10 = Spread(told["last10"]["mean"], told["last10"]["std"])
    return Accuracy(told["best"], told["best_round"], told["last"], last10)


def underway(folder: Path) -> Standing:
    """From all events: what they amount to is not written down yet."""
    run = load(folder)
    known = run.so_far
    g, p = (known.G, known.P) if known else (None, None)
    return Standing(folder, run.state, run.algorithm, g, p)
