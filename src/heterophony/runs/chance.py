"""Tell whether a run has learned anything: are G and P above the accuracy of a constant answer?"""

from __future__ import annotations

from math import sqrt

from .accuracies import Accuracy
from .events import StartEvent
from .summary import Summary

STANDARD_ERRORS = 2  # an accuracy within so many of the level may be chance


def describe_chance_level(summary: Summary, start: StartEvent) -> str | None:
    """Say that a run has not left chance level; None if it has.

    Both the last evaluation and the mean of the last ten must be within noise of the level.
    """
    if "task" in start or len(start["classes"]) < 2:  # of other scores nobody knows the level
        return None
    level, tested = compute_chance_level(start), sum(start["test"])
    limit = level + STANDARD_ERRORS * sqrt(level * (1 - level) / max(1, tested))
    measured = {"G": summary.G, "P": summary.P}
    known = {name: a for name, a in measured.items() if a is not None}
    if not all(is_within(a, limit) for a in known.values()):
        return None
    verb = "is" if len(known) == 1 else "are"
    return (
        f"no better than chance: {' and '.join(known)} {verb} within noise of {100 * level:.1f} %, the accuracy of"
        " always giving the same answer; train for more rounds, let more clients train in each"
        " (participation.rate), or change local.lr or local.momentum"
    )


def is_within(accuracy: Accuracy, limit: float) -> bool:
    return accuracy.last <= limit and accuracy.last10.mean <= limit


def compute_chance_level(start: StartEvent) -> float:
    """Return the share of the largest class among all training examples, at least 1 / classes."""
    counts = [sum(column) for column in zip(*start["labels"], strict=True)]
    largest: float = max(counts) / max(1, sum(counts))
    return max(largest, 1 / len(start["classes"]))
