"""Accuracy of clients that join after training, on arrival and in the end."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from ..runs.accuracies import NewClients
from .runs import Run, group_by_series

MEASURE_TITLES = {
    "G": "G",
    "before": "P on arrival",
    "P": "P in the end",
    "worst10": "P worst 10 %",
}


def build_new_clients_section(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The section of the page, with a row per series that has new clients; None if none has."""
    groups = {name: collect_new_clients(group) for name, group in group_by_series(runs).items()}
    rows = [
        {
            "name": name,
            "seeds": [seed for seed, _ in new],
            "cells": format_new_client_cells([n for _, n in new]),
        }
        for name, new in groups.items()
        if new
    ]
    return (
        {"titles": ["clients", "rounds", *MEASURE_TITLES.values()], "rows": rows} if rows else None
    )


def collect_new_clients(group: Sequence[Run]) -> list[tuple[int, NewClients]]:
    """New clients of the finished runs, with their seeds."""
    summaries = [run.summary for run in group if run.summary]
    return [(s.seed, s.new_clients) for s in summaries if s.new_clients]


def average_new_clients(group: Sequence[Run]) -> dict[str, float | None] | None:
    """Average their accuracies over the seeds; None if there are no new clients."""
    several = [new for _, new in collect_new_clients(group)]
    if not several:
        return None
    values = {
        k: [v for n in several if (v := get_measure(n, k)) is not None] for k in MEASURE_TITLES
    }
    return {k: fmean(known) if known else None for k, known in values.items()}


def format_new_client_cells(several: Sequence[NewClients]) -> list[str]:
    """Number of clients, rounds each trained alone, and accuracies in percent; ± is over the seeds."""
    sizes = [
        ", ".join(dict.fromkeys(str(v) for v in values))
        for values in ([len(n.clients) for n in several], [n.rounds for n in several])
    ]
    return sizes + [
        format_percent_mean([get_measure(n, k) for n in several]) for k in MEASURE_TITLES
    ]


def get_measure(new: NewClients, key: str) -> float | None:
    value: float | None = new.fairness.worst10 if key == "worst10" else getattr(new, key)
    return value


def format_percent_mean(values: Sequence[float | None]) -> str:
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    return f"{fmean(known):.2f}" + (f" ± {pstdev(known):.2f}" if len(known) > 1 else "")
