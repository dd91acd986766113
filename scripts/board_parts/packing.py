"""Pack the run folders or leaderboard entries of a folder into its archive, or unpack them again."""

from __future__ import annotations

import shutil
from pathlib import Path

from heterophony.core.files import extract, pack_folders
from heterophony.papers.leaderboard import ENTRY_FILE, PACKED_ENTRIES
from heterophony.results.runs import PACKED_RUNS
from heterophony.runs.run_index import EVENTS_FILE

# by archive: the file that each folder in it has
ARCHIVES = {PACKED_ENTRIES: ENTRY_FILE, PACKED_RUNS: EVENTS_FILE}


def pack(folder: Path) -> None:
    """Move the runs and entries of a folder into its archive, in place of those of the same name."""
    for name, mark in ARCHIVES.items():
        fresh = {path.parent.name for path in folder.glob(f"*/{mark}")}
        if not fresh:
            continue
        extract_others(folder, name, fresh)
        members = [path.parent for path in folder.glob(f"*/{mark}")]
        pack_folders(members, folder / name)
        for member in members:
            shutil.rmtree(member)


def unpack(folder: Path) -> None:
    """Replace the archives of a folder by their content."""
    for name in ARCHIVES:
        if (folder / name).exists():
            extract_others(folder, name, set())
            (folder / name).unlink()


def extract_others(folder: Path, name: str, kept: set[str]) -> None:
    """Extract the members of an archive into its folder, except those named in ``kept``."""
    if not (folder / name).exists():
        return
    new = folder / ".unpacked"
    extract(folder / name, new)
    for member in new.iterdir():
        if member.name not in kept:
            member.replace(folder / member.name)
    shutil.rmtree(new)
