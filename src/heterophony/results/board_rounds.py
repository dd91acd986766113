"""What each board of a run did in its rounds: a section of the page, and a table of all rounds.

The numbers come from boards, so nothing in them is trusted: what does not have its form is left out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core.errors import ConfigError
from ..core.files import quote_formula, sort_names, write_atomically
from ..runs.events import RoundEvent, select_rounds
from .boards import format_bytes
from .runs import Run

Json = dict[str, Any]
MAX_DRAWN_ROUNDS = 30  # of a run; with more, the page would be slow
MAX_DRAWN_SPANS = 400  # of one board in one round
ACTIVITIES = ("receive", "train", "evaluate", "send")
SECONDS = ("train", "evaluate", "transfer", "wait")
NUMBERS = (*SECONDS, "bytes_down", "bytes_up", "peak_bytes", "cpu_share", "celsius", "joules", "clients_possible")  # fmt: skip
TITLES = ["board", "train s", "evaluate s", "transfer s", "wait s", "down", "up", "memory", "CPU", "°C", "J", "clients possible"]  # fmt: skip


def iterate_device_rounds(event: RoundEvent) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Iterate over the boards of a round."""
    devices = event.get("boards")
    if isinstance(devices, dict):
        known = {str(name): values for name, values in devices.items() if isinstance(values, dict)}
        yield from ((name, known[name]) for name in sort_names(known))


def get_number(values: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, or None."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


# The page -----------------------------------------------------------------------------------
def build_device_rounds_section(run: Run) -> Json | None:
    """Return the drawn rounds and the table of averages; None if the run has no boards."""
    rounds = [e for e in select_rounds(run.events) if any(iterate_device_rounds(e))]
    if not rounds:
        return None
    return {
        "run": run.label,
        "rounds": [describe_round(e) for e in select_evenly(rounds, MAX_DRAWN_ROUNDS)],
        "left_out": max(0, len(rounds) - MAX_DRAWN_ROUNDS),
        "titles": TITLES,
        "rows": build_rows(rounds),
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
    """Return the spans that have their form, as [activity, client, begin, end]."""
    found = []
    for span in spans[:MAX_DRAWN_SPANS] if isinstance(spans, list) else []:
        if isinstance(span, list) and len(span) == 4 and span[0] in ACTIVITIES:
            ends = [get_number({"": n}, "") for n in span[2:]]
            if None not in ends:
                found.append([ACTIVITIES.index(span[0]), str(span[1])[:64], *ends])
    return found


def build_rows(rounds: Sequence[RoundEvent]) -> list[Json]:
    """Return one row of averages per board."""
    values: dict[str, dict[str, list[float]]] = {}
    for event in rounds:
        for name, device in iterate_device_rounds(event):
            for key in NUMBERS:
                if (number := get_number(device, key)) is not None:
                    values.setdefault(name, {}).setdefault(key, []).append(number)
    return [
        {"name": name, "cells": format_row(values[name], len(rounds))}
        for name in sort_names(values)
    ]


def format_row(found: Mapping[str, list[float]], rounds: int) -> list[str]:
    def average(key: str) -> float:
        return sum(found.get(key, [])) / rounds

    def format_last(key: str, form: str) -> str:
        return form.format(found[key][-1]) if key in found else "–"

    return [
        *(f"{average(key):.2f}" for key in SECONDS),
        *(format_bytes(round(average(key))) for key in ("bytes_down", "bytes_up")),
        format_bytes(round(max(found["peak_bytes"]))) if "peak_bytes" in found else "–",
        f"{100 * fmean(found['cpu_share']):.0f} %" if "cpu_share" in found else "–",
        f"{max(found['celsius']):.0f}" if "celsius" in found else "–",
        f"{sum(found['joules']):.0f}" if "joules" in found else "–",
        format_last("clients_possible", "{:.0f}"),
    ]


# The table ----------------------------------------------------------------------------------
def write_board_rounds(runs: Sequence[Run], path: Path) -> None:
    """Write one line per run, round and board as CSV."""
    if path.suffix != ".csv":
        raise ConfigError(f"--kind devices: write a .csv, as in -o devices.csv, not {path.name}")
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "round", "round_seconds", "board", *NUMBERS])
    for run in runs:
        for event in select_rounds(run.events):
            for name, values in iterate_device_rounds(event):
                numbers = [get_number(values, key) for key in NUMBERS]
                who = [quote_formula(run.label), event["t"], event["seconds"], quote_formula(name)]
                writer.writerow(
                    [*who, *("" if n is None else f"{n:g}" if n % 1 else int(n) for n in numbers)]
                )
    write_atomically(path, out.getvalue().encode())
