"""Compute metrics beside the task's score, from all outputs and targets of one client's test examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .errors import ConfigError, suggest_or_list
from .scores import METRICS, TaskName
from .tasks import IGNORED_TOKEN

MetricFunction = Callable[[Tensor, Tensor], float | Tensor]  # of all outputs and all targets


@dataclass(frozen=True)
class Metric:
    """A named function. It is not finite where it is undefined: that client then does not count."""

    name: str
    compute: MetricFunction


def compute_balanced_accuracy(output: Tensor, y: Tensor) -> float:
    """Average the accuracies of the classes that the client has."""
    right = (output.argmax(1) == y).double()
    return float(torch.stack([right[y == c].mean() for c in y.unique()]).mean())


def compute_f1(output: Tensor, y: Tensor) -> float:
    """Compute the F1 score of each class or label that occurs, and average them."""
    from sklearn.metrics import f1_score  # type: ignore[import-untyped]  # slow to import

    several = y.dim() == 2
    predicted = (output > 0).int() if several else output.argmax(1)
    occurs = ((predicted > 0) | (y > 0.5)).any(0) if several else None
    if occurs is not None and not bool(occurs.any()):
        return math.nan
    truth = (y > 0.5).int() if several else y
    columns = None if occurs is None else occurs.nonzero().flatten().tolist()
    return float(
        f1_score(truth.numpy(), predicted.numpy(), labels=columns, average="macro", zero_division=0)
    )


def compute_auc(output: Tensor, y: Tensor) -> float:
    """Compute the area under the ROC curve of each class or label, against all others; average them.

    A class that all or none of the client's examples have does not count.
    """
    from sklearn.metrics import roc_auc_score  # slow to import

    scores = output if y.dim() == 2 else output.softmax(1)
    truth = (y > 0.5) if y.dim() == 2 else y[:, None] == torch.arange(output.shape[1])
    mixed = [k for k in range(truth.shape[1]) if 0 < int(truth[:, k].sum()) < len(truth)]
    if not mixed:
        return math.nan
    areas = [roc_auc_score(truth[:, k].numpy(), scores[:, k].numpy()) for k in mixed]
    return float(sum(areas) / len(areas))


def compute_mae(output: Tensor, y: Tensor) -> float:
    return float((output.reshape(y.shape).double() - y).abs().mean())


def compute_rmse(output: Tensor, y: Tensor) -> float:
    return math.sqrt(float((output.reshape(y.shape).double() - y).square().mean()))


def compute_r2(output: Tensor, y: Tensor) -> float:
    """Compute R² against the mean of the client's own test targets, the mean over its targets."""
    errors = (output.reshape(y.shape).double() - y).square().sum(0)
    spread = (y.double() - y.double().mean(0)).square().sum(0)
    return float((1 - errors / spread).mean())  # not finite where a target does not vary


def compute_perplexity(output: Tensor, y: Tensor) -> float:
    flat = output.double().flatten(0, -2)
    return math.exp(float(cross_entropy(flat, y.flatten(), ignore_index=IGNORED_TOKEN)))


COMPUTE: dict[str, MetricFunction] = {
    "balanced_accuracy": compute_balanced_accuracy,
    "f1": compute_f1,
    "auc": compute_auc,
    "mae": compute_mae,
    "rmse": compute_rmse,
    "r2": compute_r2,
    "perplexity": compute_perplexity,
}


def choose_metrics(
    chosen: Sequence[str | MetricFunction], task: TaskName, key: str = "evaluation.metrics"
) -> tuple[Metric, ...]:
    """Return the metrics with these names; a function of the user's own is a metric by its name."""
    found = []
    for item in chosen:
        if callable(item):
            found.append(Metric(name_function(item, key), item))
            continue
        name = str(item).lower()
        metric = METRICS.get(name)
        known = [m.name for m in METRICS.values() if task in m.tasks]
        if metric is None or task not in metric.tasks:
            what = f"'{item}' is not for task '{task}'" if metric else f"there is no '{item}'"
            raise ConfigError(f"{key}: {what}{suggest_or_list(str(item), known)}")
        found.append(Metric(name, COMPUTE[name]))
    names = [m.name for m in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"{key}: a metric is listed twice")
    return tuple(found)


def name_function(function: MetricFunction, key: str) -> str:
    """Return the name of a user's metric; refuse one that has no proper name."""
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier() or len(name) > 40:
        raise ConfigError(f"{key}: a metric needs a name; define it with `def`, not as {name}")
    if name in METRICS:
        raise ConfigError(f"{key}: '{name}' is the name of a metric; name yours differently")
    return name
