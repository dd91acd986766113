"""The curves of the report page: of every series and run, pooled and as the mean over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...analysis.runs import Curve, Run, compute_mean_curve

MAX_CURVE_POINTS = 30_000  # in all curves of runs together; keeps the page under 2 MB
Curves = dict[str, list[list[float]]]  # by measure, points of round and accuracy or loss
CurvesByKind = dict[str, Curves]


def count_curve_points(runs: Sequence[Run]) -> int:
    """Count the points that the page has room for in each curve."""
    kinds = 4 if any(map(has_unequal_clients, runs)) else 2  # G and P, pooled and by client
    kinds += 2 if any(any(run.loss_curves.values()) for run in runs) else 0
    return max(50, MAX_CURVE_POINTS // (kinds * len(runs)))


def has_unequal_clients(run: Run) -> bool:
    """Whether the mean over clients differs from the pooled accuracy: test sets differ in size."""
    return len({n for n in run.start["test"] if n}) > 1


def average_over_clients(run: Run) -> Run:
    """The run with curves in which each client counts the same, however many examples it has."""
    return replace(run, curves=run.client_mean_curves)


def show_loss(run: Run) -> Run:
    """The run with the curves of its test loss, pooled."""
    return replace(run, curves=run.loss_curves)


def build_curves(group: Sequence[Run], points: int) -> tuple[CurvesByKind, list[CurvesByKind]]:
    """The curves of one series and of each of its runs.

    The series has ``mean``, each run has ``curves``: pooled. If clients differ in their number of
    test examples, there is also ``client_mean`` and ``client_curves``: the means over clients.
    ``loss_mean`` and ``loss_curves`` are the test loss.
    """
    losses = [show_loss(run) for run in group]
    series = {
        "mean": thin_mean_curves(group, points),
        "loss_mean": thin_mean_curves(losses, points),
    }
    each = [
        {"curves": thin_curves(run, points), "loss_curves": thin_curves(loss, points)}
        for run, loss in zip(group, losses, strict=True)
    ]
    if any(map(has_unequal_clients, group)):
        averaged = [average_over_clients(run) for run in group]
        series["client_mean"] = thin_mean_curves(averaged, points)
        for out, run in zip(each, averaged, strict=True):
            out["client_curves"] = thin_curves(run, points)
    return series, each


def thin_mean_curves(group: Sequence[Run], points: int) -> Curves:
    return {k: thin_curve(compute_mean_curve(group, k), points) for k in "GP"}


def thin_curves(run: Run, points: int) -> Curves:
    return {k: thin_curve(run.curves[k], points) for k in "GP"}


def thin_curve(curve: Curve, points: int) -> list[list[float]]:
    """Keep at most ``points`` evenly spaced points, always the last one, rounded to five digits."""
    kept = curve[:: -compute_stride(len(curve), points)]
    return [[t, round(v, 5)] for t, v in reversed(kept)]


def compute_stride(length: int, points: int) -> int:
    """The distance between kept points; 1 keeps all."""
    return -(-length // points) or 1
