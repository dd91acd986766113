"""The run list of the dashboard: all runs below a folder, newest first, with progress, G and P."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...algorithms import get_display_name
from ...core.files import is_file
from ...core.status_line import format_seconds
from ...results.overview import (
    RunOverview,
    RunProgress,
    is_running,
    read_held_locks,
    read_run_overview,
    read_run_progress,
)
from ...runs.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE
from .html import dump_safe_json

MAX_DEPTH = 4  # levels of subfolders to search
RunListRow = dict[str, Any]
FileStamp = tuple[int, int, int] | None
FolderStamp = tuple[FileStamp, ...]


@dataclass(frozen=True)
class RunListEntry:
    """A run folder or a folder of run folders, named by its path below the dashboard's folder."""

    name: str
    runs: tuple[Path, ...]
    is_nested: bool = False  # whether it is a run of the folder listed before it

    @property
    def last_changed(self) -> int:
        """When its events or configuration last changed, in nanoseconds."""
        stamps = (stamp for run in self.runs for stamp in stamp_folder(run)[:2])
        return max((stamp[1] for stamp in stamps if stamp), default=0)


def stamp_folder(run: Path) -> FolderStamp:
    """Return stamps that change when the run folder changes, without reading its files."""
    return tuple(stamp_file(run / name) for name in (EVENTS_FILE, CONFIG_FILE, RESULT_FILE))


def stamp_file(path: Path) -> FileStamp:
    """Return size, modification time and inode of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def list_entries(folder: Path) -> list[RunListEntry]:
    """List all entries below a folder, newest first; a folder is followed by its runs."""
    groups = sorted(
        find_entry_groups(folder, "", MAX_DEPTH), key=lambda group: -group[0].last_changed
    )
    return [entry for group in groups for entry in group]


def find_entry_groups(folder: Path, prefix: str, depth: int) -> Iterator[list[RunListEntry]]:
    """Find groups below a folder: a single run, or a folder followed by its runs."""
    children = list_subfolders(folder)
    runs = [child for child in children if is_run_folder(child)]
    several = bool(prefix) and len(runs) > 1
    entries = [RunListEntry(prefix + run.name, (run,), is_nested=several) for run in runs]
    if several:
        entries.sort(key=lambda entry: -entry.last_changed)
        yield [RunListEntry(prefix.removesuffix("/"), tuple(runs)), *entries]
    else:
        yield from ([entry] for entry in entries)
    for child in children if depth else []:
        if child not in runs:
            yield from find_entry_groups(child, f"{prefix}{child.name}/", depth - 1)


def is_run_folder(folder: Path) -> bool:
    """Return True if a folder holds a run, even if its configuration is not a regular file."""
    file = folder / CONFIG_FILE
    return is_file(file) or (os.path.lexists(file) and not file.is_dir())


def list_subfolders(folder: Path) -> list[Path]:
    """List visible subfolders by name; links are not followed, so a search cannot run in circles."""
    try:
        with os.scandir(folder) as children:
            names = [e.name for e in children if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


# Rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListedRun:
    """The data of one run in the list."""

    progress: RunProgress
    overview: RunOverview

    @property
    def is_unfinished(self) -> bool:
        """True if the run has begun and can still continue."""
        return self.progress.state not in ("finished", "damaged", "unreadable")


def read_listed_run(run: Path) -> ListedRun:
    """Read the state of a run, its G and P over the last ten evaluations, and its small curves."""
    listed = ListedRun(read_run_progress(run), read_run_overview(run))
    try:
        dump_safe_json(build_row(listed, running=True))
    except Exception:  # an impossible number; the other runs are shown anyway
        return ListedRun(RunProgress(run, "damaged"), RunOverview())
    return listed


def find_running(runs: dict[Path, ListedRun], now: float) -> frozenset[Path]:
    """Return the runs on which a process is working."""
    unfinished = {run: listed for run, listed in runs.items() if listed.is_unfinished}
    locks = read_held_locks() if unfinished else set()
    return frozenset(r for r, own in unfinished.items() if is_running(r, own.overview, locks, now))


def build_run_list_rows(
    entries: Iterable[RunListEntry], runs: dict[Path, ListedRun], running: Container[Path]
) -> list[RunListRow]:
    """Build one row for each entry, with the address of its page."""
    return [
        {
            "name": decode_name(entry.name),
            "address": f"?of={quote(entry.name, safe='/', errors='surrogateescape')}",
            "nested": entry.is_nested,
            "runs": len(entry.runs),
            "changed": entry.last_changed // 10**6,  # milliseconds, as in JavaScript
            **merge_rows([build_row(runs[run], run in running) for run in entry.runs]),
        }
        for entry in entries
    ]


def build_row(run: ListedRun, running: bool) -> RunListRow:
    """Build the row of one run; ``activity`` is its state in one word."""
    progress, overview = run.progress, run.overview
    activity = progress.state
    if run.is_unfinished:
        activity = "running" if running else "not begun" if activity == "not begun" else "stopped"
    left = overview.seconds_left if activity == "running" else None
    return {
        "algorithm": get_display_name(progress.algorithm) if progress.algorithm else "–",
        "state": progress.state,
        "activity": activity,
        "done": overview.done,
        "rounds": overview.rounds,
        "seconds_left": left,
        "left": None if left is None else format_seconds(left),
        "G": progress.G and progress.G.last10.mean,
        "P": progress.P and progress.P.last10.mean,
        "curves": overview.curves,
    }


def merge_rows(rows: Sequence[RunListRow]) -> RunListRow:
    """Merge the rows of several runs: their algorithms, and how many are finished."""
    if len(rows) == 1:
        return rows[0]
    names = list(dict.fromkeys(r["algorithm"] for r in rows if r["algorithm"] != "–"))
    short = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    activities = [r["activity"] for r in rows]
    done = activities.count("finished")
    activity = "finished" if done == len(rows) else "stopped"
    return {
        "algorithm": ", ".join(short) or "–",
        "state": f"{done} of {len(rows)} runs finished",
        "activity": "running" if "running" in activities else activity,
        "done": sum(r["done"] for r in rows),
        "rounds": sum(r["rounds"] for r in rows),
        "seconds_left": None,  # nobody knows how many of the others run side by side
        "left": None,
        "G": None,
        "P": None,
        "curves": {},
    }


def decode_name(name: str) -> str:
    """Return a file's name as valid text; bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")
