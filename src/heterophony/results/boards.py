"""The table of boards that a run's server writes: state, activity and cost of each board.

The file repeats what boards sent, so nothing in it is trusted: a file that does not have the
expected form becomes a one-line problem.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core.files import UnsuitableFileError, read_regular_file
from ..runs.run_index import BOARDS_FILE

FORMAT_VERSION = 1
MAX_FILE_BYTES = 8 << 20
MAX_TEXT_LENGTH = 1000  # characters of one text in the file
SILENCE_SECONDS = 30.0  # without an update, after which the server may have stopped
STATE_LABELS = {"here": "here", "arriving": "arriving", "expected": "not yet here"}
STATE_LABELS |= {"gone": "gone", "refused": "refused", "shut_out": "shut out"}
ACTIVITY_LABELS = {"asked": "asked for", "pull": "pulling for", "send": "sending for"}
ACTIVITY_LABELS |= {"train": "training", "evaluate": "measuring", "join": "joining"}
COLUMN_TITLES = ["board", "state", "clients", "now", "jobs", "seconds", "down", "up", "came back"]
COLUMN_TITLES += ["refused", "why, the last time"]
MAX_LISTED_CLIENTS = 12  # of one board; the others are counted
Json = dict[str, Any]


@dataclass(frozen=True)
class DeviceRow:
    """One board."""

    name: str
    state: str
    cells: tuple[str, ...]
    num_refused: int


@dataclass(frozen=True)
class DeviceTable:
    """All boards of a run, or the problem with the file."""

    problem: str = ""
    state: str = ""  # of the server: waiting, running, ended, stopped
    written_at: float = 0.0
    rows: tuple[DeviceRow, ...] = ()
    num_unattributed: int = 0  # refused messages of unknown boards


def read_device_table(folder: Path) -> DeviceTable | None:
    """Read what the server wrote last; None if the run has no boards."""
    path = folder / BOARDS_FILE
    try:
        return parse_device_table(json.loads(read_regular_file(path, MAX_FILE_BYTES)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        pass
    except UnsuitableFileError:  # too large, or no regular file
        pass
    except OSError as error:
        return DeviceTable(f"The boards cannot be shown: {BOARDS_FILE}: {error.strerror}.")
    return DeviceTable(
        f"The boards cannot be shown: {BOARDS_FILE} is damaged, or of another version."
    )


def parse_device_table(content: Json) -> DeviceTable:
    if content["form"] != FORMAT_VERSION:
        raise ValueError("of another version")
    written = require_number(content["written"])
    format_time(written, written)  # raises if it is not a date
    rows = tuple(
        parse_device_row(require_text(name), device, written)
        for name, device in content["boards"].items()
    )
    others = content["others"]
    unattributed = (
        require_count(content["foreign"])
        + require_count(others["wrong"])
        + require_count(others["refused"])
    )
    return DeviceTable("", require_text(content["state"]), written, rows, unattributed)


def parse_device_row(name: str, device: Json, written: float) -> DeviceRow:
    state, since = require_text(device["state"]), device["since"]
    away = state == "gone" and since is not None
    where = (
        f"gone since {format_time(require_number(since), written)}" if away else STATE_LABELS[state]
    )
    refused = require_count(device["refused"]) + require_count(device["wrong"])
    cells = (
        where,
        format_client_list([require_text(c) for c in device["clients"]]),
        "; ".join(describe_activity(d) for d in device["doing"]) or "–",
        str(require_count(device["jobs"])),
        f"{require_number(device['seconds']):.1f}",
        format_bytes(require_count(device["bytes_down"])),
        format_bytes(require_count(device["bytes_up"])),
        str(require_count(device["reconnects"])),
        str(refused),
        require_text(device["why"]) or "–",
    )
    return DeviceRow(name, state, cells, refused)


# Texts --------------------------------------------------------------------------------------
def build_devices_section(table: DeviceTable, label: str = "", now: float | None = None) -> Json:
    """The section of the page; it says if the server has written nothing for long before ``now``."""
    if table.problem:
        return {"run": label, "summary": table.problem, "caption": "", "titles": [], "rows": []}
    ended = table.state == "ended"
    when = format_time(table.written_at, now or table.written_at)
    sentences = [describe_device_table(table), "The run has ended." if ended else ""]
    if table.state == "stopped" or (not ended and now and now - table.written_at > SILENCE_SECONDS):
        sentences[1] = f"The server has stopped or not responded since {when}."
    caption = "at the end of the run" if ended else f"as of {when}"
    rows = [{"name": r.name, "state": r.state, "cells": r.cells} for r in table.rows]
    return {
        "run": label,
        "summary": " ".join(filter(None, sentences)),
        "caption": ", ".join(filter(None, (label, caption))),
        "titles": COLUMN_TITLES,
        "rows": rows,
    }


def describe_device_table(table: DeviceTable) -> str:
    """Summarise how many boards are in each state, and what was refused."""
    states = Counter(row.state for row in table.rows)
    counts = [f"{states[state]} {label}" for state, label in STATE_LABELS.items() if states[state]]
    refused = sum(row.num_refused for row in table.rows) + table.num_unattributed
    total = f"{len(table.rows)} board{'s' * (len(table.rows) != 1)}"
    parts = [f"{total}: {', '.join(counts)}" if counts else "No board yet"]
    if refused:
        parts.append(f"{refused} refused replies and messages")
    return "; ".join(parts) + "."


def describe_activity(doing: Json) -> str:
    return f"{ACTIVITY_LABELS[doing['what']]} client {require_text(doing['client'])}, round {require_count(doing['t'])}"


def format_client_list(names: Sequence[str]) -> str:
    rest = len(names) - MAX_LISTED_CLIENTS
    return ", ".join(names[:MAX_LISTED_CLIENTS]) + (f" and {rest} more" if rest > 0 else "") or "–"


def format_bytes(n: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= bytes_:
            return f"{n / bytes_:.1f} {unit}"
    return f"{n} B"


def format_time(date: float, beside: float) -> str:
    """Format the time of day, with the date if it is another day than ``beside``."""
    time, other = datetime.fromtimestamp(date), datetime.fromtimestamp(beside)
    return time.strftime("%H:%M:%S" if time.date() == other.date() else "%Y-%m-%d %H:%M:%S")


# Checks of untrusted values ---------------------------------------------------------------------------------
def require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value[:MAX_TEXT_LENGTH]


def require_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("not a count")
    return value


def require_number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)
