"""Intervals, paired tests and ranks: textbook numbers, counting by hand, and laws they obey."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import sqrt
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heterophony.results import statistics as significance
from heterophony.results.comparison import Spread, compute_difference, get_measure_bounds
from heterophony.results.statistics import (
    ConfidenceInterval,
    apply_holm_correction,
    compare_pairs,
    compare_ranks,
    compute_confidence_interval,
    compute_critical_difference,
    compute_smallest_p,
    count_pairs_needed,
    find_indistinguishable_groups,
)

NUMBERS = st.integers(-50, 50).map(float)
SHARES = st.floats(0, 1)

# Places of four variants of C4.5 on fourteen data sets: Demšar, JMLR 7, 2006, table 6
C45 = [
    (4, 3, 2, 1),
    (1, 2, 3, 4),
    (4, 1, 2, 3),
    (4, 1, 3, 2),
    (4, 2, 3, 1),
    (1, 2.5, 4, 2.5),
    (3, 2, 4, 1),
    (2.5, 2.5, 4, 1),
    (4, 3, 2, 1),
    (2.5, 2.5, 2.5, 2.5),
    (4, 2.5, 1, 2.5),
    (3, 2, 4, 1),
    (4, 1, 2, 3),
    (3, 1, 4, 2),
]


# Means --------------------------------------------------------------------------------------


def test_the_interval_of_three_values_is_as_by_hand() -> None:
    half = 4.302653 / sqrt(3)  # t with 2 degrees of freedom; the std of 1, 2, 3 is 1
    found = compute_confidence_interval([1.0, 2.0, 3.0])
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-6)


@pytest.mark.parametrize(
    ("key", "values", "task", "ends"),
    [
        ("P.last10", [0.7, 1.0], None, (0, 1)),
        ("worst10", [0.0, 0.5], "classification", (0, 1)),
        ("below_local", [0.0, 1.0], None, (0, 1)),
        ("P.last10", [0.0, 0.5], "regression", (None, 1)),  # R² may be negative
        ("std", [0.1, 0.5], None, (0, None)),
        ("P.loss", [0.1, 2.0], None, (0, None)),
        ("P.loss", [-0.1, 2.0], None, (None, None)),  # of a user
        ("MB_up", [0.1, 5.0], None, (0, None)),
        ("seconds", [0.1, 5.0], None, (0, None)),
    ],
)
def test_an_interval_ends_at_what_is_possible(key, values, task, ends) -> None:
    free = Spread.from_values(values).ci95
    assert free[0] < 0
    assert free[1] > 1
    wanted = [own if end is None else end for own, end in zip(free, ends, strict=True)]
    found = Spread.from_values(values, *get_measure_bounds(key, values, task))
    assert list(found.ci95) == wanted
    assert (found.mean, found.std) == (fmean(values), pstdev(values))


def test_the_interval_of_a_difference_has_no_bounds() -> None:
    assert compute_difference([0.9, 0.1], [0.1, 0.9]).ci95[0] < -1
    assert compare_pairs([0.9, 0.1], [0.1, 0.9]).interval.high > 1


def test_one_value_has_no_interval() -> None:
    assert compute_confidence_interval([0.5]) is None


def test_equal_values_have_an_interval_of_one_point() -> None:
    assert compute_confidence_interval([0.5, 0.5]) == ConfidenceInterval(0.5, 0.5)


@given(st.lists(NUMBERS, min_size=2, max_size=9), st.sampled_from([0.8, 0.9, 0.95]))
def test_the_interval_is_around_the_mean_and_wider_for_more_confidence(
    values: list[float], level: float
) -> None:
    narrow, wide = (
        compute_confidence_interval(values, level),
        compute_confidence_interval(values, 0.99),
    )
    assert (narrow.low + narrow.high) / 2 == pytest.approx(np.mean(values), abs=1e-9)
    assert wide.low <= narrow.low <= narrow.high <= wide.high


# Pairs --------------------------------------------------------------------------------------


def test_pairs_that_all_point_one_way_give_the_smallest_p() -> None:
    for n in range(1, 12):
        found = compare_pairs([0.1 * (i + 1) for i in range(n)], [0.0] * n)
        assert found.p == compute_smallest_p(n) == 2 / 2**n
    assert compare_pairs([1.0], [0.5]) == significance.PairedComparison(1, 0.5, None, 1.0)


def test_the_p_of_four_pairs_is_as_counted_by_hand() -> None:
    # differences 1, 2, 3, −1: of 16 sums ±1±2±3±1, these are as far out as 5: ±7, and ±5 twice
    assert compare_pairs([1.0, 2.0, 3.0, 0.0], [0.0, 0.0, 0.0, 1.0]).p == 6 / 16


def test_equal_sides_show_nothing() -> None:
    found = compare_pairs([0.3, 0.4, 0.5], [0.3, 0.4, 0.5])
    assert (found.mean, found.p) == (0.0, 1.0)


def test_rounding_does_not_make_sums_differ() -> None:
    assert (
        compare_pairs([0.1, 0.2, 0.3], [0.0, 0.0, 0.6]).p == 1.0
    )  # 0.1 + 0.2 − 0.3 is not quite 0


def test_sides_of_different_lengths_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="the same number of values on both sides: 2 and 1"):
        compare_pairs([1.0, 2.0], [1.0])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=7))
def test_p_counts_every_pattern_of_signs(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    deltas = [x - y for x, y in pairs]
    patterns = list(product((1, -1), repeat=len(deltas)))
    sums = [abs(sum(s * d for s, d in zip(signs, deltas, strict=True))) for signs in patterns]
    found = compare_pairs(a, b)
    assert found.p == sum(s >= abs(sum(deltas)) for s in sums) / len(patterns)
    assert compute_smallest_p(len(pairs)) <= found.p <= 1
    swapped = compare_pairs(b, a)
    assert (swapped.p, swapped.mean) == (found.p, -found.mean)


def test_many_pairs_are_drawn_near_the_exact_share_and_always_the_same() -> None:
    deltas = list(range(-10, 15))
    ways = Counter({0: 1})  # how many patterns of signs give each sum
    for d in deltas:
        ways = Counter({s: ways[s - d] + ways[s + d] for x in ways for s in (x + d, x - d)})
    exact = sum(n for s, n in ways.items() if abs(s) >= sum(deltas)) / 2 ** len(deltas)
    drawn = compare_pairs(deltas, [0.0] * len(deltas))
    assert drawn == compare_pairs(deltas, [0.0] * len(deltas))
    assert drawn.p == pytest.approx(exact, abs=0.005)
    assert compare_pairs([1.0] * 25, [0.0] * 25).p == 1 / (1 + significance.SIGN_PATTERN_DRAWS)


def test_how_many_pairs_a_claim_needs() -> None:
    assert count_pairs_needed() == 6  # 2/64 = 0.031, and 2/32 = 0.0625
    assert [count_pairs_needed(m) for m in (2, 3, 10)] == [7, 7, 9]
    assert count_pairs_needed(1, 0.01) == 8


# Several comparisons ------------------------------------------------------------------------


def test_holm_is_as_by_hand() -> None:
    assert apply_holm_correction([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert apply_holm_correction([0.5, 0.6]) == [1.0, 1.0]
    assert apply_holm_correction([]) == []


@given(st.lists(SHARES, min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferroni_and_keeps_the_order(
    p: list[float],
) -> None:
    found = apply_holm_correction(p)
    for raw, adjusted in zip(p, found, strict=True):
        assert raw <= adjusted <= min(1.0, len(p) * raw)
    order = np.argsort(p, kind="stable")
    assert sorted(found) == [found[i] for i in order]
    assert apply_holm_correction(p[::-1]) == found[::-1]


# Ranks --------------------------------------------------------------------------------------


def test_the_critical_values_are_those_of_the_textbook() -> None:
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    for k, q in zip(range(2, 11), printed, strict=True):
        blocks = k * (k + 1)  # then the difference is q / √6
        assert compute_critical_difference(k, blocks) * sqrt(6) == pytest.approx(q, abs=1e-3)


def test_the_textbook_example_comes_out() -> None:
    found = compare_ranks([[-place for place in block] for block in C45])
    assert [round(r, 3) for r in found.average_ranks] == [3.143, 2.000, 2.893, 1.964]
    assert round(found.critical_difference, 2) == 1.25
    ties = 1 - (6 + 6 + 60 + 6) / (14 * (4**3 - 4))  # the textbook does not correct for them
    assert round(found.statistic * ties, 2) == 9.28
    theirs = stats.friedmanchisquare(*np.array(C45).T)
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.groups == ((3, 1, 2, 0),)  # all within 1.25 of each other


def test_without_friedmans_word_nobody_differs() -> None:
    found = compare_ranks([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert (found.average_ranks, found.statistic, found.p) == ((2.0, 2.0, 2.0), 0.0, 1.0)
    assert found.groups == ((0, 1, 2),)
    few = compare_ranks([[1.0, 2.0, 3.0]] * 2)  # always the same order, but twice is not enough
    assert few.p > 0.05
    assert few.groups == ((2, 1, 0),)


def test_values_that_are_all_level_show_nothing() -> None:
    found = compare_ranks([[1.0, 1.0, 1.0]] * 5)
    assert (found.average_ranks, found.statistic, found.p) == ((2.0, 2.0, 2.0), 0.0, 1.0)


def test_one_block_cannot_be_ranked() -> None:
    with pytest.raises(ValueError, match="two or more blocks"):
        compare_ranks([[1.0, 2.0, 3.0]])


def test_groups_overlap_but_none_lies_within_another() -> None:
    assert find_indistinguishable_groups([1.0, 2.0, 3.0, 4.0], 1.5) == ((0, 1), (1, 2), (2, 3))
    assert find_indistinguishable_groups([1.0, 1.2, 3.0, 3.1], 1.5) == ((0, 1), (2, 3))
    assert find_indistinguishable_groups([4.0, 1.0, 2.0], 2.5) == ((1, 2), (2, 0))
    assert find_indistinguishable_groups([1.0, 2.0, 3.0], 1.0) == ()  # just so far apart is apart


@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=2, max_size=9))
def test_a_rank_counts_the_higher_values_and_half_of_the_equal_ones(table: list[list[int]]) -> None:
    found = compare_ranks(table)
    ranks = [[sum(o > v for o in b) + (b.count(v) + 1) / 2 for v in b] for b in table]
    assert found.average_ranks == tuple(np.mean(ranks, axis=0).tolist())
    assert sum(found.average_ranks) == pytest.approx(10)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 13))
def test_groups_are_exactly_the_largest_that_do_not_differ(
    average: list[int], critical: int
) -> None:
    groups = [set(g) for g in find_indistinguishable_groups(average, critical)]
    for i, j in product(range(len(average)), repeat=2):
        near = abs(average[i] - average[j]) < critical
        assert near == (i == j or any({i, j} <= g for g in groups))
    assert not any(g < h for g in groups for h in groups)
