"""Tasks and metrics by name, without torch: the score of each task, and how metrics are pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

# prefix of metrics in replies, followed by a training phase or a measure such as P
LOSS_PREFIX = "loss/"
TaskName = Literal["classification", "regression", "multilabel", "sequence"]
Pooling = Literal["mean", "square", "log"]

SCORES: dict[str, str] = {  # name of the score that G and P measure, by task
    "classification": "accuracy",
    "regression": "R²",
    "multilabel": "label accuracy",
    "sequence": "token accuracy",
}
SCALES: dict[Pooling, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "mean": (float, float),
    "square": (lambda v: v * v, math.sqrt),
    "log": (math.log, math.exp),
}


@dataclass(frozen=True)
class MetricInfo:
    """A metric besides the score.

    ``pooling`` is the scale on which values are averaged over clients, weighted by their test examples.
    """

    name: str
    tasks: tuple[TaskName, ...] = ()
    pooling: Pooling = "mean"
    percent: bool = False  # whether the metric is a fraction, shown in percent
    title: str = ""  # title in tables; default: the name

    def pool(self, values: Sequence[float | None], weights: Sequence[int]) -> float | None:
        """Average a metric over clients; return None if it is undefined for all of them."""
        known = [(v, n) for v, n in zip(values, weights, strict=True) if v is not None and n]
        if not known:
            return None
        there, back = SCALES[self.pooling]
        return back(sum(there(v) * n for v, n in known) / sum(n for _, n in known))

    def format(self, value: float | None) -> str:
        """Format a value of this metric for a table."""
        if value is None:
            return "–"
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4g}"


CONFUSION = "confusion"  # as in evaluation.metrics: counts of each true and predicted class
LABELS: tuple[TaskName, ...] = ("classification", "multilabel")
METRICS = {
    m.name: m
    for m in (
        MetricInfo("balanced_accuracy", ("classification",), percent=True),
        MetricInfo("f1", LABELS, percent=True, title="F1"),
        MetricInfo("auc", LABELS, percent=True, title="AUC"),
        MetricInfo("mae", ("regression",), title="MAE"),
        MetricInfo("rmse", ("regression",), "square", title="RMSE"),
        MetricInfo("r2", ("regression",), percent=True, title="R² within clients"),
        MetricInfo(CONFUSION, ("classification",)),
        MetricInfo("perplexity", ("sequence",), "log"),
    )
}


def get_metric_info(name: str) -> MetricInfo:
    """Return how a metric is averaged over clients and shown; a user's own metric is a plain mean."""
    return METRICS.get(name) or MetricInfo(name)
