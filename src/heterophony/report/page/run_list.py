"""The run list of the dashboard: all runs below a folder, newest first, with state, G and P."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...algorithms import get_display_name
from ...analysis.progress import read_run_progress
from ...runs.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE

MAX_DEPTH = 4  # levels of subfolders to search
RunListRow = dict[str, Any]
FileStamp = tuple[int, int, int] | None
FolderStamp = tuple[FileStamp, ...]


@dataclass(frozen=True)
class RunListEntry:
    """A run folder, or a folder of run folders; its name is the path below the dashboard's folder."""

    name: str
    runs: tuple[Path, ...]
    is_nested: bool = False  # whether it is a run of the folder listed before it

    @property
    def last_changed(self) -> int:
        """When its events or configuration last changed, in nanoseconds."""
        stamps = (stamp for run in self.runs for stamp in stamp_folder(run)[:2])
        return max((stamp[1] for stamp in stamps if stamp), default=0)


def stamp_folder(run: Path) -> FolderStamp:
    """Stamps that change when the run folder changes; nothing is read."""
    return tuple(stamp_file(run / name) for name in (EVENTS_FILE, CONFIG_FILE, RESULT_FILE))


def stamp_file(path: Path) -> FileStamp:
    """Size, modification time and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def list_entries(folder: Path) -> list[RunListEntry]:
    """Every entry below a folder, newest first; the runs of a folder follow it."""
    groups = sorted(
        find_entry_groups(folder, "", MAX_DEPTH), key=lambda group: -group[0].last_changed
    )
    return [entry for group in groups for entry in group]


def find_entry_groups(folder: Path, prefix: str, depth: int) -> Iterator[list[RunListEntry]]:
    """Find groups below a folder: a single run, or a folder followed by its runs."""
    children = list_subfolders(folder)
    runs = [child for child in children if (child / CONFIG_FILE).is_file()]
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


def list_subfolders(folder: Path) -> list[Path]:
    """Visible subfolders by name. Links are not followed, so a search cannot run in circles."""
    try:
        with os.scandir(folder) as children:
            names = [e.name for e in children if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


# Rows ---------------------------------------------------------------------------------------


def build_progress_row(run: Path) -> RunListRow:
    """State of a run, and its G and P over the last ten evaluations."""
    progress = read_run_progress(run)
    last = {k: a and a.last10.mean for k, a in (("G", progress.G), ("P", progress.P))}
    name = get_display_name(progress.algorithm) if progress.algorithm else "–"
    return {"algorithm": name, "state": progress.state, **last}


def build_run_list_rows(
    entries: Iterable[RunListEntry], progress: dict[Path, RunListRow]
) -> list[RunListRow]:
    """One row for each entry, with the address of its page."""
    return [
        {
            "name": decode_name(entry.name),
            "address": f"?of={quote(entry.name, safe='/', errors='surrogateescape')}",
            "nested": entry.is_nested,
            **merge_progress_rows([progress[run] for run in entry.runs]),
        }
        for entry in entries
    ]


def merge_progress_rows(rows: Sequence[RunListRow]) -> RunListRow:
    """The row of one run as it is; of several runs, their algorithms and how many are finished."""
    if len(rows) == 1:
        return rows[0]
    names = list(dict.fromkeys(r["algorithm"] for r in rows if r["algorithm"] != "–"))
    short = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    done = sum(r["state"] == "finished" for r in rows)
    state = f"{done} of {len(rows)} runs finished"
    return {"algorithm": ", ".join(short) or "–", "state": state, "G": None, "P": None}


def decode_name(name: str) -> str:
    """A file's name as valid text; bytes that are not UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")
