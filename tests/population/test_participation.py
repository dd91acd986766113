"""Selection of clients: as many as the rule says, and a function of seed and round alone."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterophony.core.errors import ConfigError
from heterophony.population.participation import Skewed, Uniform, select_from_reachable

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
    assert Uniform(rate=rate).compute_sample_size(clients) == size


@settings(derandomize=True, deadline=None, max_examples=100)
@given(percent=st.integers(1, 100), clients=st.integers(1, 1000))
def test_a_rate_in_percent_means_exactly_that(percent, clients):
    assert Uniform(rate=percent / 100).compute_sample_size(clients) == max(
        1, percent * clients // 100
    )


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    rate=st.floats(0.001, 1.0), n=st.integers(1, 60), t=st.integers(0, 10**6), seed=st.integers(0)
)
def test_the_chosen_are_distinct_clients_in_client_order(rate, n, t, seed):
    clients = [f"c{i}" for i in range(n)]
    rule = Uniform(rate=rate)
    chosen = rule.chosen(t, clients, seed)
    assert len(chosen) == rule.compute_sample_size(n)
    assert len(set(chosen)) == len(chosen)
    assert chosen == [c for c in clients if c in chosen]
    assert rule.compute_sample_size(n) in (max(1, floor(rate * n)), max(1, floor(rate * n + 1e-9)))


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
    with pytest.raises(ConfigError, match="set either rate or count"):
        Uniform(**values)


def test_more_than_there_are_is_a_wrong_setting():
    with pytest.raises(ConfigError, match=r"participation.count: 21 .* only 20"):
        Uniform(count=21).chosen(0, CLIENTS, seed=0)


# Skewed, with replacement, and among reachable clients --------------------------------------------


def drawn(rule, rounds, clients=CLIENTS, seed=0):
    """Count how often each client is drawn."""
    counts = dict.fromkeys(clients, 0)
    for t in range(rounds):
        for c in rule.chosen(t, clients, seed):
            counts[c] += 1
    return counts


@pytest.mark.parametrize("replacement", [True, False])
def test_a_large_gamma_is_uniform(replacement):
    rounds = 2000
    counts = drawn(Skewed(count=5, gamma=1e6, replacement=replacement), rounds)
    assert sum(counts.values()) == 5 * rounds
    spread = (5 * rounds * 0.05 * 0.95) ** 0.5  # one standard deviation: 22
    assert all(abs(n - rounds / 4) < 5 * spread for n in counts.values())


def test_frequencies_with_replacement_are_the_probabilities_that_were_drawn_once():
    rule, rounds = Skewed(count=10, gamma=0.5), 1000
    logs = rule.draw_log_probabilities(20, seed=3)
    p = np.exp(logs - logs.max())
    p /= p.sum()
    found = drawn(rule, rounds, seed=3).values()
    for n, share in zip(found, p, strict=True):
        spread = (10 * rounds * share * (1 - share)) ** 0.5
        assert abs(n - 10 * rounds * share) <= 5 * spread + 1


def test_probabilities_have_the_moments_of_the_dirichlet_distribution():
    logs = np.stack(
        [Skewed(count=1, gamma=0.5).draw_log_probabilities(4, seed) for seed in range(4000)]
    )
    p = np.exp(logs - logs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert np.allclose(p.mean(0), 1 / 4, atol=0.02)
    assert np.allclose(p.var(0), (1 / 4) * (3 / 4) / 3, atol=0.01)  # p(1 - p) / (Kγ + 1)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(gamma=st.floats(1e-3, 1e3), m=st.integers(1, 20), t=st.integers(0, 999), seed=st.integers(0))
def test_without_replacement_all_are_distinct_however_skewed(gamma, m, t, seed):
    chosen = Skewed(count=m, gamma=gamma, replacement=False).chosen(t, CLIENTS, seed)
    assert len(set(chosen)) == m
    assert chosen == [c for c in CLIENTS if c in chosen]


@pytest.mark.parametrize("rule", [Skewed(count=10, gamma=0.1), Uniform(count=20, replacement=True)])
def test_with_replacement_a_client_comes_more_than_once_in_client_order(rule):
    rounds = [rule.chosen(t, CLIENTS, 0) for t in range(20)]
    assert all(len(c) == rule.count for c in rounds)
    assert any(len(set(c)) < len(c) for c in rounds)
    assert all(c == sorted(c, key=CLIENTS.index) for c in rounds)


def test_the_reference_draws_with_replacement_where_skewed_and_without_where_uniform():
    assert Skewed(count=1).replacement
    assert not Uniform(count=1).replacement


@pytest.mark.parametrize("rule", [Uniform(rate=0.5), Skewed(rate=0.5, replacement=False)])
def test_the_size_is_that_of_all_clients_and_all_the_reachable_come_if_they_are_fewer(rule):
    for reachable in (CLIENTS[:15], CLIENTS[5:9], CLIENTS[3:4]):
        chosen = select_from_reachable(rule, 0, CLIENTS, reachable, 0)
        assert len(chosen) == min(10, len(reachable))
        assert set(chosen) <= set(reachable)
    assert select_from_reachable(rule, 0, CLIENTS, [], 0) == []


def test_a_rule_of_ones_own_sees_the_reachable_alone():
    class First:
        def chosen(self, t, clients, seed):
            return list(clients[:1])

    assert select_from_reachable(First(), 0, CLIENTS, CLIENTS[7:], 0) == ["c7"]
