"""How far runs got, told from as little of their folders as will do: there may be thousands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, StorageError
from ..core.files import read_json
from ..run.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE, find_runs, read_last_event
from ..run.summary import Accuracy, MeanStd
from .runs import load_run


@dataclass(frozen=True)
class RunProgress:
    """One run, so far."""

    folder: Path
    state: str  # finished, how far it got, not begun, damaged, unreadable
    algorithm: str | None = None
    G: Accuracy | None = None
    P: Accuracy | None = None


def list_run_progress(path: Path) -> list[RunProgress]:
    """The runs at or below the path, newest first."""
    found = sorted(find_runs(path), key=lambda folder: -(folder / CONFIG_FILE).stat().st_mtime_ns)
    return [read_run_progress(folder) for folder in found]


def read_run_progress(folder: Path) -> RunProgress:
    """How far a run got; one that cannot be read must not hide the others."""
    try:
        last = read_last_event(folder / EVENTS_FILE)
        if last is None:
            return RunProgress(folder, "not begun")
        if last["event"] == "end" and (folder / RESULT_FILE).is_file():
            return read_finished_run(folder)
        return read_unfinished_run(folder)
    except (FolderError, KeyError, TypeError):
        return RunProgress(folder, "damaged")
    except StorageError:
        return RunProgress(folder, "unreadable")


def read_finished_run(folder: Path) -> RunProgress:
    """From result.json alone: it has all that is asked, and the events are many times as long."""
    told = read_json(folder / RESULT_FILE)
    g, p = (told[k] and parse_accuracy(told[k]) for k in "GP")
    return RunProgress(folder, "finished", told["algorithm"], g, p)


def parse_accuracy(told: dict[str, Any]) -> Accuracy:
    last10 = MeanStd(told["last10"]["mean"], told["last10"]["std"])
    return Accuracy(told["best"], told["best_round"], told["last"], last10)


def read_unfinished_run(folder: Path) -> RunProgress:
    """From all events: what they amount to is not written down yet."""
    run = load_run(folder)
    known = run.current_summary
    g, p = (known.G, known.P) if known else (None, None)
    return RunProgress(folder, run.state, run.algorithm, g, p)
