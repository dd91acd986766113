"""The page's table of accuracies in which each client counts the same, beside the pooled ones."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...analysis.runs import Run, group_by_series
from ...analysis.tables import Row, format_cell
from ...runs.accuracies import MeanStd
from ...runs.curve_points import select_last_ten
from .curve_data import has_unequal_clients

TITLES = [f"{m} last 10, {kind}" for m in "GP" for kind in ("pooled", "mean over clients")]


def build_client_means_section(runs: Sequence[Run], table: Sequence[Row]) -> dict[str, Any] | None:
    """G and P of the last ten evaluations, pooled and as the mean over clients.

    None if both are the same, because all clients have equally many test examples.
    """
    if not any(map(has_unequal_clients, runs)):
        return None
    groups = group_by_series(runs)
    rows = [
        {
            "name": row["name"],
            "seeds": row["seeds"],
            "cells": [
                text
                for m in "GP"
                for text in (
                    format_cell(row, f"{m}.last10"),
                    format_spread(compute_last_ten(groups[row["name"]], m)),
                )
            ],
        }
        for row in table
    ]
    return {"titles": TITLES, "rows": rows}


def compute_last_ten(group: Sequence[Run], measure: str) -> MeanStd | None:
    """The mean of the last ten evaluations over clients, and its spread as in the other tables.

    That is over the seeds or, with one seed, over the evaluations.
    """
    last = [select_last_ten(run.client_mean_curves[measure]) for run in group]
    if not all(last):
        return None
    return MeanStd.from_values([fmean(ten) for ten in last] if len(last) > 1 else last[0])


def format_spread(spread: MeanStd | None) -> str:
    return f"{100 * spread.mean:.2f} ± {100 * spread.std:.2f}" if spread else "–"
