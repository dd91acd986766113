"""Select points of a curve of accuracies: the highest one, and those of the last ten evaluations."""

from __future__ import annotations

from collections.abc import Sequence

Curve = Sequence[tuple[int, float]]  # (round, accuracy)


def find_highest_point(curve: Curve) -> tuple[int, float]:
    """Find the highest point of a curve; of several, the first."""
    return max(curve, key=lambda p: (p[1], -p[0]))


def select_last_ten(curve: Curve) -> list[float]:
    """Select the accuracies of the last ten evaluations of trained models.

    The evaluation before the first round is of the untrained model: it counts only if it is alone.
    """
    trained = [v for t, v in curve if t > 0]
    return trained[-10:] or [v for _, v in curve]
