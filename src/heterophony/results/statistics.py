"""Statistics of a few repetitions: intervals, paired tests, ranks and differences over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, stdtrit  # type: ignore[import-untyped]

from ..core.errors import ConfigError, suggest_or_list
from ..core.randomness import make_generator
from .runs import Run, group_by_series

CONFIDENCE, ALPHA = 0.95, 0.05
MANY_DEGREES = 1e9  # degrees of freedom above which Student's t is treated as normal
MAX_EXACT_PAIRS = 20  # pairs up to which all 2^n sign patterns are counted
SIGN_PATTERN_DRAWS = 100_000  # sign patterns drawn if there are more pairs
ROUNDING_TOLERANCE = 1e-9  # sums this close, relative to their terms, differ by rounding alone


@dataclass(frozen=True)
class ConfidenceInterval:
    """A confidence interval of a mean."""

    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """The mean difference of pairs, its interval and its p value."""

    pairs: int
    mean: float
    interval: ConfidenceInterval | None  # None for a single pair
    p: float


@dataclass(frozen=True)
class RankComparison:
    """The average ranks of series over blocks, with Friedman's and Nemenyi's tests."""

    average_ranks: tuple[float, ...]  # one per series; 1 is the best
    blocks: int
    statistic: float  # Friedman's, corrected for ties
    p: float
    critical_difference: float  # average ranks closer than this do not differ
    groups: tuple[tuple[int, ...], ...]  # groups of two or more series that do not differ, by rank


# Means --------------------------------------------------------------------------------------


def compute_confidence_interval(
    values: Sequence[float],
    level: float = CONFIDENCE,
    lowest: float = -inf,
    highest: float = inf,
) -> ConfidenceInterval | None:
    """Compute Student's interval of the mean; None with one value.

    The interval is cut off at ``lowest`` and ``highest``, the smallest and the largest possible value.
    """
    n = len(values)
    if n < 2:
        return None
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    half = compute_t_quantile(n - 1, level) * std / sqrt(n)
    return ConfidenceInterval(max(mean - half, lowest), min(mean + half, highest))


def compute_t_quantile(freedom: float, level: float = CONFIDENCE) -> float:
    """Compute the quantile of Student's t: half the width of a two-sided interval in standard errors."""
    return float(stdtrit(min(freedom, MANY_DEGREES), (1 + level) / 2))


# Pairs --------------------------------------------------------------------------------------


def compare_pairs(
    a: Sequence[float], b: Sequence[float], level: float = CONFIDENCE
) -> PairedComparison:
    """Compare ``a`` minus ``b``, pair by pair: the i-th values have the same seed and data."""
    if len(a) == 0 or len(a) != len(b):
        raise ValueError(
            f"pairs need the same number of values on both sides: {len(a)} and {len(b)}"
        )
    deltas = np.asarray(a, float) - np.asarray(b, float)
    return PairedComparison(
        len(a),
        float(deltas.mean()),
        compute_confidence_interval(deltas.tolist(), level),
        compute_sign_flip_p(deltas),
    )


def compute_sign_flip_p(deltas: NDArray[np.float64]) -> float:
    """Compute the p value of a two-sided sign-flip test, exact up to 20 pairs.

    It is the share of sign patterns whose sum is at least as far from 0 as the sum of ``deltas``: if
    pairs differed only by chance, both signs would be equally likely. Unlike Student's test, it
    assumes no distribution, and unlike Wilcoxon's, it uses the sizes of differences and needs no
    rule for ties and zeros.
    """
    if len(deltas) > MAX_EXACT_PAIRS:
        draws = make_generator(0, "sign flips", len(deltas)).integers(
            0, 2, (SIGN_PATTERN_DRAWS, len(deltas))
        )
        sums = (2.0 * draws - 1.0) @ deltas
        # the observed pattern counts, too
        return (1 + count_extreme_sums(sums, deltas)) / (1 + SIGN_PATTERN_DRAWS)
    sums = deltas[:1]  # the other sign gives the same sums, mirrored
    for delta in deltas[1:]:
        sums = np.concatenate([sums + delta, sums - delta])
    return count_extreme_sums(sums, deltas) / len(sums)


def count_extreme_sums(sums: NDArray[np.float64], deltas: NDArray[np.float64]) -> int:
    """Count the sign patterns whose sum is at least as far from 0 as the sum of the differences."""
    least = abs(deltas.sum()) - ROUNDING_TOLERANCE * np.abs(deltas).sum()
    return int(np.count_nonzero(np.abs(sums) >= least))


def compute_smallest_p(pairs: int) -> float:
    """Return the smallest p that the exact sign-flip test can give for this number of pairs."""
    return 2.0 ** (1 - pairs)


def count_pairs_needed(comparisons: int = 1, alpha: float = ALPHA) -> int:
    """Return the least number of pairs that can give p < alpha after Holm's correction."""
    pairs = 1
    while comparisons * compute_smallest_p(pairs) >= alpha:
        pairs += 1
    return pairs


