"""The devices of a run, as its server wrote them down: who is here, what each did, in words.

The file tells what devices said, so nothing in it is trusted: it has the known form, or one line
says that it has not.
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

from ..run.run_index import DEVICES_FILE

FORMAT_VERSION = 1
MAX_FILE_BYTES = 8 << 20  # bytes of the file
MAX_TEXT_LENGTH = 1000  # characters of a text in it
SILENCE_SECONDS = 30.0  # seconds without a word after which the server may be no more
STATE_LABELS = {"here": "here", "arriving": "arriving", "expected": "not yet here"}
STATE_LABELS |= {"gone": "gone", "refused": "refused"}
ACTIVITY_LABELS = {"asked": "asked for", "pull": "pulling for", "send": "sending for"}
ACTIVITY_LABELS |= {"train": "training", "evaluate": "measuring", "join": "joining"}
COLUMN_TITLES = ["device", "state", "clients", "now", "tasks", "seconds", "down", "up", "came back"]
COLUMN_TITLES += ["refused", "why, the last time"]
MAX_LISTED_CLIENTS = 12  # clients of a device; the others are counted
Json = dict[str, Any]


@dataclass(frozen=True)
class DeviceRow:
    """One device."""

    name: str
    state: str
    cells: tuple[str, ...]
    num_refused: int


@dataclass(frozen=True)
class DeviceTable:
    """All of a run, or what is wrong with the file."""

    problem: str = ""
    state: str = ""  # of the server: waiting, playing, ended, stopped
    written_at: float = 0.0
    rows: tuple[DeviceRow, ...] = ()
    num_unattributed: int = (
        0  # messages that are nobody's, or of strangers that were too many to name
    )


def read_device_table(folder: Path) -> DeviceTable | None:
    """What the server wrote last; None where there are no devices."""
    path = folder / DEVICES_FILE
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ValueError("too long")
        return parse_device_table(json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        return DeviceTable(f"The devices cannot be shown: {DEVICES_FILE}: {error.strerror}.")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return DeviceTable(
            f"The devices cannot be shown: {DEVICES_FILE} is damaged, or of another version."
        )


def parse_device_table(told: Json) -> DeviceTable:
    if told["form"] != FORMAT_VERSION:
        raise ValueError("of another version")
    written = require_number(told["written"])
    format_time(written, written)  # may be no date
    rows = tuple(
        parse_device_row(require_text(name), told, written)
        for name, told in told["devices"].items()
    )
    others = told["others"]
    strange = (
        require_count(told["foreign"])
        + require_count(others["wrong"])
        + require_count(others["refused"])
    )
    return DeviceTable("", require_text(told["state"]), written, rows, strange)


def parse_device_row(name: str, told: Json, written: float) -> DeviceRow:
    state, since = require_text(told["state"]), told["since"]
    away = state == "gone" and since is not None
    where = (
        f"gone since {format_time(require_number(since), written)}" if away else STATE_LABELS[state]
    )
    refused = require_count(told["refused"]) + require_count(told["wrong"])
    cells = (
        where,
        format_client_list([require_text(c) for c in told["clients"]]),
        "; ".join(describe_activity(d) for d in told["doing"]) or "–",
        str(require_count(told["tasks"])),
        f"{require_number(told['seconds']):.1f}",
        format_bytes(require_count(told["bytes_down"])),
        format_bytes(require_count(told["bytes_up"])),
        str(require_count(told["reconnects"])),
        str(refused),
        require_text(told["why"]) or "–",
    )
    return DeviceRow(name, state, cells, refused)


# Words --------------------------------------------------------------------------------------
def build_devices_section(found: DeviceTable, label: str = "", now: float | None = None) -> Json:
    """As the page shows it; a server that has written nothing for long ``now`` is named."""
    if found.problem:
        return {"run": label, "summary": found.problem, "caption": "", "titles": [], "rows": []}
    ended = found.state == "ended"
    when = format_time(found.written_at, now or found.written_at)
    words = [describe_device_table(found), "The run has ended." if ended else ""]
    if found.state == "stopped" or (not ended and now and now - found.written_at > SILENCE_SECONDS):
        words[1] = f"The server has stopped, or says nothing, since {when}."
    caption = "at the end of the run" if ended else f"as of {when}"
    rows = [{"name": r.name, "state": r.state, "cells": r.cells} for r in found.rows]
    return {
        "run": label,
        "summary": " ".join(filter(None, words)),
        "caption": ", ".join(filter(None, (label, caption))),
        "titles": COLUMN_TITLES,
        "rows": rows,
    }


def describe_device_table(found: DeviceTable) -> str:
    """What is worth being told: who is here, and what was refused."""
    states = Counter(row.state for row in found.rows)
    told = [f"{states[state]} {words}" for state, words in STATE_LABELS.items() if states[state]]
    refused = sum(row.num_refused for row in found.rows) + found.num_unattributed
    many = f"{len(found.rows)} device{'s' * (len(found.rows) != 1)}"
    parts = [f"{many}: {', '.join(told)}" if told else "No device yet"]
    if refused:
        parts.append(f"{refused} refused replies and messages")
    return "; ".join(parts) + "."


def describe_activity(doing: Json) -> str:
    return f"{ACTIVITY_LABELS[doing['what']]} client {require_text(doing['client'])}, round {require_count(doing['t'])}"


def format_client_list(names: Sequence[str]) -> str:
    rest = len(names) - MAX_LISTED_CLIENTS
    return ", ".join(names[:MAX_LISTED_CLIENTS]) + (f" and {rest} more" if rest > 0 else "") or "–"


def format_bytes(n: int) -> str:
    """Bytes as people say them."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= bytes_:
            return f"{n / bytes_:.1f} {unit}"
    return f"{n} B"


def format_time(date: float, beside: float) -> str:
    """The time of day; with the day, if it is another."""
    one, other = datetime.fromtimestamp(date), datetime.fromtimestamp(beside)
    return one.strftime("%H:%M:%S" if one.date() == other.date() else "%Y-%m-%d %H:%M:%S")


# Nothing but ---------------------------------------------------------------------------------
def require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:MAX_TEXT_LENGTH]


def require_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def require_number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)
