"""Tasks (loss, targets, and the score that G and P measure) and additional metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from .errors import ConfigError, suggest_or_list
from .scores import CONFUSION, METRICS, TaskName

Criterion = Callable[[Tensor, Tensor], Tensor]  # net's output, targets -> loss

IGNORED_TOKEN = -100  # a sequence target that is ignored, such as padding


@dataclass(frozen=True)
class Task:
    """A learning task: its loss and its score, whose mean over test examples is G or P (at most 1)."""

    name: TaskName
    loss: Criterion  # mean loss of a mini-batch
    list_losses: Criterion  # losses of single examples, in float64
    # output, targets, variance -> scores
    score_examples: Callable[[Tensor, Tensor, Tensor], Tensor]
    metrics: tuple[str, ...]  # additional metrics measured by default
    output: str  # description of the net's output for one example; {n} is a number


def compute_sequence_loss(output: Tensor, y: Tensor) -> Tensor:
    """Compute the mean cross-entropy over all tokens that are not padding."""
    return cross_entropy(output.flatten(0, -2), y.flatten(), ignore_index=IGNORED_TOKEN)


def compute_regression_loss(output: Tensor, y: Tensor) -> Tensor:
    """Compute the mean squared error over all targets."""
    return mse_loss(output.reshape(y.shape), y)  # a column against a row would be broadcast


def list_class_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each example, in float64."""
    return cross_entropy(output.double(), y, reduction="none")


def list_token_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each token that is not padding, in float64."""
    flat, targets = output.double().flatten(0, -2), y.flatten()
    losses = cross_entropy(flat, targets, ignore_index=IGNORED_TOKEN, reduction="none")
    return losses[targets != IGNORED_TOKEN]


def list_number_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return the squared error of each target of a regression, in float64."""
    return mse_loss(output.reshape(y.shape).double(), y.double(), reduction="none")


def list_label_losses(output: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross-entropy of each label, in float64."""
    return binary_cross_entropy_with_logits(output.double(), y.double(), reduction="none")


def score_classes(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return True for each example whose largest logit is that of its class."""
    return output.argmax(1) == y


def score_labels(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return each example's fraction of correct labels."""
    return ((output > 0) == (y > 0.5)).double().mean(1)


def score_tokens(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return each example's fraction of correct tokens."""
    counts = y != IGNORED_TOKEN
    right = (output.argmax(-1) == y) & counts
    return right.sum(1).double() / counts.sum(1).clamp(min=1)


def score_numbers(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return 1 - (error)² / variance for each example, averaged over its targets.

    If ``variance`` is taken over all test examples, the mean over these examples is R².
    """
    errors = (output.reshape(y.shape).double() - y.double()).square()
    return (1 - errors / variance).mean(1)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("classification", cross_entropy, list_class_losses, score_classes, (), "{n} logits"),
        Task(
            "regression",
            compute_regression_loss,
            list_number_losses,
            score_numbers,
            ("mae", "rmse"),
            "{n} numbers",
        ),
        Task(
            "multilabel",
            binary_cross_entropy_with_logits,
            list_label_losses,
            score_labels,
            ("f1", "auc"),
            "{n} logits",
        ),
        Task(
            "sequence",
            compute_sequence_loss,
            list_token_losses,
            score_tokens,
            ("perplexity",),
            "{n} logits for each of its tokens",
        ),
    )
}


def compute_target_variance(y: Tensor) -> Tensor:
    """Compute the variance of each target over these examples; 1 for a target that does not vary."""
    variance = y.double().var(0, correction=0)
    return torch.where(variance > 0, variance, 1.0)


# all outputs, all targets -> metric
MetricFunction = Callable[[Tensor, Tensor], float | Tensor]


@dataclass(frozen=True)
class Metric:
    """A metric besides the score; clients for which it is not finite are left out of the mean."""

    name: str
    compute: MetricFunction


def compute_balanced_accuracy(output: Tensor, y: Tensor) -> float:
    """Average the accuracy over the classes that occur in the client's examples."""
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
    """Compute the area under the ROC curve of each class or label against the rest; average them.

    A class is left out if all of the client's examples have it, or none do.
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
    """Compute the mean absolute error over all targets."""
    return float((output.reshape(y.shape).double() - y).abs().mean())


def compute_rmse(output: Tensor, y: Tensor) -> float:
    """Compute the root of the mean squared error over all targets."""
    return math.sqrt(float((output.reshape(y.shape).double() - y).square().mean()))


def compute_r2(output: Tensor, y: Tensor) -> float:
    """Compute R² against the mean of the client's own test targets, averaged over the targets."""
    errors = (output.reshape(y.shape).double() - y).square().sum(0)
    spread = (y.double() - y.double().mean(0)).square().sum(0)
    return float((1 - errors / spread).mean())  # not finite where a target does not vary


def compute_perplexity(output: Tensor, y: Tensor) -> float:
    """Compute the perplexity over all tokens that are not padding."""
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


def count_confusions(output: Tensor, y: Tensor) -> dict[str, float]:
    """Count the examples per pair of true and predicted class (``confusion_3_5``); leave out zeros."""
    pairs = torch.stack([y, output.argmax(1)], dim=1)
    cells, counts = pairs.unique(dim=0, return_counts=True)
    cells_and_counts = zip(cells.tolist(), counts.tolist(), strict=True)
    return {f"{CONFUSION}_{true}_{predicted}": n for (true, predicted), n in cells_and_counts}


def choose_metrics(chosen: Sequence[str | MetricFunction], task: TaskName) -> tuple[Metric, ...]:
    """Return the metrics that ``evaluation.metrics`` names; a user's function is named after itself."""
    found = []
    for item in chosen:
        if callable(item):
            found.append(Metric(name_own_metric(item), item))
            continue
        name = str(item).lower()
        metric = METRICS.get(name)
        known = [m.name for m in METRICS.values() if task in m.tasks]
        if name == CONFUSION and task == "classification":  # a table, not a number
            continue
        if metric is None or task not in metric.tasks:
            what = (
                f"'{item}' does not apply to task '{task}'"
                if metric
                else f"unknown metric '{item}'"
            )
            raise ConfigError(f"evaluation.metrics: {what}{suggest_or_list(str(item), known)}")
        found.append(Metric(name, COMPUTE[name]))
    names = [m.name for m in found]
    if len(set(names)) < len(names):
        raise ConfigError("evaluation.metrics: a metric is listed twice")
    return tuple(found)


def name_own_metric(function: MetricFunction) -> str:
    """Return a user's metric's name; raise ConfigError if it is not an identifier or is built in."""
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier() or len(name) > 40:
        raise ConfigError(
            f"evaluation.metrics: a metric needs a name; define it with `def`, not as {name}"
        )
    if name in METRICS:
        raise ConfigError(
            f"evaluation.metrics: '{name}' is a built-in metric; give the function another name"
        )
    return name