def apply_holm_correction(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple comparisons by Holm's step-down method, keeping their order."""
    out, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        out[i] = highest
    return out


# Ranks --------------------------------------------------------------------------------------


def compare_ranks(table: Sequence[Sequence[float]], alpha: float = ALPHA) -> RankComparison:
    """Rank series (columns) in each block (rows) and test for differences; higher values are better."""
    values = np.asarray(table, float)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 2:
        raise ValueError("ranks need two or more blocks of two or more values each")
    n, k = values.shape
    placed = rank_rows(values)
    average = placed.mean(axis=0)
    spread = float(((placed - (k + 1) / 2) ** 2).sum())  # 0 if everything is tied
    between = float(((placed.sum(axis=0) - n * (k + 1) / 2) ** 2).sum())
    statistic = (k - 1) * between / spread if spread else 0.0
    p = float(chdtrc(k - 1, statistic))
    critical = compute_critical_difference(k, n, alpha)
    # Nemenyi's test is valid only if Friedman's finds a difference
    groups = find_indistinguishable_groups(average.tolist(), critical if p < alpha else inf)
    return RankComparison(tuple(average.tolist()), n, statistic, p, critical, groups)


def rank_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank the values of each row, 1 for the highest; ties share the mean of their ranks."""
    from scipy.stats import rankdata  # type: ignore[import-untyped]  # slow to import

    ranks: NDArray[np.float64] = rankdata(-values, axis=1)
    return ranks


def compute_critical_difference(series: int, blocks: int, alpha: float = ALPHA) -> float:
    """Compute Nemenyi's critical difference: average ranks at least this far apart differ."""
    from scipy.stats import studentized_range  # slow to import

    q = float(studentized_range.ppf(1 - alpha, series, inf)) / sqrt(2)
    return q * sqrt(series * (series + 1) / (6 * blocks))


def find_indistinguishable_groups(
    average: Sequence[float], critical: float
) -> tuple[tuple[int, ...], ...]:
    """Find the largest groups of series whose average ranks differ by less than ``critical``."""
    order = sorted(range(len(average)), key=lambda i: average[i])
    found: list[tuple[int, ...]] = []
    reach = 0
    for start, first in enumerate(order):
        end = sum(average[i] - average[first] < critical for i in order)
        if end > reach and end - start > 1:  # otherwise it lies within the previous group
            found.append(tuple(order[start:end]))
        reach = max(reach, end)
    return tuple(found)


@dataclass(frozen=True)
class RoundDifference:
    """The mean difference between two series in one round, with its interval over the seeds."""

    t: int
    mean: float
    interval: ConfidenceInterval | None


@dataclass(frozen=True)
class DifferenceCurve:
    """The difference of a series from the reference over the rounds, paired by seed."""

    name: str
    seeds: tuple[int, ...]
    points: tuple[RoundDifference, ...]


def find_reference(runs: Sequence[Run], name: str | None) -> str:
    """Return the name of the reference series, given by label or algorithm; default: the first."""
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
    """Compute the curve of every other series minus the reference; leave out series without a common seed.

    Each difference is averaged over ``smoothing`` evaluations around it.
    """
    series = group_by_series(runs)
    base = {get_pair_key(run): dict(run.curves[measure]) for run in series[reference]}
    out = []
    for name, group in series.items():
        pairs = {
            run.seed: subtract_curves(dict(run.curves[measure]), base[get_pair_key(run)])
            for run in group
            if name != reference and get_pair_key(run) in base
        }
        smooth = [smooth_curve(gaps, smoothing) for gaps in pairs.values()]
        if smooth and (points := average_difference_curves(smooth)):
            out.append(DifferenceCurve(name, tuple(pairs), points))
    return out


def get_pair_key(run: Run) -> tuple[int, str]:
    """Return the seed and the data of a run; runs form a pair if both are equal."""
    return run.seed, run.start["data_sha256"]


def subtract_curves(own: dict[int, float], other: dict[int, float]) -> dict[int, float]:
    """Subtract one curve from another at the rounds that both contain."""
    return {t: v - other[t] for t, v in own.items() if t in other}


def smooth_curve(gaps: dict[int, float], width: int) -> dict[int, float]:
    """Smooth a curve: replace each value by the mean over ``width`` evaluations around it.

    The window shrinks towards round 0, before which nothing is trained.
    """
    rounds = sorted(gaps)
    values = [gaps[t] for t in rounds]
    reach = [min(width // 2, i) for i in range(len(rounds))]
    return {t: fmean(values[i - reach[i] : i + reach[i] + 1]) for i, t in enumerate(rounds)}


def average_difference_curves(gaps: Sequence[dict[int, float]]) -> tuple[RoundDifference, ...]:
    """Average difference curves over the seeds, at the rounds that all of them contain."""
    rounds = sorted(set.intersection(*(set(g) for g in gaps)))
    at = {t: [g[t] for g in gaps] for t in rounds}
    return tuple(
        RoundDifference(t, fmean(v), compute_confidence_interval(v)) for t, v in at.items()
    )
