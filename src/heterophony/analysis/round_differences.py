"""Differences to a reference over the rounds: paired by seed, data and round, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..core.errors import ConfigError, suggest_or_list
from .runs import Run, group_by_series
from .significance import ConfidenceInterval, compute_confidence_interval


@dataclass(frozen=True)
class RoundDifference:
    """The mean difference in one round, and its interval over the seeds; none with one seed."""

    t: int
    mean: float
    interval: ConfidenceInterval | None


@dataclass(frozen=True)
class DifferenceCurve:
    """A series minus the reference, over the rounds that all pairs of runs evaluated."""

    name: str
    seeds: tuple[int, ...]
    points: tuple[RoundDifference, ...]


def find_reference(runs: Sequence[Run], name: str | None) -> str:
    """Find the series that others are compared with: by label or algorithm; default: the first."""
    series = group_by_series(runs)
    if name is None:
        return next(iter(series))
    wanted = name.lower()
    for label, group in series.items():
        if wanted in (label.lower(), group[0].algorithm.lower(), group[0].display_name.lower()):
            return label
    raise ConfigError(f"--reference {name}: no such series{suggest_or_list(name, list(series))}")


def compare_over_rounds(
    runs: Sequence[Run], reference: str, measure: str, smoothing: int = 1
) -> list[DifferenceCurve]:
    """Compare every other series with the reference; those without a common seed are left out.

    Each difference is the mean over so many evaluations around it.
    """
    series = group_by_series(runs)
    base = {pair_key(run): dict(run.curves[measure]) for run in series[reference]}
    out = []
    for name, group in series.items():
        pairs = {
            run.seed: subtract(dict(run.curves[measure]), base[pair_key(run)])
            for run in group
            if name != reference and pair_key(run) in base
        }
        smooth = [smooth_around(gaps, smoothing) for gaps in pairs.values()]
        if smooth and (points := average_gaps(smooth)):
            out.append(DifferenceCurve(name, tuple(pairs), points))
    return out


def pair_key(run: Run) -> tuple[int, str]:
    """Runs form a pair if they have the same seed and the same data."""
    return run.seed, run.start["data_sha256"]


def subtract(own: dict[int, float], other: dict[int, float]) -> dict[int, float]:
    return {t: v - other[t] for t, v in own.items() if t in other}


def smooth_around(gaps: dict[int, float], width: int) -> dict[int, float]:
    """Replace each value by the mean over ``width`` evaluations around it.

    Near the first one it is over fewer: before training there is no difference.
    """
    rounds = sorted(gaps)
    values = [gaps[t] for t in rounds]
    reach = [min(width // 2, i) for i in range(len(rounds))]
    return {t: fmean(values[i - reach[i] : i + reach[i] + 1]) for i, t in enumerate(rounds)}


def average_gaps(gaps: Sequence[dict[int, float]]) -> tuple[RoundDifference, ...]:
    """Average differences over the seeds, at the rounds that all of them have."""
    rounds = sorted(set.intersection(*(set(g) for g in gaps)))
    at = {t: [g[t] for g in gaps] for t in rounds}
    return tuple(
        RoundDifference(t, fmean(v), compute_confidence_interval(v)) for t, v in at.items()
    )
