"""The clients who joined after training, as a table: as they arrived, and in the end."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

from ..run.summary import NewClients
from .runs import Run, by_series

TITLES = {"G": "G", "before": "P on arrival", "P": "P in the end", "worst10": "P worst 10 %"}


def newcomers(runs: Sequence[Run]) -> dict[str, Any] | None:
    """A row for every series that has them; None where none has."""
    groups = {name: joined(group) for name, group in by_series(runs).items()}
    rows = [
        {"name": name, "seeds": [seed for seed, _ in new], "cells": cells([n for _, n in new])}
        for name, new in groups.items()
        if new
    ]
    return {"titles": ["clients", "rounds", *TITLES.values()], "rows": rows} if rows else None


def joined(group: Sequence[Run]) -> list[tuple[int, NewClients]]:
    """By seed; runs that are not finished have none yet."""
    summaries = [run.summary for run in group if run.summary]
    return [(s.seed, s.new_clients) for s in summaries if s.new_clients]


def over_seeds(group: Sequence[Run]) -> dict[str, float | None] | None:
    """Their accuracies as means over the seeds; None where there are none."""
    several = [new for _, new in joined(group)]
    if not several:
        return None
    values = {k: [v for n in several if (v := value(n, k)) is not None] for k in TITLES}
    return {k: fmean(known) if known else None for k, known in values.items()}


def cells(several: Sequence[NewClients]) -> list[str]:
    """How many, how long alone, and the accuracies in percent; ± is over the seeds."""
    sizes = [
        ", ".join(dict.fromkeys(str(v) for v in values))
        for values in ([len(n.clients) for n in several], [n.rounds for n in several])
    ]
    return sizes + [cell([value(n, k) for n in several]) for k in TITLES]


def value(new: NewClients, key: str) -> float | None:
    found: float | None = new.fairness.worst10 if key == "worst10" else getattr(new, key)
    return found


def cell(values: Sequence[float | None]) -> str:
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    return f"{fmean(known):.2f}" + (f" ± {pstdev(known):.2f}" if len(known) > 1 else "")
