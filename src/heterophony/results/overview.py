"""Progress of runs: cumulative costs, state and small curves for lists, and whether a run is alive."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core.errors import FolderError, StorageError
from ..core.files import open_regular_file, read_json, translate_disk_errors
from ..runs.curves import Accuracy, MeanStd, compute_curves
from ..runs.events import MEASURES, Event, Measure, select_rounds
from ..runs.run_index import (
    CONFIG_FILE,
    EVENTS_FILE,
    RESULT_FILE,
    find_runs,
    parse_json_line,
    read_last_event,
)
from .runs import load_run

CostColumns = dict[str, list[float]]


def compute_cumulative_costs(events: Sequence[Event], measured: Sequence[int]) -> CostColumns:
    """Return columns with one entry per evaluation; evaluation t is made before round t.

    ``MB`` counts 10⁶ bytes, up and down. ``simulated`` exists if devices have a simulated clock.
    """
    rounds = select_rounds(events)
    numbers = [e["t"] for e in rounds]
    before = [bisect_left(numbers, t) for t in measured]

    def sum_until_measured(each: Iterable[float]) -> list[float]:
        sums = list(accumulate(each, initial=0))
        return [sums[n] for n in before]

    out: CostColumns = {
        "t": list(measured),
        "MB": [
            n / 1e6 for n in sum_until_measured(e["bytes_up"] + e["bytes_down"] for e in rounds)
        ],
        "seconds": [round(s, 3) for s in sum_until_measured(e["seconds"] for e in rounds)],
    }
    if any("clock" in e for e in rounds):
        clock = [0.0, *(e.get("clock", 0.0) for e in rounds)]
        out["simulated"] = [round(clock[n], 3) for n in before]
    return out


@dataclass(frozen=True)
class RunProgress:
    """The progress of one run."""

    folder: Path
    state: str  # finished, round 3 of 20, not begun, damaged, unreadable
    algorithm: str | None = None
    G: Accuracy | None = None
    P: Accuracy | None = None


def list_run_progress(path: Path) -> list[RunProgress]:
    """List the progress of all runs at or below the path, newest first."""
    folders = sorted(find_runs(path), key=lambda folder: -find_change(folder / CONFIG_FILE))
    return [read_run_progress(folder) for folder in folders]


def find_change(path: Path) -> int:
    """Return when the file last changed, in nanoseconds; 0 if that is unknown."""
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
    """Parse an accuracy of result.json; raise if a number is not finite."""
    last10 = MeanStd(*(check_finite(accuracy["last10"][k]) for k in ("mean", "std")))
    best, last = (check_finite(accuracy[k]) for k in ("best", "last"))
    return Accuracy(best, int(accuracy["best_round"]), last, last10)


def check_finite(number: Any) -> float:
    """Return the number; raise FolderError if it is not finite."""
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


MAX_POINTS = 30  # of a small curve
MAX_EVENT_BYTES = 32 << 20  # larger files are not read for a small curve
AVERAGED_ROUNDS = 10  # the last ones say how long the next ones take
KIND = re.compile(rb'\{"event": ?"(\w+)"')  # at the beginning of every line
QUIET_SECONDS = 60.0  # without an event, after which a run may have stopped
QUIET_ROUNDS = 3.0  # the same, as a multiple of the seconds of a round


@dataclass(frozen=True)
class RunOverview:
    """What a list shows of a run beside its accuracies; empty if the events cannot be read."""

    rounds: int = 0
    done: int = 0
    round_seconds: float | None = None  # mean of the last rounds
    curves: dict[str, list[list[float]]] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float | None:
        """The time that the other rounds take, if they take as long as the last ones."""
        if self.round_seconds is None:
            return None
        return self.round_seconds * (self.rounds - self.done)


def read_run_overview(folder: Path) -> RunOverview:
    """Read the overview; only lines that are needed are parsed."""
    path = folder / EVENTS_FILE
    try:
        return summarise_lines(path)
    except Exception:  # a damaged file may raise any error
        return RunOverview()  # the state in the list says what is wrong


def summarise_lines(path: Path) -> RunOverview:
    start, evaluations, rounds = split_lines(path)
    begun = parse_json_line(path, start)
    seconds = [float(parse_json_line(path, line)["seconds"]) for line in rounds[-AVERAGED_ROUNDS:]]
    curves = {m: read_small_curve(path, begun, evaluations, m) for m in MEASURES}
    if not all(map(math.isfinite, [*seconds, *(v for c in curves.values() for _, v in c)])):
        raise ValueError("a number is not finite")
    return RunOverview(
        rounds=int(begun["rounds"]),
        done=len(rounds),
        round_seconds=fmean(seconds) if seconds else None,
        curves={m: curve for m, curve in curves.items() if curve},
    )


def split_lines(path: Path) -> tuple[bytes, list[bytes], list[bytes]]:
    """Return the lines of the start, the evaluations and the rounds, unparsed: most are not needed."""
    kinds: dict[str, list[bytes]] = {"start": [], "evaluation": [], "round": []}
    with translate_disk_errors(path), open_regular_file(path, MAX_EVENT_BYTES) as file:
        for line in file:
            kind = KIND.match(line)
            if kind and line.endswith(b"\n"):  # otherwise it is being written
                kinds.get(kind[1].decode(), []).append(line)
    return kinds["start"][0], kinds["evaluation"], kinds["round"]


def read_small_curve(
    path: Path, start: Any, evaluations: list[bytes], measure: Measure
) -> list[list[float]]:
    """Read evenly spaced evaluations of a measure, always the last one; round to three digits."""
    measured = [line for line in evaluations if f'"{measure}":null'.encode() not in line]
    stride = -(-len(measured) // MAX_POINTS) or 1
    events: list[Any] = [parse_json_line(path, line) for line in measured[::-stride]]
    curve = compute_curves([start, *reversed(events)])[measure]
    return [[t, round(v, 3)] for t, v in curve]


# Running ------------------------------------------------------------------------------------


def is_running(folder: Path, overview: RunOverview, held_locks: set[int], now: float) -> bool:
    """Return True if a process works on the run: it holds the lock, or wrote an event not long ago.

    The lock of a process on another machine cannot be seen, so its events have to show it.
    """
    try:
        if (folder / "lock").stat().st_ino in held_locks:
            return True
    except OSError:
        pass
    try:
        events = (folder / EVENTS_FILE).stat()
    except OSError:
        return False
    if not events.st_size:  # before the first event, only the lock shows it
        return False
    return now - events.st_mtime < max(
        QUIET_SECONDS, QUIET_ROUNDS * (overview.round_seconds or 0.0)
    )


def read_held_locks(path: Path = Path("/proc/locks")) -> set[int]:
    """Return the inodes of all files that a process on this machine has locked; lock nothing.

    Trying the lock instead would disturb a run that starts at the same moment.
    """
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # not Linux
        return set()
    return {int(parts[5].rsplit(":", 1)[1]) for parts in fields if parts[1:2] == ["FLOCK"]}
