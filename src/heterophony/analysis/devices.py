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

from ..run.run_index import DEVICES

FORM = 1
LARGEST = 8 << 20  # bytes of the file
LONGEST = 1000  # characters of a text in it
SILENT = 30.0  # seconds without a word after which the server may be no more
STATES = {"here": "here", "arriving": "arriving", "expected": "not yet here"}
STATES |= {"gone": "gone", "refused": "refused"}
AT_WORK = {"asked": "asked for", "pull": "pulling for", "send": "sending for"}
AT_WORK |= {"train": "training", "evaluate": "measuring", "join": "joining"}
TITLES = ["device", "state", "clients", "now", "tasks", "seconds", "down", "up", "came back"]
TITLES += ["refused", "why, the last time"]
NAMED = 12  # clients of a device; the others are counted
Json = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One device."""

    name: str
    state: str
    cells: tuple[str, ...]
    refused: int


@dataclass(frozen=True)
class Devices:
    """All of a run, or what is wrong with the file."""

    problem: str = ""
    state: str = ""  # of the server: waiting, playing, ended, stopped
    written: float = 0.0
    rows: tuple[Row, ...] = ()
    strange: int = 0  # messages that are nobody's, or of strangers that were too many to name


def read(folder: Path) -> Devices | None:
    """What the server wrote last; None where there are no devices."""
    path = folder / DEVICES
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError("too long")
        return devices(json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Devices(f"The devices cannot be shown: {DEVICES}: {error.strerror}.")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return Devices(f"The devices cannot be shown: {DEVICES} is damaged, or of another version.")


def devices(told: Json) -> Devices:
    if told["form"] != FORM:
        raise ValueError("of another version")
    written = number(told["written"])
    clock(written, written)  # may be no date
    rows = tuple(row(text(name), told, written) for name, told in told["devices"].items())
    others = told["others"]
    strange = whole(told["foreign"]) + whole(others["wrong"]) + whole(others["refused"])
    return Devices("", text(told["state"]), written, rows, strange)


def row(name: str, told: Json, written: float) -> Row:
    state, since = text(told["state"]), told["since"]
    away = state == "gone" and since is not None
    where = f"gone since {clock(number(since), written)}" if away else STATES[state]
    refused = whole(told["refused"]) + whole(told["wrong"])
    cells = (
        where,
        some([text(c) for c in told["clients"]]),
        "; ".join(at_work(d) for d in told["doing"]) or "–",
        str(whole(told["tasks"])),
        f"{number(told['seconds']):.1f}",
        size(whole(told["bytes_down"])),
        size(whole(told["bytes_up"])),
        str(whole(told["reconnects"])),
        str(refused),
        text(told["why"]) or "–",
    )
    return Row(name, state, cells, refused)


# Words --------------------------------------------------------------------------------------
def shown(found: Devices, label: str = "", now: float | None = None) -> Json:
    """As the page shows it; a server that has written nothing for long ``now`` is named."""
    if found.problem:
        return {"of": label, "summary": found.problem, "caption": "", "titles": [], "rows": []}
    ended = found.state == "ended"
    when = clock(found.written, now or found.written)
    words = [summary(found), "The run has ended." if ended else ""]
    if found.state == "stopped" or (not ended and now and now - found.written > SILENT):
        words[1] = f"The server has stopped, or says nothing, since {when}."
    caption = "at the end of the run" if ended else f"as of {when}"
    rows = [{"name": r.name, "state": r.state, "cells": r.cells} for r in found.rows]
    return {
        "of": label,
        "summary": " ".join(filter(None, words)),
        "caption": ", ".join(filter(None, (label, caption))),
        "titles": TITLES,
        "rows": rows,
    }


def summary(found: Devices) -> str:
    """What is worth being told: who is here, and what was refused."""
    states = Counter(row.state for row in found.rows)
    told = [f"{states[state]} {words}" for state, words in STATES.items() if states[state]]
    refused = sum(row.refused for row in found.rows) + found.strange
    many = f"{len(found.rows)} device{'s' * (len(found.rows) != 1)}"
    parts = [f"{many}: {', '.join(told)}" if told else "No device yet"]
    if refused:
        parts.append(f"{refused} refused replies and messages")
    return "; ".join(parts) + "."


def at_work(doing: Json) -> str:
    return f"{AT_WORK[doing['what']]} client {text(doing['client'])}, round {whole(doing['t'])}"


def some(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "") or "–"


def size(n: int) -> str:
    """Bytes as people say them."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= bytes_:
            return f"{n / bytes_:.1f} {unit}"
    return f"{n} B"


def clock(date: float, beside: float) -> str:
    """The time of day; with the day, if it is another."""
    one, other = datetime.fromtimestamp(date), datetime.fromtimestamp(beside)
    return one.strftime("%H:%M:%S" if one.date() == other.date() else "%Y-%m-%d %H:%M:%S")


# Nothing but ---------------------------------------------------------------------------------
def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value[:LONGEST]


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)
