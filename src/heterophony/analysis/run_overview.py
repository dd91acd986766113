"""An overview of a run for lists: small curves, rounds done, seconds per round, and whether it is running."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core.files import open_regular_file, translate_disk_errors
from ..runs.curves import compute_curves
from ..runs.events import MEASURES, Measure
from ..runs.run_index import EVENTS_FILE, parse_json_line

MAX_POINTS = 30  # of a small curve
MAX_EVENT_BYTES = 32 << 20  # larger files are not read for a small curve
AVERAGED_ROUNDS = 10  # the last ones say how long the next ones take
KIND = re.compile(rb'\{"event": ?"(\w+)"')  # at the beginning of every line
QUIET_SECONDS = 60.0  # without an event, after which a run may have stopped
QUIET_ROUNDS = 3.0  # the same, as a multiple of the seconds of a round


@dataclass(frozen=True)
class RunOverview:
    """What a list shows of a run beside its accuracies; empty if nothing could be read."""

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
    """The lines of the start, the evaluations and the rounds, not parsed: most are not needed."""
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
    """Whether a process works on the run: it holds the lock, or wrote an event not long ago.

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
    """The inodes of all files that a process on this machine has locked; nothing is locked for it.

    Trying the lock instead would disturb a run that starts at the same moment.
    """
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # not Linux
        return set()
    return {int(parts[5].rsplit(":", 1)[1]) for parts in fields if parts[1:2] == ["FLOCK"]}
