"""Progress of many runs, read from as little of their folders as possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, StorageError
from ..core.files import read_json
from ..runs.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE, find_runs, read_last_event
from ..runs.summary import Accuracy, MeanStd
from .runs import load_run


@dataclass(frozen=True)
class RunProgress:
    """The progress of one run."""

    folder: Path
    state: str  # finished, round 3 of 20, not begun, damaged, unreadable
    algorithm: str | None = None
    G: Accuracy | None = None
    P: Accuracy | None = None


def list_run_progress(path: Path) -> list[RunProgress]:
    """The progress of all runs at or below the path, newest first."""
    folders = sorted(find_runs(path), key=lambda folder: -(folder / CONFIG_FILE).stat().st_mtime_ns)
    return [read_run_progress(folder) for folder in folders]


def read_run_progress(folder: Path) -> RunProgress:
    """Read the progress of one run. A damaged run has a state too, so it does not hide the others."""
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
    """Read result.json only; the events are many times as long."""
    result = read_json(folder / RESULT_FILE)
    g, p = (result[k] and parse_accuracy(result[k]) for k in "GP")
    return RunProgress(folder, "finished", result["algorithm"], g, p)


def parse_accuracy(accuracy: dict[str, Any]) -> Accuracy:
    last10 = MeanStd(accuracy["last10"]["mean"], accuracy["last10"]["std"])
    return Accuracy(accuracy["best"], accuracy["best_round"], accuracy["last"], last10)


def read_unfinished_run(folder: Path) -> RunProgress:
    """Summarise all events, because there is no result.json yet."""
    run = load_run(folder)
    summary = run.current_summary
    g, p = (summary.G, summary.P) if summary else (None, None)
    return RunProgress(folder, run.state, run.algorithm, g, p)
