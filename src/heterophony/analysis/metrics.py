"""Metrics beside the score, of several runs: G and P after the last round, one row per series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..core.scores import get_metric_info
from .runs import Run, group_by_series


@dataclass(frozen=True)
class MetricRow:
    """The metrics of one series, as text: means over its seeds."""

    series: str
    seeds: list[int]
    cells: list[str]


def build_metric_table(runs: Sequence[Run]) -> tuple[list[str], list[MetricRow]]:
    """Return the titles of columns, and the rows; both are empty if no run measured any."""
    measured = [(r, r.current_summary.metrics) for r in runs if r.current_summary]
    names = list(dict.fromkeys(name for _, metrics in measured for name in metrics))
    columns = [(get_metric_info(name), measure) for name in names for measure in "GP"]
    rows = [
        MetricRow(
            series,
            [r.seed for r in group],
            [info.format(average_metric(group, info.name, m)) for info, m in columns],
        )
        for series, group in group_by_series([r for r, metrics in measured if metrics]).items()
    ]
    titles = [f"{m} {info.title or info.name.replace('_', ' ')}" for info, m in columns]
    return titles, rows


def average_metric(group: Sequence[Run], name: str, measure: str) -> float | None:
    """Average a metric over the seeds; None if a seed does not have it."""
    summaries = [s for r in group if (s := r.current_summary)]
    found = [s.metrics.get(name, {}).get(measure) for s in summaries]
    known = [v for v in found if v is not None]
    return fmean(known) if known and len(known) == len(group) else None
