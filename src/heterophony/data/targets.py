"""Targets of every task: checked and converted to arrays, and cut into groups for label partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, DataError
from ..core.scores import TaskName
from ..core.tasks import IGNORED_TOKEN

MAX_CLASSES = 1 << 20
GROUPS = 10  # of equal size, by which the targets of a regression are partitioned


def parse_targets(
    y: NDArray[Any], task: TaskName, name: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Check the targets of a task; return them as stored, and the names of classes or targets."""
    number = np.issubdtype(y.dtype, np.number) or y.dtype == np.bool_
    whole = np.issubdtype(y.dtype, np.integer)
    if task == "classification":
        if y.ndim != 1 or not whole:
            raise DataError(
                f"{name}: labels must be one whole number per example, not {y.dtype} {y.shape}"
                f"{name_odd_label(y)}{suggest_task(y)}"
            )
        if y.size and int(y.min()) < 0:
            raise DataError(
                f"{name}: label {y.min()} (example {int(y.argmin())}) is negative; number the labels"
                " 0, 1, …"
            )
        return y.astype(np.int64), number_labels(y, name)
    if task == "regression":
        if y.ndim not in (1, 2) or not number or not np.isfinite(y).all():
            raise DataError(
                f"{name}: targets of a regression must be finite numbers, one or one row per"
                f" example, not {y.dtype} {y.shape}"
            )
        columns = y.reshape(len(y), -1).astype(np.float32)
        names = ("target",) if columns.shape[1] == 1 else number_names(columns.shape[1])
        return columns, names
    if task == "multilabel":
        if y.ndim != 2 or not number or not np.isin(y, (0, 1)).all():
            raise DataError(
                f"{name}: the labels of an example must be a row of 0 and 1, not {y.dtype} {y.shape}"
            )
        return y.astype(np.float32), number_names(y.shape[1])
    if y.ndim != 2 or not whole or (y[y != IGNORED_TOKEN] < 0).any():
        raise DataError(
            f"{name}: the targets of a sequence must be a row of whole numbers from 0 (or"
            f" {IGNORED_TOKEN}: does not count), not {y.dtype} {y.shape}"
        )
    return y.astype(np.int64), number_labels(y, name)


def number_labels(y: NDArray[Any], name: str) -> tuple[str, ...]:
    """Name the classes or tokens 0, 1, … up to the largest label."""
    largest = int(y.max()) if y.size else -1
    if largest >= MAX_CLASSES:
        at = np.unravel_index(int(y.argmax()), y.shape)[0]
        raise DataError(
            f"{name}: label {largest} is too large (example {at}): there can be {MAX_CLASSES} classes; number the"
            " labels 0, 1, … (np.unique(y, return_inverse=True)[1])"
        )
    return number_names(largest + 1)


def name_odd_label(y: NDArray[Any]) -> str:
    """Name the first label that is no whole number."""
    if y.ndim != 1 or not y.size:
        return ""
    numbers = np.issubdtype(y.dtype, np.floating)
    odd = np.flatnonzero(y != np.floor(y)) if numbers else np.arange(1)
    return f" (example {odd[0]} has {str(y[odd[0]])[:40]!r})" if len(odd) else ""


def suggest_task(y: NDArray[Any]) -> str:
    """Name the tasks that such targets can be for."""
    if y.ndim == 1 and np.issubdtype(y.dtype, np.floating):
        return "; for numbers give task='regression' (data.task)"
    if y.ndim == 2:
        return "; give task='regression', 'multilabel' or 'sequence' (data.task)"
    return ""


def number_names(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(count))


def choose_target_names(
    names: tuple[str, ...], task: TaskName, classes: int | Sequence[str]
) -> tuple[str, ...]:
    """Replace the names that the targets of a task have by those that a user gave."""
    if task == "regression":
        raise ConfigError("data.classes: a regression has none; leave it out")
    given = number_names(classes) if isinstance(classes, int) else tuple(classes)
    if task == "multilabel" and len(given) != len(names):
        raise ConfigError(
            f"data.classes: {len(given)} labels, but the data have {len(names)} for each example"
        )
    if len(given) < len(names):
        raise ConfigError(
            f"data.classes: {len(given)} tokens, but the data have a token {len(names) - 1}"
        )
    return given


def group_examples(y: NDArray[Any], task: TaskName) -> tuple[NDArray[np.int64], int]:
    """Cut examples into groups that partitions by label use in place of classes; return how many.

    A regression has groups of equal size, by its first target; an example with several labels is in
    the group of its first one; sequences are one group.
    """
    if task == "regression":
        rank = np.argsort(np.argsort(y[:, 0], kind="stable"), kind="stable")
        groups = min(GROUPS, len(y))
        return (rank * groups // len(y)).astype(np.int64), groups
    if task == "multilabel":
        first = np.where(y.any(1), y.argmax(1), y.shape[1])
        return first.astype(np.int64), y.shape[1] + 1
    return np.zeros(len(y), np.int64), 1


def count_targets(y: NDArray[Any], task: TaskName, names: int) -> NDArray[np.int64]:
    """Count the examples of each class or label, or the tokens; of a regression, all examples."""
    if task == "multilabel":
        return np.asarray(y.sum(0), np.int64)
    if task == "regression":
        return np.full(names, len(y), np.int64)
    return np.bincount(y[y != IGNORED_TOKEN].ravel(), minlength=names)
