"""The tasks: what the network's output means, the loss that clients minimise, the score that G and P are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
)

from .scores import TaskName

Criterion = Callable[[Tensor, Tensor], Tensor]  # of the net's output and the targets

IGNORED_TOKEN = -100  # a target of a sequence that does not count, such as padding


@dataclass(frozen=True)
class Task:
    """A task. Its score is 1 for a perfect example; G and P are means of it over test examples."""

    name: TaskName
    loss: Criterion  # the mean over a mini-batch
    list_losses: Criterion  # the losses of which that is the mean, in float64
    score_examples: Callable[[Tensor, Tensor, Tensor], Tensor]  # of output, targets, variance
    metrics: tuple[str, ...]  # other metrics that are measured by default
    output: str  # what the net must return for one example; {n} is a number


def compute_sequence_loss(output: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, -2), y.flatten(), ignore_index=IGNORED_TOKEN)


def compute_regression_loss(output: Tensor, y: Tensor) -> Tensor:
    return mse_loss(output.reshape(y.shape), y)  # a column against a row would be broadcast


def list_class_losses(output: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(output.double(), y, reduction="none")


def list_token_losses(output: Tensor, y: Tensor) -> Tensor:
    flat, targets = output.double().flatten(0, -2), y.flatten()
    losses = cross_entropy(flat, targets, ignore_index=IGNORED_TOKEN, reduction="none")
    return losses[targets != IGNORED_TOKEN]


def list_number_losses(output: Tensor, y: Tensor) -> Tensor:
    return mse_loss(output.reshape(y.shape).double(), y.double(), reduction="none")


def list_label_losses(output: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(output.double(), y.double(), reduction="none")


def score_classes(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    return output.argmax(1) == y


def score_labels(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return the share of the labels that are predicted rightly, of each example."""
    return ((output > 0) == (y > 0.5)).double().mean(1)


def score_tokens(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return the share of the tokens that are predicted rightly, of each example."""
    counts = y != IGNORED_TOKEN
    right = (output.argmax(-1) == y) & counts
    return right.sum(1).double() / counts.sum(1).clamp(min=1)


def score_numbers(output: Tensor, y: Tensor, variance: Tensor) -> Tensor:
    """Return 1 - (error)² / variance of each example, the mean over its targets.

    With the variance over all test examples, the mean over all test examples is R².
    """
    errors = (output.reshape(y.shape).double() - y.double()).square()
    return (1 - errors / variance).mean(1)


TASKS = {
    task.name: task
    for task in (
        Task(
            "classification",
            cross_entropy,
            list_class_losses,
            score_classes,
            (),
            "{n} logits",
        ),
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


def get_task(name: str) -> Task:
    return TASKS[name]  # type: ignore[index]


def compute_target_variance(y: Tensor) -> Tensor:
    """Compute the variance of each target over these examples; 1 where it does not vary."""
    variance = y.double().var(0, correction=0)
    return torch.where(variance > 0, variance, 1.0)
