"""Who takes part: so many as the rule says, a function of the seed and the round alone."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterophony.errors import ConfigError
from heterophony.participation import Uniform

CLIENTS = [f"c{i}" for i in range(20)]


@pytest.mark.parametrize(
    ("rate", "clients", "size"),
    [
        (0.25, 20, 5),
        (0.2, 30, 6),
        (0.1, 100, 10),
        (0.1, 500, 50),
        (0.1, 19, 1),
        (0.1, 5, 1),
        (0.001, 10, 1),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.5, 7, 3),
        (0.999, 10, 9),
        (1.0, 7, 7),
        (1, 7, 7),
        (1.0, 1, 1),
    ],
)
def test_a_rate_is_rounded_down_but_never_to_nobody(rate, clients, size):
    assert Uniform(rate=rate).size(clients) == size


@settings(derandomize=True, deadline=None, max_examples=100)
@given(percent=st.integers(1, 100), clients=st.integers(1, 1000))
def test_a_rate_in_percent_means_exactly_that(percent, clients):
    assert Uniform(rate=percent / 100).size(clients) == max(1, percent * clients // 100)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    rate=st.floats(0.001, 1.0), n=st.integers(1, 60), t=st.integers(0, 10**6), seed=st.integers(0)
)
def test_the_chosen_are_distinct_clients_in_client_order(rate, n, t, seed):
    clients = [f"c{i}" for i in range(n)]
    rule = Uniform(rate=rate)
    chosen = rule.chosen(t, clients, seed)
    assert len(chosen) == rule.size(n)
    assert len(set(chosen)) == len(chosen)
    assert chosen == [c for c in clients if c in chosen]
    assert rule.size(n) in (max(1, floor(rate * n)), max(1, floor(rate * n + 1e-9)))


def test_the_round_and_the_seed_alone_decide():
    rule = Uniform(count=5)
    schedule = [rule.chosen(t, CLIENTS, seed=3) for t in range(30)]
    assert [Uniform(rate=0.25).chosen(t, CLIENTS, seed=3) for t in range(30)] == schedule
    assert [rule.chosen(t, CLIENTS, seed=3) for t in reversed(range(30))] == schedule[::-1]
    assert [rule.chosen(t, CLIENTS, seed=4) for t in range(30)] != schedule
    assert len({tuple(c) for c in schedule}) > 25


def test_everybody_is_everybody_in_order():
    assert Uniform(rate=1.0).chosen(9, CLIENTS, seed=0) == CLIENTS
    assert Uniform(count=20).chosen(9, CLIENTS, seed=0) == CLIENTS


def test_every_client_is_drawn_about_as_often():
    rounds = 2000
    drawn = dict.fromkeys(CLIENTS, 0)
    for t in range(rounds):
        for c in Uniform(count=5).chosen(t, CLIENTS, seed=0):
            drawn[c] += 1
    assert sum(drawn.values()) == 5 * rounds
    spread = (rounds * 0.25 * 0.75) ** 0.5  # one standard deviation: 19
    assert all(abs(n - rounds / 4) < 5 * spread for n in drawn.values())


@pytest.mark.parametrize("values", [{}, {"rate": 0.5, "count": 3}])
def test_either_a_rate_or_a_count(values):
    with pytest.raises(ConfigError, match="give either rate or count"):
        Uniform(**values)


def test_more_than_there_are_is_a_wrong_setting():
    with pytest.raises(ConfigError, match=r"participation.count: 21 .* only 20"):
        Uniform(count=21).chosen(0, CLIENTS, seed=0)
