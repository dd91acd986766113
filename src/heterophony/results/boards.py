"""The boards of a run: their state as the server writes it, and their activities in every round.

Both contain what boards sent, so nothing is trusted: a malformed file becomes a
one-line problem, and malformed numbers are left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from ..core.errors import ConfigError
from ..core.files import UnsuitableFileError, read_regular_file, sort_names, write_atomically
from ..runs.events import Event, RoundEvent, select_rounds
from ..runs.run_index import BOARDS_FILE
from .table import Column, ResultTable, Rows, Value, render_csv, render_page

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
    """The state of one board."""

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
    """Read the status that the server wrote last; None if the run has no boards."""
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
    """Build the page's section of boards; mention if the server has been silent long before ``now``."""
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
    """Summarise how many boards are in each state and how many messages were refused."""
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


# Rounds -------------------------------------------------------------------------------------

MAX_DRAWN_ROUNDS = 30  # of a run; with more, the page would be slow
MAX_DRAWN_SPANS = 400  # of one board in one round
ACTIVITIES = ("receive", "train", "evaluate", "send")
SECONDS = ("train", "evaluate", "transfer", "wait")
NUMBERS = (
    *(*SECONDS, "bytes_down", "bytes_up", "peak_bytes", "cpu_share", "celsius", "joules"),
    "clients_possible",
)
ROUND_COLUMNS = (
    *(Column(f"{activity} s") for activity in SECONDS),
    *map(Column, ("down", "up", "memory", "CPU", "°C", "J", "clients possible")),
)


class LabelledRun(Protocol):
    """A run with its label and events."""

    @property
    def label(self) -> str: ...

    @property
    def events(self) -> list[Event]: ...


def iterate_device_rounds(event: RoundEvent) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Iterate over the boards of a round."""
    devices = event.get("boards")
    if isinstance(devices, dict):
        known = {str(name): values for name, values in devices.items() if isinstance(values, dict)}
        yield from ((name, known[name]) for name in sort_names(known))


def get_number(values: Mapping[str, Any], key: str) -> float | None:
    """Return the number under a key; None if it is missing or not finite."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


# The page -----------------------------------------------------------------------------------
def build_device_rounds_section(run: LabelledRun) -> Json | None:
    """Build the section of drawn rounds and averages; None if the run has no boards."""
    rounds = [e for e in select_rounds(run.events) if any(iterate_device_rounds(e))]
    if not rounds:
        return None
    return {
        "run": run.label,
        "rounds": [describe_round(e) for e in select_evenly(rounds, MAX_DRAWN_ROUNDS)],
        "left_out": max(0, len(rounds) - MAX_DRAWN_ROUNDS),
        "table": render_page(build_round_table(rounds)),
    }


def select_evenly(rounds: Sequence[RoundEvent], count: int) -> list[RoundEvent]:
    """Return the first, the last and evenly spaced rounds between them."""
    if len(rounds) <= count:
        return list(rounds)
    places = {round(i * (len(rounds) - 1) / (count - 1)) for i in range(count)}
    return [rounds[i] for i in sorted(places)]


def describe_round(event: RoundEvent) -> Json:
    return {
        "t": event["t"],
        "seconds": event["seconds"],
        "devices": [
            {"name": name, "spans": list_spans(values.get("spans"))}
            for name, values in iterate_device_rounds(event)
        ],
    }


def list_spans(spans: Any) -> list[list[Any]]:
    """Return the well-formed spans, as [activity, client, begin, end]."""
    found = []
    for span in spans[:MAX_DRAWN_SPANS] if isinstance(spans, list) else []:
        if isinstance(span, list) and len(span) == 4 and span[0] in ACTIVITIES:
            ends = [get_number({"": n}, "") for n in span[2:]]
            if None not in ends:
                found.append([ACTIVITIES.index(span[0]), str(span[1])[:64], *ends])
    return found


def build_round_table(rounds: Sequence[RoundEvent]) -> ResultTable:
    """Build the table of averages over the rounds, one row per board."""
    values: dict[str, dict[str, list[float]]] = {}
    for event in rounds:
        for name, device in iterate_device_rounds(event):
            for key in NUMBERS:
                if (number := get_number(device, key)) is not None:
                    values.setdefault(name, {}).setdefault(key, []).append(number)
    rows = [[name, *list_round_cells(values[name], len(rounds))] for name in sort_names(values)]
    return ResultTable.build(["board", *ROUND_COLUMNS], rows)


def list_round_cells(found: Mapping[str, list[float]], rounds: int) -> list[Value]:
    def average(key: str) -> float:
        return sum(found.get(key, [])) / rounds

    def combine(key: str, how: Callable[[list[float]], float], form: str = "{:.0f}") -> str | None:
        return form.format(how(found[key])) if key in found else None

    peak = found.get("peak_bytes")
    return [
        *(average(key) for key in SECONDS),
        *(format_bytes(round(average(key))) for key in ("bytes_down", "bytes_up")),
        format_bytes(round(max(peak))) if peak else None,
        combine("cpu_share", lambda shares: 100 * fmean(shares), "{:.0f} %"),
        combine("celsius", max),
        combine("joules", sum),
        combine("clients_possible", lambda counts: counts[-1]),
    ]


def write_board_rounds(runs: Sequence[LabelledRun], path: Path) -> None:
    """Write one line per run, round and board as CSV."""
    if path.suffix != ".csv":
        raise ConfigError(f"--kind devices: write a .csv, as in -o devices.csv, not {path.name}")
    rows: Rows = [
        [
            *(run.label, event["t"], event["seconds"], name),
            *(None if n is None else n if n % 1 else int(n) for n in list_numbers(values)),
        ]
        for run in runs
        for event in select_rounds(run.events)
        for name, values in iterate_device_rounds(event)
    ]
    table = ResultTable.build(["run", "round", "round_seconds", "board", *NUMBERS], rows)
    write_atomically(path, render_csv(table).encode())


def list_numbers(values: Mapping[str, Any]) -> list[float | None]:
    return [get_number(values, key) for key in NUMBERS]
