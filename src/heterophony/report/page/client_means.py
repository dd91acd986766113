"""Columns of the page's comparison in which each client counts the same, beside the pooled ones."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ...analysis.runs import Run, group_by_series
from ...analysis.tables import ACCURACY_COLUMNS
from ...runs.curve_points import select_last_ten
from ...runs.summary import MeanStd
from .curve_data import has_unequal_clients

TITLES = {f"{m}.last10.clients": f"{m} last 10, mean over clients" for m in "GP"}


def add_client_means(section: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Add the means over clients after the pooled accuracies, if they differ from those.

    They differ if some client has more test examples than another.
    """
    if not any(map(has_unequal_clients, runs)):
        return section
    groups, at = group_by_series(runs), len(ACCURACY_COLUMNS)
    insert_all(section["columns"], at, list(TITLES))
    insert_all(section["titles"], at, list(TITLES.values()))
    for row in section["rows"]:
        spreads = [compute_last_ten(groups[row["name"]], measure) for measure in "GP"]
        insert_all(row["cells"], at, [format_spread(spread) for spread in spreads])
        insert_all(row["values"], at, [spread and spread.mean for spread in spreads])
        insert_all(row["best"], at, [False, False])  # leads are judged by the pooled accuracies
    return section


def insert_all(into: list[Any], at: int, items: Sequence[Any]) -> None:
    into[at:at] = items


def compute_last_ten(group: Sequence[Run], measure: str) -> MeanStd | None:
    """The mean of the last ten evaluations, and its spread as in the other columns.

    That is over the seeds or, with one seed, over the evaluations.
    """
    last = [select_last_ten(run.client_mean_curves[measure]) for run in group]
    if not all(last):
        return None
    return MeanStd.from_values([fmean(ten) for ten in last] if len(last) > 1 else last[0])


def format_spread(spread: MeanStd | None) -> str:
    return f"{100 * spread.mean:.2f} ± {100 * spread.std:.2f}" if spread else "–"
