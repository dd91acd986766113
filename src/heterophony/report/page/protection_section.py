"""Protections on the report page: what each series uses, and ε over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...analysis.runs import Run, group_by_series
from ...runs.events import select_rounds
from .curve_data import thin_curve

MAX_POINTS = 500  # of one curve


def build_protection_section(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The protections of every series; None if no run has protections or bad clients."""
    rows, curves, notes = [], [], dict[str, list[str]]()
    for name, group in group_by_series(runs).items():
        start = group[0].start
        if not start.get("protection") and not start.get("bad_clients"):
            continue
        privacy = start.get("privacy", {})
        curve = find_epsilon_curve(group)
        rows.append(
            [
                name,
                ", ".join(map(format_protection, start.get("protection", []))) or "–",
                format_epsilon(curve) if privacy else "–",
                f"{privacy['delta']:g}" if privacy else "–",
                str(len(start.get("bad_clients", []))),
            ]
        )
        if privacy:
            outside = "; ".join(privacy["outside"])
            note = f"ε is about {privacy['accounting']}. Outside ε: {outside}."
            notes.setdefault(note, []).append(name)
        if curve:
            curves.append({"name": name, "points": thin_curve(curve, MAX_POINTS)})
    titles = ["protection", "ε", "δ", "bad clients"]
    texts = [f"{', '.join(names)}: {note}" for note, names in notes.items()]
    return {"titles": titles, "rows": rows, "curves": curves, "notes": texts} if rows else None


def find_epsilon_curve(group: Sequence[Run]) -> list[tuple[int, float]]:
    """The largest ε of the series after every round, counted from 1; without unbounded ones."""
    found: dict[int, float] = {}
    for run in group:
        for event in select_rounds(run.events):
            epsilon = event.get("epsilon")
            if epsilon is not None:
                t = event["t"] + 1
                found[t] = max(found.get(t, 0.0), epsilon)
    return sorted(found.items())


def format_epsilon(curve: Sequence[tuple[int, float]]) -> str:
    return f"{curve[-1][1]:.3f}" if curve else "no bound"


def format_protection(settings: Mapping[str, Any]) -> str:
    """Write ``top_k (ratio 0.1)``."""
    given = {k: v for k, v in settings.items() if k != "kind" and v not in ({}, "server")}
    values = [f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in given.items()]
    return f"{settings['kind']} ({', '.join(values)})" if values else str(settings["kind"])
