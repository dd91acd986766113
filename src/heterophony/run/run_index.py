"""Run folders as they lie on the disk: which there are, and their events. It needs no torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import FolderError
from ..core.files import disk, read_json

CONFIG, EVENTS, RESULT = "config.toml", "events.jsonl", "result.json"
DEVICES = "devices-now.json"  # how the devices of a run stand: to be looked at, nothing more
KEPT = {"commits", "scratch"}  # what a run keeps for itself: a folder for every client, no runs
TAIL = 4096  # bytes; the last event of a finished run is far shorter


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """All events so far; a line that was cut short by a crash is left out."""
    if not path.exists():
        return
    with disk(path), open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield parsed(path, line)


def last_event(path: Path) -> dict[str, Any] | None:
    """The newest whole event, None before any; only the end of the file is read."""
    if not path.exists():
        return None
    with disk(path), open(path, "rb") as file:
        size, wanted = file.seek(0, os.SEEK_END), TAIL
        while True:
            file.seek(max(0, size - wanted))
            *whole, _ = file.read().split(b"\n")  # after the last line end: nothing, or a cut line
            if len(whole) > 1 or wanted >= size:
                break
            wanted *= 2
    return parsed(path, whole[-1]) if whole else None


def parsed(path: Path, line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        raise FolderError(f"{path} is damaged: a line is not JSON") from None
    return event


def below(path: Path) -> Iterator[Path]:
    """Every run folder at or below the path."""
    for folder, inside, files in os.walk(path):
        if CONFIG in files:
            inside[:] = [name for name in inside if name not in KEPT]
            yield Path(folder)


def members(parent: Path) -> list[Path]:
    """The run folders in a folder: in the order they were asked for, else by name and number."""
    order = parent / "compare.json"
    asked = read_json(order)["runs"] if order.is_file() else []
    rank = {name: i for i, name in enumerate(asked)}
    found = [f.parent for f in parent.glob(f"*/{CONFIG}")]
    return sorted(found, key=lambda f: (rank.get(f.name, len(rank)), natural(f.name)))


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``fedavg-2`` before ``fedavg-10``."""
    return [(int(p), "") if p.isdecimal() else (0, p) for p in re.split(r"(\d+)", name)]
