"""Find run folders on disk and read their events, without importing torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ..core.errors import FolderError
from ..core.files import (
    JSON_LIMIT,
    UnsuitableFileError,
    make_natural_sort_key,
    open_regular_file,
    read_json,
    translate_disk_errors,
)
from .events import Event

CONFIG_FILE, EVENTS_FILE, RESULT_FILE = "config.toml", "events.jsonl", "result.json"
STOPPED_FILE = "stopped.json"  # says after which round a search abandoned the trial, and why
BOARDS_FILE = "boards-now.json"  # the state of a run's boards, only to be displayed
INTERNAL_FOLDERS = {"commits", "scratch"}  # folders inside a run, which never contain other runs
TAIL_BYTES = 4096  # a finished run's last event is far shorter than this


def read_events(path: Path) -> Iterator[Event]:
    """Read all events of a run so far."""
    return (check_event(path, line) for line in read_json_lines(path))


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file with one JSON object per line; skip an incomplete last line, which a crash may leave."""
    if not os.path.lexists(path):
        return
    with translate_disk_errors(path), open_regular_file(path) as file:
        while line := file.readline(JSON_LIMIT):
            if not line.endswith(b"\n"):
                if len(line) == JSON_LIMIT:
                    raise UnsuitableFileError(f"a line is longer than {JSON_LIMIT} bytes")
                return
            yield parse_json_line(path, line)


def read_last_event(path: Path) -> Event | None:
    """Read a run's newest complete event from the end of the file; return None if there is none."""
    if not os.path.lexists(path):
        return None
    with translate_disk_errors(path), open_regular_file(path) as file:
        size, wanted = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - wanted))
            *whole, _ = file.read().split(b"\n")  # the last part is empty, or a cut line
            if len(whole) > 1 or wanted >= size:
                break
            if wanted > JSON_LIMIT:
                raise UnsuitableFileError(f"a line is longer than {JSON_LIMIT} bytes")
            wanted *= 2
    return check_event(path, parse_json_line(path, whole[-1])) if whole else None


def parse_json_line(path: Path, line: bytes) -> dict[str, Any]:
    """Parse a line of a run's events; raise FolderError if it is not a JSON object."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        raise FolderError(f"{path} is damaged: a line is not JSON") from None
    if not isinstance(content, dict):
        raise FolderError(f"{path} is damaged: a line is not an event")
    return content


def check_event(path: Path, content: dict[str, Any]) -> Event:
    """Return the content of a line as an event; raise FolderError if it has no key ``event``."""
    if not isinstance(content.get("event"), str):
        raise FolderError(f"{path} is damaged: a line is not an event")
    return cast(Event, content)


def find_runs(path: Path) -> Iterator[Path]:
    """Find every run folder at or below a path."""
    for folder, inside, files in os.walk(path):
        if CONFIG_FILE in files:
            inside[:] = [name for name in inside if name not in INTERNAL_FOLDERS]
            yield Path(folder)


def list_member_runs(parent: Path) -> list[Path]:
    """List the run folders in a folder, in the order of ``compare.json``, otherwise in natural order."""
    rank = {name: i for i, name in enumerate(read_run_order(parent / "compare.json"))}
    folders = [f.parent for f in parent.glob(f"*/{CONFIG_FILE}")]
    return sorted(
        folders, key=lambda f: (rank.get(f.name, len(rank)), make_natural_sort_key(f.name))
    )


def read_run_order(path: Path) -> list[str]:
    """Return the names of a comparison's runs, in order; an empty list if the file does not exist."""
    if not os.path.lexists(path):
        return []
    content = read_json(path)
    names = content.get("runs") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FolderError(f"{path} is damaged: it does not list runs")
    return names


EarlyStop = Mapping[str, float]  # round, accuracy and limit of an abandoned trial


def read_early_stop(folder: Path) -> EarlyStop | None:
    """Return after which round and why a search abandoned a trial; None if the trial was not abandoned."""
    path = folder / STOPPED_FILE
    if not path.is_file():
        return None
    content = read_json(path)
    keys = ("round", "accuracy", "limit")
    if not isinstance(content, dict) or not all(type(content.get(k)) in (int, float) for k in keys):
        raise FolderError(f"{path} is damaged: it does not say why the run was stopped")
    return content


def describe_early_stop(stop: EarlyStop) -> str:
    """Describe after which round and why a search abandoned a trial, for users."""
    return (
        f"stopped after round {stop['round']:.0f}: {100 * stop['accuracy']:.2f} % is below the median"
        f" of earlier trials, {100 * stop['limit']:.2f} %"
    )
