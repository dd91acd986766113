"""Partitions: each example goes to exactly one client, and only data and seed decide which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heterophony.core.errors import ConfigError, DataError
from heterophony.core.randomness import make_generator
from heterophony.core.samples import Scale
from heterophony.data.partitioning import partition_source
from heterophony.data.partitions import IID, Classes, Dirichlet, Terms, split_train_test
from heterophony.data.source import Source

quick = settings(derandomize=True, deadline=None, max_examples=50)


def draw(seed: int = 0) -> np.random.Generator:
    return make_generator(seed, "test")


def spread(n: int, classes: int, seed: int = 0) -> np.ndarray:
    """Labels in a random order and of random frequencies."""
    return draw(seed).integers(0, classes, n)


def each_example_once(parts, labels) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


def held(parts, labels) -> list[int]:
    return [len(np.unique(labels[p])) for p in parts]


def same(one, two) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


# Every example exactly once -----------------------------------------------------------------


@quick
@given(n=st.integers(1, 300), clients=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_iid_gives_every_example_once_in_equal_parts(n, clients, seed):
    labels = spread(n, 5, seed)
    parts = IID().deal(labels, 5, clients, draw(seed))
    assert len(parts) == clients
    assert each_example_once(parts, labels)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert {p.dtype for p in parts} == {np.dtype(np.int64)}


@quick
@given(
    n=st.integers(50, 400),
    classes=st.integers(1, 12),
    clients=st.integers(1, 10),
    alpha=st.sampled_from([1e-4, 0.05, 0.1, 0.5, 1.0, 10, 1e6]),
    min_size=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_gives_every_example_once_and_nobody_less_than_asked(
    n, classes, clients, alpha, min_size, seed
):
    labels = spread(n, classes, seed)
    try:
        parts = Dirichlet(alpha, min_size, 50).deal(labels, classes, clients, draw(seed))
    except DataError:
        assume(False)
    assert len(parts) == clients
    assert each_example_once(parts, labels)
    assert min(map(len, parts)) >= min_size


@quick
@given(
    n=st.integers(1, 400),
    classes=st.integers(1, 12),
    clients=st.integers(1, 30),
    per_client=st.integers(1, 12),
    balanced=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_classes_gives_every_example_once_to_holders_of_few_classes(
    n, classes, clients, per_client, balanced, seed
):
    assume(per_client <= classes)
    labels, rule = spread(n, classes, seed), Classes(per_client, balanced)
    try:
        parts = rule.deal(labels, classes, clients, draw(seed))
    except DataError:
        parts = None
    if parts is None:
        assert clients * per_client % classes, "only an uneven partition may fail"
        return
    assert len(parts) == clients
    assert each_example_once(parts, labels)
    assert max(held(parts, labels)) <= per_client


@pytest.mark.parametrize(
    "rule",
    [IID(), Dirichlet(0.1, 1), Dirichlet(1.0), Classes(2), Classes(3, balanced=False)],
    ids=repr,
)
def test_the_seed_alone_decides(rule):
    labels = spread(2000, 10)
    one, two = (rule.deal(labels, 10, 20, draw(5)) for _ in range(2))
    assert same(one, two)
    assert not same(one, rule.deal(labels, 10, 20, draw(6)))


# Dirichlet ----------------------------------------------------------------------------------


def test_500_clients_of_60_000_examples_at_alpha_one_tenth():
    labels = np.arange(60_000) % 10
    parts = Dirichlet(0.1, min_size=1).deal(labels, 10, 500, draw())
    assert len(parts) == 500
    assert each_example_once(parts, labels)
    assert min(map(len, parts)) >= 1


@quick
@given(
    sizes=st.lists(st.integers(0, 700), min_size=2, max_size=10),
    clients=st.integers(2, 30),
    alpha=st.sampled_from([0.01, 0.1, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_whoever_has_its_fair_share_gets_nothing_of_later_classes(sizes, clients, alpha, seed):
    assume(sum(sizes))
    cuts = Dirichlet(alpha).draw_cuts(np.array(sizes), clients, draw(seed))
    pieces = np.diff(cuts, axis=1)
    fair = sum(sizes) / clients
    assert cuts[:, 0].tolist() == [0] * len(sizes)
    assert cuts[:, -1].tolist() == sizes
    assert pieces.min() >= 0
    have = np.zeros(clients)
    for piece in pieces:
        assert not piece[have >= fair].any()
        have += piece
    assert have.sum() == sum(sizes)


def test_the_cap_holds_for_the_last_client_too():
    sizes, clients, capped = np.full(10, 600), 20, 0
    for seed in range(100):
        pieces = np.diff(Dirichlet(0.1).draw_cuts(sizes, clients, draw(seed)), axis=1)
        before = pieces.cumsum(axis=0) - pieces
        full = before[:, -1] >= sizes.sum() / clients
        capped += full.sum()
        assert not pieces[full, -1].any()
    assert capped > 100


def test_cuts_are_the_floor_of_the_cumulated_shares():
    sizes = np.array([100, 50])
    cuts = Dirichlet(0.5).draw_cuts(sizes, 4, draw(3))
    again = draw(3)
    have = np.zeros(4)
    for c, n in enumerate(sizes):
        q = again.dirichlet(np.full(4, 0.5))
        q[have >= 150 / 4] = 0
        expected = np.floor(np.cumsum(q / q.sum()) * n)[:-1]
        assert np.abs(cuts[c, 1:-1] - expected).max() <= 1, "float rounding may move one example"
        have += np.diff(cuts[c])


def test_small_alpha_is_skewed_and_large_alpha_is_alike():
    labels = np.arange(10_000) % 10
    skewed = held(Dirichlet(0.05, 1).deal(labels, 10, 10, draw()), labels)
    alike = held(Dirichlet(1e4).deal(labels, 10, 10, draw()), labels)
    assert max(skewed) < 10
    assert alike == [10] * 10


def test_extreme_alpha_still_gives_every_example():
    labels = np.arange(300) % 3
    for alpha in (1e-300, 1e300, 1e308):
        assert each_example_once(Dirichlet(alpha, 1).deal(labels, 3, 2, draw()), labels)


def test_an_impossible_partition_is_an_error_with_the_numbers():
    labels = np.arange(90) % 10
    with pytest.raises(DataError) as caught:
        Dirichlet(0.1, min_size=10, max_retries=300).deal(labels, 10, 10, draw())
    said = str(caught.value)
    for words in (
        "Dirichlet(0.1)",
        "10 clients",
        "at least 10 examples",
        "300 tries",
        "best gave ",
    ):
        assert words in said
    assert "lower data.partition.min_size or data.clients, or raise data.partition.alpha" in said
    assert int(said.split("best gave ")[1].split(")")[0]) < 10


def test_it_gives_up_after_exactly_so_many_draws(monkeypatch):
    tries = []
    cuts = Dirichlet.draw_cuts
    monkeypatch.setattr(Dirichlet, "draw_cuts", lambda *a: tries.append(1) or cuts(*a))
    with pytest.raises(DataError):
        Dirichlet(0.1, min_size=50, max_retries=7).deal(np.arange(90) % 10, 10, 10, draw())
    assert len(tries) == 7


def test_a_class_without_examples_is_no_trouble():
    labels = np.repeat([0, 2], 100)
    assert each_example_once(Dirichlet(1.0, 1).deal(labels, 4, 5, draw()), labels)
    assert each_example_once(Classes(2).deal(labels, 4, 6, draw()), labels)


# Classes ------------------------------------------------------------------------------------


def test_balanced_classes_are_cut_equally_and_the_last_holder_takes_the_rest():
    labels = np.repeat(np.arange(10), 103)
    parts = Classes(2).deal(labels, 10, 20, draw())
    assert held(parts, labels) == [2] * 20
    for c in range(10):
        shares = [int((labels[p] == c).sum()) for p in parts]
        assert [s for s in shares if s] == [25, 25, 25, 28], "ceil(20 * 2 / 10) = 4 holders"


def test_the_first_clients_with_budget_left_hold_a_class():
    labels = np.repeat(np.arange(4), 50)
    parts = Classes(2).deal(labels, 4, 5, draw())
    holders = [[j for j, p in enumerate(parts) if (labels[p] == c).any()] for c in range(4)]
    assert holders == [[0, 1, 2], [0, 1, 2], [3, 4], [3, 4]]


@quick
@given(seed=st.integers(0, 2**32), n=st.integers(40, 400), min_size=st.integers(1, 40))
def test_random_shares_lie_between_the_limits_of_the_spec(seed, n, min_size):
    holders, classes = 4, 10
    rule = Classes(2, balanced=False, min_size=min_size)
    shares = rule.divide_class(n, holders, classes, draw(seed))
    fair = n // holders
    low = min(int(max(fair / 10, min_size / classes)), fair - 1)
    assert shares.sum() == n
    assert all(low <= s < fair for s in shares[:-1])
    assert shares[-1] > fair * (holders - 1) - sum(shares[:-1])


def test_all_classes_for_everybody_is_nearly_iid():
    labels = np.repeat(np.arange(5), 100)
    parts = Classes(5).deal(labels, 5, 10, draw())
    assert held(parts, labels) == [5] * 10
    assert [len(p) for p in parts] == [50] * 10


def test_more_classes_each_than_there_are_is_a_wrong_setting():
    with pytest.raises(
        ConfigError, match=r"per_client: must be at most the number of classes \(10\), not 11"
    ):
        Classes(11).deal(np.arange(100) % 10, 10, 5, draw())


@pytest.mark.parametrize(("clients", "per_client", "classes"), [(4, 1, 3), (3, 2, 10), (7, 1, 5)])
def test_a_class_that_nobody_may_hold_is_an_error_not_the_last_clients(
    clients, per_client, classes
):
    labels = np.repeat(np.arange(classes), 20)
    with pytest.raises(
        DataError, match=rf"{clients} clients .* {per_client} of {classes} .* no client"
    ):
        Classes(per_client).deal(labels, classes, clients, draw())


# The split of each client -------------------------------------------------------------------


@quick
@given(n=st.integers(2, 2000), seed=st.integers(0, 2**32))
def test_three_quarters_rounded_down_train_and_neither_part_is_empty(n, seed):
    rows = draw(seed).permutation(5000)[:n]
    train, test = split_train_test(rows, 0.75, draw(seed))
    assert len(train) == max(1, 3 * n // 4)
    assert len(train) + len(test) == n
    assert len(test) >= 1
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.sort(rows))


@pytest.mark.parametrize("fraction", [1e-9, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_whatever_the_fraction_neither_part_is_empty(n, fraction):
    train, test = split_train_test(np.arange(n), fraction, draw())
    assert len(train) >= 1
    assert len(test) >= 1
    assert len(train) + len(test) == n


def test_the_split_is_random_and_reproducible():
    rows = np.arange(100)
    one, two, other = (split_train_test(rows, 0.75, draw(s))[0] for s in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert not np.array_equal(np.sort(one), rows[:75])


def test_a_client_with_one_example_cannot_be_split():
    class Unfair:
        def deal(self, labels, classes, clients, draw):
            return [np.arange(len(labels) - 1), np.array([len(labels) - 1])]

    x, y = np.zeros((10, 2), np.float32), np.arange(10) % 2
    source = Source("tiny", x, y.astype(np.int64), Scale(), ("a", "b"))
    with pytest.raises(DataError, match=r"client 1 got 1 example; it needs at least 2"):
        partition_source(source, Unfair(), Terms(2))
