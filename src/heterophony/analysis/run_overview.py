"""An overview of a run for lists: small curves, rounds done, seconds per round, and whether it is running."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core.errors import HeterophonyError
from ..core.files import translate_disk_errors
from ..runs.run_index import EVENTS_FILE, parse_json_line
from ..runs.summary import compute_curves

MAX_POINTS = 30  # of a small curve
MAX_EVENT_BYTES = 32 << 20  # larger files are not read for a small curve
ROUNDS_TO_AVERAGE = 10  # the last ones say how long the next ones take
KIND_BYTES = 24  # of a line; the kind of event is in them
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)  # of the events
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
        if path.stat().st_size > MAX_EVENT_BYTES:
            return RunOverview()
        return summarise_lines(path)
    except (HeterophonyError, OSError, *DAMAGE):
        return RunOverview()  # the state in the list says what is wrong


def summarise_lines(path: Path) -> RunOverview:
    events: list[Any] = []  # the start and the evaluations
    last_rounds = deque[bytes](maxlen=ROUNDS_TO_AVERAGE)
    done = 0
    with translate_disk_errors(path), open(path, "rb") as file:
        for line in file:
            kind = line[:KIND_BYTES]
            if not line.endswith(b"\n"):  # it is being written
                break
            if b'"round"' in kind:
                done += 1
                last_rounds.append(line)
            elif b'"start"' in kind or b'"evaluation"' in kind:
                events.append(parse_json_line(path, line))
    curves = compute_curves(events)
    seconds = [float(parse_json_line(path, line)["seconds"]) for line in last_rounds]
    if not all(map(math.isfinite, [*seconds, *(v for k in "GP" for _, v in curves[k])])):
        raise ValueError("a number is not finite")
    return RunOverview(
        rounds=int(events[0]["rounds"]),
        done=done,
        round_seconds=fmean(seconds) if seconds else None,
        curves={k: shrink_curve(curves[k]) for k in "GP" if curves[k]},
    )


def shrink_curve(curve: list[tuple[int, float]]) -> list[list[float]]:
    """Keep evenly spaced points, always the last one, rounded to three digits."""
    stride = -(-len(curve) // MAX_POINTS)
    return [[t, round(v, 3)] for t, v in reversed(curve[::-stride])]


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
    if not overview.rounds:  # before the first event, only the lock shows it
        return False
    try:
        quiet = now - (folder / EVENTS_FILE).stat().st_mtime
    except OSError:
        return False
    return quiet < max(QUIET_SECONDS, QUIET_ROUNDS * (overview.round_seconds or 0.0))


def read_held_locks(path: Path = Path("/proc/locks")) -> set[int]:
    """The inodes of all files that a process on this machine has locked; nothing is locked for it.

    Trying the lock instead would disturb a run that starts at the same moment.
    """
    try:
        fields = [line.split() for line in path.read_text().splitlines()]
    except OSError:  # not Linux
        return set()
    return {int(parts[5].rsplit(":", 1)[1]) for parts in fields if parts[1:2] == ["FLOCK"]}
