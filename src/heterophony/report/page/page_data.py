"""What the page knows: every number and name it shows, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...analysis.costs import costs
from ...analysis.devices import shown
from ...analysis.exports import as_csv
from ...analysis.new_clients import newcomers
from ...analysis.participation import attendance
from ...analysis.runs import (
    Curve,
    Run,
    by_series,
    mean_curve,
    texts,
)
from ...analysis.statistics import statistics
from ...analysis.tables import (
    ACCURACIES,
    Row,
    cell,
    columns,
    difference_cell,
    leaders,
    rows,
)
from ...run.summary import latest
from .audit_section import audited

Json = dict[str, Any]
POINTS = 30_000  # of all curves together: what keeps the page small
HELD_CLIENTS = 1000  # the heat map's columns are a pixel wide then


def content(runs: Sequence[Run]) -> Json:
    """Everything the script shows, as plain data."""
    table = rows(runs)
    federations = {str(r.start["data_sha256"]): r.start for r in reversed(runs)}
    order = list(reversed(federations))
    points = max(50, POINTS // (2 * len(runs)))
    return {
        "title": title(runs),
        "summary": summary(runs, table),
        "series": [
            {
                "name": name,
                "key": name.removesuffix(f", {group[0].state}"),  # the same while a run goes on
                "mean": {k: thinned(mean_curve(group, k), points) for k in "GP"},
                "runs": [one(r, order.index(r.start["data_sha256"]), points) for r in group],
            }
            for name, group in by_series(runs).items()
        ],
        "every": max(step(len(r.curves[k]), points) for r in runs for k in "GP"),
        "table": comparison(table),
        "csv": as_csv(table),
        "differences": differences(table),
        "statistics": statistics(table),
        "newcomers": newcomers(runs),
        "audited": audited(runs),
        "federations": [
            {k: federations[sha][k] for k in ("clients", "train", "test")} for sha in order
        ],
        "attendance": [
            {
                "labels": seen.labels,
                "federation": order.index(seen.data_sha256),
                "asked": seen.asked.tolist(),
                "took_part": seen.took_part.tolist(),
            }
            for seen in attendance(runs)
        ],
        "devices": [shown(r.devices, r.label) for r in runs if r.devices],
        "held": held(runs[0], several=len(order) > 1),
        "settings": settings(runs),
    }


def title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(r.algorithm for r in runs))
    told = (
        f"{len(names)} algorithms"
        if len(names) > 5
        else " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    )
    data = dict.fromkeys(Path(str(r.config.get("data", {}).get("name", ""))).stem for r in runs)
    return " on ".join(filter(None, (told, ", ".join(filter(None, data)))))


def summary(runs: Sequence[Run], table: Sequence[Row]) -> str:
    """The page in one line: what was compared, and who leads."""
    sizes = [
        counted([len(r.start["clients"]) for r in runs], "clients"),
        counted([r.start["rounds"] for r in runs], "rounds"),
        counted([len(group) for group in by_series(runs).values()], "seeds"),
    ]
    leading: dict[str, list[str]] = {}
    for key in ("G.last10", "P.last10"):
        for row in table:
            if [row["name"]] == leaders(table, key):
                value = f"{key[0]} ({100 * row['over_seeds'][key]['mean']:.2f} %)"
                leading.setdefault(row["name"], []).append(value)
    who = [f"{name} has the highest {' and '.join(values)}" for name, values in leading.items()]
    told = f" Over the last ten evaluations {' and '.join(who)}." if who else ""
    return f"{', '.join(sizes)}.{told}"


def counted(numbers: Sequence[int], word: str) -> str:
    """``20 clients``, ``10–20 clients``, ``1 seed``."""
    low, high = min(numbers), max(numbers)
    span = f"{low}–{high}" if low < high else f"{low}"
    return f"{span} {word.removesuffix('s') if high == 1 else word}"


def thinned(curve: Curve, points: int) -> list[list[float]]:
    """At most so many of its points, evenly, always the last; precise enough to draw and read."""
    kept = curve[:: -step(len(curve), points)]
    return [[t, round(v, 5)] for t, v in reversed(kept)]


def step(length: int, points: int) -> int:
    """Every how many-th of so many is kept."""
    return -(-length // points) or 1


def one(run: Run, federation: int, points: int) -> Json:
    """One run: result.json, with the clients as columns of counts instead of objects."""
    known = run.so_far
    result = known.json() if known else None
    clients = result.pop("clients") if result else {}
    last = latest(run.events) or {}
    curves = {k: thinned(run.curves[k], points) for k in "GP"}
    measured = sorted({int(t) for curve in curves.values() for t, _ in curve})
    return {
        "label": run.label,
        "state": run.state,
        "seed": run.seed,
        "federation": federation,
        "curves": curves,
        "costs": costs(run.events, measured),
        "result": result,
        "G": last.get("G"),
        "P": last.get("P"),
        "participations": [c["participations"] for c in clients.values()],
    }


def comparison(table: Sequence[Row]) -> Json:
    shown = columns(table)
    best = {k: leaders(table, k) for k in shown}
    return {
        "columns": list(shown),
        "titles": list(shown.values()),
        "rows": [
            {
                "name": row["name"],
                "seeds": row["seeds"],
                "cells": [cell(row, k) for k in shown],
                "best": [row["name"] in best[k] for k in shown],
                "values": [row["over_seeds"].get(k, {}).get("mean") for k in shown],
            }
            for row in table
        ],
    }


def differences(table: Sequence[Row]) -> Json | None:
    compared = [row for row in table if row["difference"]]
    if not compared:
        return None
    return {
        "to": table[0]["name"],
        "titles": list(ACCURACIES.values()),
        "rows": [
            {
                "name": row["name"],
                "seeds": row["difference"]["seeds"],
                "cells": [difference_cell(row, k) for k in ACCURACIES],
            }
            for row in compared
        ],
    }


def held(run: Run, several: bool) -> Json:
    """Who holds what, in the first run's federation."""
    start = run.start
    return {
        "of": run.label if several else "",
        "clients": start["clients"][:HELD_CLIENTS],
        "left_out": max(0, len(start["clients"]) - HELD_CLIENTS),
        "classes": start["classes"],
        "counts": start["labels"][:HELD_CLIENTS],
    }


def settings(runs: Sequence[Run]) -> list[Json]:
    """Every setting's value in every series."""
    groups = [[dict(texts(r.config)) for r in group] for group in by_series(runs).values()]
    keys = dict.fromkeys(k for group in groups for c in group for k in c)
    return [
        {"key": k, "values": [", ".join(dict.fromkeys(c.get(k, "–") for c in g)) for g in groups]}
        for k in keys
    ]
