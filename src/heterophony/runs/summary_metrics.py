"""Further metrics of a run, beside G and P: pooled over clients, at the end and over the rounds."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.scores import get_metric_info
from .events import Event, get_start, select_evaluations

MetricCurve = list[tuple[int, float]]


def compute_metric_curves(events: Sequence[Event]) -> dict[str, dict[str, MetricCurve]]:
    """Return (round, value) points by metric and measure (``G``, ``P``, ``G_valid``, ``P_valid``).

    Values are averaged over clients as the metric's pooling says.
    """
    start = get_start(events)
    sizes = {"G": start["test"], "P": start["test"]}
    if "validation" in start:
        sizes |= {"G_valid": start["validation"], "P_valid": start["validation"]}
    out: dict[str, dict[str, MetricCurve]] = {}
    for event in select_evaluations(events):
        for measure, metrics in event.get("metrics", {}).items():
            for name, values in metrics.items():
                pooled = get_metric_info(name).pool(values, sizes[measure])
                if pooled is not None:
                    out.setdefault(name, {}).setdefault(measure, []).append((event["t"], pooled))
    return out


def pool_last_metrics(events: Sequence[Event]) -> dict[str, dict[str, float | None]]:
    """Return the last value of every metric, by measure."""
    curves = compute_metric_curves(events)
    return {name: {m: c[-1][1] for m, c in of.items()} for name, of in curves.items()}
