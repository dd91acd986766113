"""Progress of many runs, read from as little of their folders as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FolderError, StorageError
from ..core.files import read_json
from ..runs.accuracies import Accuracy, MeanStd
from ..runs.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE, find_runs, read_last_event
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
    folders = sorted(find_runs(path), key=lambda folder: -find_change(folder / CONFIG_FILE))
    return [read_run_progress(folder) for folder in folders]


def find_change(path: Path) -> int:
    """When the file last changed, in nanoseconds; 0 if it cannot be seen."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_run_progress(folder: Path) -> RunProgress:
    """Read the progress of one run. A damaged run has a state too, so it does not hide the others."""
    try:
        last = read_last_event(folder / EVENTS_FILE)
        if last is None:
            return RunProgress(folder, "not begun")
        if last["event"] == "end" and (folder / RESULT_FILE).is_file():
            return read_finished_run(folder)
        return read_unfinished_run(folder)
    except StorageError:
        return RunProgress(folder, "unreadable")
    except Exception:  # a damaged file may raise any error
        return RunProgress(folder, "damaged")


def read_finished_run(folder: Path) -> RunProgress:
    """Read result.json only; the events are many times as long."""
    result = read_json(folder / RESULT_FILE)
    g, p = (parse_accuracy(result[k]) if result[k] is not None else None for k in "GP")
    return RunProgress(folder, "finished", str(result["algorithm"]), g, p)


def parse_accuracy(accuracy: dict[str, Any]) -> Accuracy:
    """Parse an accuracy of result.json; raise if a number is none."""
    last10 = MeanStd(*(check_finite(accuracy["last10"][k]) for k in ("mean", "std")))
    best, last = (check_finite(accuracy[k]) for k in ("best", "last"))
    return Accuracy(best, int(accuracy["best_round"]), last, last10)


def check_finite(number: Any) -> float:
    """Return the number; raise for NaN, infinity and what is no number."""
    if isinstance(number, bool) or not math.isfinite(number):
        raise FolderError(f"{RESULT_FILE} is damaged: {number} is not a finite number")
    return float(number)


def read_unfinished_run(folder: Path) -> RunProgress:
    """Summarise all events, because there is no result.json yet."""
    run = load_run(folder)
    summary = run.current_summary
    g, p = (summary.G, summary.P) if summary else (None, None)
    for accuracy in filter(None, (g, p)):
        check_finite(accuracy.last10.mean), check_finite(accuracy.best)
    return RunProgress(folder, run.state, run.algorithm, g, p)
