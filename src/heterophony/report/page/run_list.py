"""The runs below a folder, to choose from: newest first, how far each got, its G and P."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...analysis.progress import read_run_progress as standing_of
from ...run.run_index import CONFIG_FILE, EVENTS_FILE, RESULT_FILE

MAX_DEPTH = 4  # folders in folders: what a person arranges
RunListRow = dict[str, Any]
FileStamp = tuple[int, int, int] | None
FolderStamp = tuple[FileStamp, ...]


@dataclass(frozen=True)
class RunListEntry:
    """A run folder, or a folder of run folders, under its name relative to where we look."""

    name: str
    runs: tuple[Path, ...]
    is_nested: bool = False  # it is one of the runs of the folder listed before it

    @property
    def last_changed(self) -> int:
        """When something was last recorded in it."""
        return max((at[1] for run in self.runs for at in stamp_folder(run)[:2] if at), default=0)


def stamp_folder(run: Path) -> FolderStamp:
    """What tells that a run folder changed, without reading it: sizes, times, identities."""
    return tuple(stamp_file(run / name) for name in (EVENTS_FILE, CONFIG_FILE, RESULT_FILE))


def stamp_file(path: Path) -> FileStamp:
    """Of one file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def list_entries(folder: Path) -> list[RunListEntry]:
    """All that can be looked at below a folder, the newest first; a folder's runs follow it."""
    found = sorted(
        find_entry_groups(folder, "", MAX_DEPTH), key=lambda block: -block[0].last_changed
    )
    return [place for block in found for place in block]


def find_entry_groups(folder: Path, prefix: str, depth: int) -> Iterator[list[RunListEntry]]:
    """A run by itself, or a folder with the runs in it."""
    children = list_subfolders(folder)
    runs = [child for child in children if (child / CONFIG_FILE).is_file()]
    several = bool(prefix) and len(runs) > 1
    own = [RunListEntry(prefix + run.name, (run,), is_nested=several) for run in runs]
    if several:
        own.sort(key=lambda place: -place.last_changed)
        yield [RunListEntry(prefix.removesuffix("/"), tuple(runs)), *own]
    else:
        yield from ([place] for place in own)
    for child in children if depth else []:
        if child not in runs:
            yield from find_entry_groups(child, f"{prefix}{child.name}/", depth - 1)


def list_subfolders(folder: Path) -> list[Path]:
    """Folders that do not hide; links are not followed, so that no walk goes in circles."""
    try:
        with os.scandir(folder) as found:
            names = [e.name for e in found if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".")]


# Rows ---------------------------------------------------------------------------------------


def build_progress_row(run: Path) -> RunListRow:
    """How far a run got, and its G and P over the last ten evaluations."""
    found = standing_of(run)
    last = {k: a and a.last10.mean for k, a in (("G", found.G), ("P", found.P))}
    return {"algorithm": found.algorithm or "–", "state": found.state, **last}


def build_run_list_rows(
    found: Iterable[RunListEntry], standings: dict[Path, RunListRow]
) -> list[RunListRow]:
    """A line for every place, with the address of its page."""
    return [
        {
            "name": decode_name(place.name),
            "address": f"?of={quote(place.name, safe='/', errors='surrogateescape')}",
            "nested": place.is_nested,
            **merge_progress_rows([standings[run] for run in place.runs]),
        }
        for place in found
    ]


def merge_progress_rows(several: Sequence[RunListRow]) -> RunListRow:
    """One run as it is; of several, who they are and how many are finished."""
    if len(several) == 1:
        return several[0]
    names = list(dict.fromkeys(s["algorithm"] for s in several if s["algorithm"] != "–"))
    short = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    done = sum(s["state"] == "finished" for s in several)
    state = f"{done} of {len(several)} runs finished"
    return {"algorithm": ", ".join(short) or "–", "state": state, "G": None, "P": None}


def decode_name(name: str) -> str:
    """A file's name as text, whatever bytes it has."""
    return os.fsencode(name).decode(errors="replace")
