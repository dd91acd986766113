"""The kinds of partitions: each gives exactly the partitions of its paper's experiments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import heterophony as hp
from heterophony.core.errors import ConfigError, DataError
from heterophony.core.randomness import make_generator
from heterophony.core.samples import Scale
from heterophony.data.partitioning import partition_source
from heterophony.data.partitions import (
    IID,
    Classes,
    Dirichlet,
    Natural,
    PerClientDirichlet,
    Quantity,
    Shards,
    Share,
    Terms,
    compute_shares,
)
from heterophony.data.partitions.base import divide_in_proportion
from heterophony.data.source import Source

quick = settings(derandomize=True, deadline=None, max_examples=50)


def draw(seed: int = 0) -> np.random.Generator:
    return make_generator(seed, "test")


def made(y, official=None, users=None, names=()) -> Source:
    y = np.asarray(y, np.int64)
    classes = tuple(str(c) for c in range(int(y.max()) + 1))
    x = np.arange(len(y), dtype=np.float32)[:, None]
    who = None if users is None else np.asarray(users, np.int64)
    return Source("made", x, y, Scale(), classes, official, who, names)


def once(parts, n: int) -> bool:
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def equal(a: list[Share], b: list[Share]) -> bool:
    return all(
        np.array_equal(p.train, q.train) and np.array_equal(p.test, q.test) and p.name == q.name
        for p, q in zip(a, b, strict=True)
    )


# Dirichlet, topped up -----------------------------------------------------------------------


@quick
@given(
    n=st.integers(1, 400),
    classes=st.integers(1, 12),
    clients=st.integers(1, 60),
    alpha=st.sampled_from([0.001, 0.05, 0.1, 1.0, 100.0]),
    least=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_topped_up_every_example_is_given_once_and_nobody_has_too_few(
    n, classes, clients, alpha, least, seed
):
    labels, rule = draw(seed).integers(0, classes, n), Dirichlet(alpha, least, top_up=True)
    if n < clients * least:
        with pytest.raises(DataError, match=f"{n} examples are too few for {least} per client"):
            rule.deal(labels, classes, clients, draw(seed))
        return
    parts = rule.deal(labels, classes, clients, draw(seed))
    again = rule.deal(labels, classes, clients, draw(seed))
    assert once(parts, n)
    assert min(map(len, parts)) >= least
    assert all(map(np.array_equal, parts, again))


def test_topping_up_moves_no_more_than_is_missing():
    labels = np.arange(60_000) % 10
    rule = Dirichlet(0.1, min_size=2, top_up=True)
    cuts = rule.draw_cuts(np.full(10, 6000), 500, draw())
    first = np.diff(cuts, axis=1).sum(axis=0)
    parts = rule.deal(labels, 10, 500, draw())
    sizes = np.array([len(p) for p in parts])
    assert once(parts, 60_000)
    assert sizes.min() == 2
    assert (sizes[first < 2] == 2).all()
    assert (sizes - first).clip(0).sum() == (2 - first).clip(0).sum() > 0
    assert (sizes < first).sum() <= 3, "only the largest give"


def test_500_clients_at_alpha_one_tenth_end_with_a_clear_error_that_knows_a_way():
    with pytest.raises(DataError, match=r"data\.partition\.top_up = true"):
        Dirichlet(0.1, max_retries=50).deal(np.arange(60_000) % 10, 10, 500, draw())


def test_200_clients_hold_rows_of_one_pool_and_nothing_else():
    source = made(np.arange(20_000) % 10)
    federation = partition_source(source, Dirichlet(0.1, 2, top_up=True), Terms(200))
    rows = [*federation.train.values(), *federation.test.values()]
    assert sum(r.numel() for r in rows) == 20_000
    each = [federation.data(c) for c in federation.clients]
    assert all(d.train.x is federation.x and d.test.x is federation.x for d in each)


# Quantity -----------------------------------------------------------------------------------


@quick
@given(
    n=st.integers(1, 500),
    clients=st.integers(1, 40),
    alpha=st.sampled_from([1e-3, 0.1, 0.5, 5.0, 1e6]),
    least=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_quantity_gives_every_example_once_and_everybody_the_minimum(
    n, clients, alpha, least, seed
):
    rule, labels = Quantity(alpha, least), draw(seed).integers(0, 5, n)
    if n < clients * least:
        with pytest.raises(DataError, match=f"{n} examples are too few for {least} per client"):
            rule.deal(labels, 5, clients, draw(seed))
        return
    parts = rule.deal(labels, 5, clients, draw(seed))
    assert len(parts) == clients
    assert once(parts, n)
    assert min(map(len, parts)) >= least
    assert all(map(np.array_equal, parts, rule.deal(labels, 5, clients, draw(seed))))


def test_sizes_are_equal_at_large_alpha_and_very_unequal_at_small():
    labels = np.arange(10_000) % 10
    alike = [len(p) for p in Quantity(1e9).deal(labels, 10, 10, draw())]
    unlike = [len(p) for p in Quantity(0.1).deal(labels, 10, 10, draw())]
    assert max(alike) - min(alike) <= 2
    assert max(unlike) > 10 * sorted(unlike)[5]
    largest = max(Quantity(0.1).deal(labels, 10, 10, draw()), key=len)
    assert np.bincount(labels[largest]).min() > 0.8 * len(largest) / 10, "labels stay alike"


# Shards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_client", [1, 5, 10, 50, 100])
def test_disjoint_shards_use_all_of_cifar_100_once(per_client):
    labels = draw().permutation(np.repeat(np.arange(100), 500))
    parts = Shards(per_client).deal(labels, 100, 100, draw())
    assert once(parts, 50_000)
    for p in parts:
        counts = np.bincount(labels[p], minlength=100)
        assert sorted(counts)[-per_client:] == [500 // per_client] * per_client
        assert counts.sum() == 500


@quick
@given(
    per_client=st.integers(1, 4),
    blocks=st.integers(1, 4),
    passes=st.integers(1, 5),
    n=st.integers(0, 90),
    seed=st.integers(0, 2**32),
)
def test_in_every_pass_each_class_goes_to_one_client(per_client, blocks, passes, n, seed):
    classes, clients = per_client * blocks, blocks * passes
    labels = np.tile(np.arange(classes), n + 1)
    parts = Shards(per_client).deal(labels, classes, clients, draw(seed))
    assert once(parts, len(labels))
    for p in range(passes):
        rows = np.concatenate(parts[p * blocks : (p + 1) * blocks])
        counts = np.bincount(labels[rows], minlength=classes)
        assert counts.max() - counts.min() == 0
        assert counts[0] in ((n + 1) // passes, -(-(n + 1) // passes))
    assert max(len(np.unique(labels[p])) for p in parts) <= per_client


@pytest.mark.parametrize(("clients", "per_client"), [(10, 3), (7, 5), (1, 5)])
def test_shards_that_do_not_come_out_even_are_a_wrong_setting(clients, per_client):
    with pytest.raises(ConfigError, match=r"data\.partition\.per_client: .* equal shards"):
        Shards(per_client).deal(np.arange(100) % 10, 10, clients, draw())
    with pytest.raises(ConfigError, match=r"must be at most the number of classes \(10\), not 11"):
        Shards(11).deal(np.arange(100) % 10, 10, clients, draw())


def test_overlapping_shards_are_the_ones_described():
    labels, again = draw(1).integers(0, 6, 200), draw(2)
    numbers, taken, expected = again.permutation(200), set(), []
    for _ in range(8):
        mine = set(again.choice(6, 2, replace=False).tolist())
        fits = [p for p in range(200) if labels[p] in mine and numbers[p] not in taken]
        expected.append(fits[: 200 // 8])
        taken |= set(expected[-1])
    found = Shards(2, "overlapping").deal(labels, 6, 8, draw(2))
    assert [p.tolist() for p in found] == expected


@pytest.mark.parametrize(
    ("per_client", "images"), [(1, (21_000, 25_000)), (5, (11_000, 12_000)), (10, (5300, 5900))]
)
def test_overlapping_shards_crowd_on_few_images_of_cifar_100(per_client, images):
    labels = draw(1).permutation(np.repeat(np.arange(100), 500))
    parts = Shards(per_client, "overlapping").deal(labels, 100, 100, draw())
    assert images[0] < len(np.unique(np.concatenate(parts))) < images[1]
    assert max(map(len, parts)) == 500
    assert all(len(np.unique(labels[p])) <= per_client for p in parts)


def test_with_50_classes_each_about_1077_images_are_left():
    labels = draw(1).permutation(np.repeat(np.arange(100), 500))
    parts = Shards(50, "overlapping").deal(labels, 100, 100, draw())
    assert abs(len(np.unique(np.concatenate(parts))) - 1077) < 60


# FedDecomp's ---------------------------------------------------------------------------------

TRAIN = [
    *(500, 500, 500, 499, 499, 499, 499, 499, 499, 500, 500, 499, 499, 500, 499, 500, 500, 500),
    *(499, 500, 500, 500, 500, 499, 499, 500, 500, 500, 500, 500, 499, 500, 500, 499, 500, 500),
    *(499, 500, 499, 499),
]
TEST = [
    *(100, 100, 100, 100, 100, 99, 99, 99, 100, 100, 100, 99, 100, 100, 99, 100, 100, 100),
    *(100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 99, 100, 100, 100, 100, 100),
    *(100, 100, 100, 100, 100),
]


def official(classes: int = 10, train: int = 5000, test: int = 1000) -> Source:
    """The labels of CIFAR-10, shuffled: training set, then test set."""
    parts = [np.repeat(np.arange(classes), n) for n in (train, test)]
    y = np.concatenate([draw(i).permutation(p) for i, p in enumerate(parts)])
    return made(y, classes * train)


def test_the_authors_partition_of_cifar_10_number_by_number():
    source = official()
    found = PerClientDirichlet(0.1).allot(source, Terms(40, seed=1))
    first = [np.bincount(source.y[rows], minlength=10).tolist() for rows in (found[0].train, found[0].test)]  # fmt: skip
    assert first == [[136, 0, 0, 0, 83, 144, 0, 0, 137, 0], [27, 0, 0, 0, 17, 29, 0, 0, 27, 0]]
    assert [len(s.train) for s in found] == TRAIN
    assert [len(s.test) for s in found] == TEST
    for share in found:
        assert len(np.unique(share.train)) == len(share.train)
        assert len(np.unique(share.test)) == len(share.test)
        assert share.train.max() < 50_000 <= share.test.min()
    everybody = np.concatenate([s.train for s in found])
    assert len(np.unique(everybody)) < len(everybody), "clients share examples"


def test_the_draws_are_those_of_the_described_program():
    source, rs = official(4, 60, 30), np.random.RandomState(7)
    mixes = rs.dirichlet([0.5] * 4, size=3)
    first = 4 * 60
    expected = []
    for mix in mixes:
        left, rows = [40, 20], [[], []]
        for c, q in enumerate(mix):
            for part, size in enumerate((40, 20)):
                n = min(int(size * q + 0.5), left[part])
                left[part] -= n
                inside = np.flatnonzero(source.y == c)
                pool = inside[inside >= first] if part else inside[inside < first]
                rows[part] += rs.choice(pool, n, replace=False).tolist()
        expected.append(rows)
    found = PerClientDirichlet(0.5, 40, 20).allot(source, Terms(3, seed=7))
    assert [[s.train.tolist(), s.test.tolist()] for s in found] == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_exact_sizes_the_last_class_takes_what_is_missing(seed):
    source = official()
    exact = PerClientDirichlet(1.0, mode="exact_size").allot(source, Terms(40, seed=seed))
    usual = PerClientDirichlet(1.0).allot(source, Terms(40, seed=seed))
    assert {(len(s.train), len(s.test)) for s in exact} == {(500, 100)}
    counts = [
        [np.bincount(source.y[s.train], minlength=10) for s in found] for found in (exact, usual)
    ]
    assert all((a[:9] == b[:9]).all() and a[9] >= b[9] for a, b in zip(*counts, strict=True))


def test_the_partitions_own_seed_comes_before_the_runs():
    source = official(4, 500, 200)
    a = partition_source(source, PerClientDirichlet(0.5, 100, 50, seed=3), Terms(5, seed=8))
    b = partition_source(source, PerClientDirichlet(0.5, 100, 50), Terms(5, seed=3))
    c = partition_source(source, PerClientDirichlet(0.5, 100, 50), Terms(5, seed=8))
    assert a.sha256 == b.sha256 != c.sha256
    d, e = (partition_source(source, IID(seed=3), Terms(5, seed=s)) for s in (8, 9))
    assert d.sha256 == e.sha256


def test_a_class_with_too_few_examples_is_said_and_tests_may_repeat():
    source = official(2, 1000, 30)
    with pytest.raises(DataError, match=r"\d+ examples of class \d to test, .* 30; .*repeat_test"):
        PerClientDirichlet(0.1).allot(source, Terms(5, seed=1))
    with pytest.raises(
        DataError, match=r"of class \d to train, .* 30; lower data.partition.train$"
    ):
        PerClientDirichlet(0.1).allot(official(2, 30, 1000), Terms(5, seed=1))
    found = PerClientDirichlet(0.1, repeat_test=True).allot(source, Terms(5, seed=1))
    assert {len(s.test) for s in found} <= {99, 100}
    with pytest.raises(DataError, match=r"needs a data set with an official test set; made has no"):
        PerClientDirichlet().allot(made([0, 1] * 10), Terms(2))
    with pytest.raises(ConfigError, match=r"below 2\*\*32"):
        PerClientDirichlet().allot(official(2, 9, 9), Terms(2, seed=2**32))


# By user -------------------------------------------------------------------------------------


def writers(seed: int = 0, people: int = 12, n: int = 300, first: int | None = None) -> Source:
    users = draw(seed).integers(0, people, n)
    names = tuple(f"writer {i}" for i in range(people))
    return made(draw(seed + 1).integers(0, 4, n), first, users, names)


@quick
@given(clients=st.integers(1, 12), seed=st.integers(0, 2**32), ordered=st.booleans())
def test_a_natural_client_has_all_examples_of_one_user_and_only_those(clients, seed, ordered):
    source, rule = writers(seed), Natural(in_order=ordered)
    found = rule.allot(source, Terms(clients, seed=seed))
    assert len({s.name for s in found}) == clients
    for s in found:
        user = source.user_names.index(s.name)
        mine = np.flatnonzero(source.users == user)
        assert np.array_equal(np.sort(np.concatenate([s.train, s.test])), mine)
        assert len(s.train) == int(0.75 * len(mine))
        assert not ordered or s.train.max() < s.test.min()
    assert equal(found, rule.allot(source, Terms(clients, seed=seed)))


def test_a_gap_keeps_windows_that_share_characters_apart():
    source = made([0, 1] * 150, users=[0] * 100 + [1] * 200)
    for s in Natural(in_order=True, gap=9).allot(source, Terms(2, train_fraction=0.9)):
        n = 100 if s.train[0] < 100 else 200
        assert len(s.train) == 9 * n // 10
        assert s.test.min() - s.train.max() == 10
        assert len(s.test) == n // 10 - 9


def test_windows_are_consecutive_from_a_start_of_the_clients_own():
    source = made([0, 1] * 500, users=np.repeat(np.arange(5), 200))
    rule = Natural(in_order=True, train_windows=40, test_windows=10)
    found = rule.allot(source, Terms(5))
    for s in found:
        assert s.train.tolist() == list(range(s.train[0], s.train[0] + 40))
        assert s.test.tolist() == list(range(s.test[0], s.test[0] + 10))
    assert len({int(s.train[0]) % 200 for s in found}) > 1
    assert not equal(found, rule.allot(source, Terms(5, seed=1)))


def test_users_with_too_few_examples_are_left_out_and_too_few_users_said():
    source = made([0, 1] * 85, users=np.repeat(np.arange(4), [10, 20, 60, 80]))
    found = Natural(min_size=20).allot(source, Terms(3))
    assert sorted(s.name for s in found) == ["1", "2", "3"]
    assert {s.name for s in Natural(min_train=45).allot(source, Terms(2))} == {"2", "3"}
    assert {s.name for s in Natural(min_test=20).allot(source, Terms(1))} == {"3"}
    assert {s.name for s in Natural(test_windows=20).allot(source, Terms(1))} == {"3"}
    said = (
        r"4 clients, but 3 of 4 users of made have enough examples, '0' does not \((.*)\); lower "
    )
    for rule, held in ((Natural(min_size=20), "10 in all"),
                       (Natural(min_train=9), "7 to train, 3 to test")):  # fmt: skip
        with pytest.raises(DataError, match=said.replace("(.*)", held)):
            rule.allot(source, Terms(4))
    with pytest.raises(DataError, match="has no users"):
        Natural().allot(made([0, 1]), Terms(1))


def test_with_the_official_split_users_keep_their_own_test_examples():
    source = writers(first=200)
    found = Natural().allot(source, Terms(12, split="official"))
    for s in found:
        assert s.train.max() < 200 <= s.test.min()
    assert once([np.concatenate([s.train, s.test]) for s in found], 300)


def test_the_iid_variant_pools_everybodys_examples_first():
    source = writers()
    found = Natural(iid=True, in_order=True).allot(source, Terms(6))
    assert [len(s.train) + len(s.test) for s in found] == [50] * 6
    assert once([np.concatenate([s.train, s.test]) for s in found], 300)
    assert all(len(np.unique(source.users[s.train])) > 6 for s in found)


def test_a_federation_knows_the_users_behind_its_clients():
    federation = partition_source(writers(), Natural(), Terms(5))
    numbers = [int(name.removeprefix("writer ")) for name in federation.clients]
    assert (len(numbers), numbers) == (5, sorted(numbers))
    rows = {
        c: np.concatenate([federation.train[c], federation.test[c]]) for c in federation.clients
    }
    users = [np.unique(writers().users[r]).tolist() for r in rows.values()]
    assert users == [[n] for n in numbers], "every client holds the rows of the user of its name"


# The official test set, in the same proportions -----------------------------------------------


@quick
@given(n=st.integers(0, 500), weights=st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_things_are_apportioned_by_largest_remainder(n, weights):
    assume(sum(weights))
    parts = divide_in_proportion(n, np.array(weights))
    exact = n * np.array(weights) / sum(weights)
    assert parts.sum() == n
    assert (parts >= np.floor(exact - 1e-9)).all()
    assert (parts <= np.ceil(exact + 1e-9)).all()
    assert (parts[np.array(weights) == 0] == 0).all()


@quick
@given(
    classes=st.integers(1, 6),
    first=st.integers(30, 200),
    rest=st.integers(1, 150),
    clients=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_every_test_example_of_a_class_somebody_holds_is_given_once_in_proportion(
    classes, first, rest, clients, seed
):
    y = draw(seed).integers(0, classes, first + rest)
    y[-1] = classes - 1
    source = made(y, first)
    found = compute_shares(Dirichlet(0.5, 1), source, Terms(clients, split="official", seed=seed))
    assert once([s.train for s in found], first)
    held = [np.bincount(y[s.train], minlength=classes) for s in found]
    got = [np.bincount(y[s.test], minlength=classes) for s in found]
    known = np.flatnonzero((np.sum(held, axis=0) > 0)[y[first:]]) + first
    assert np.array_equal(np.sort(np.concatenate([s.test for s in found])), known)
    for c in np.flatnonzero(np.sum(held, axis=0)):
        n = int((y[first:] == c).sum())
        exact = [n * h[c] / sum(k[c] for k in held) for h in held]
        assert all(abs(g[c] - e) < 1 for g, e in zip(got, exact, strict=True))


@pytest.mark.parametrize("rule", [Classes(2), Shards(2), IID(), Shards(2, "overlapping")], ids=repr)
def test_clients_are_tested_on_the_classes_they_train_on(rule):
    source = official(4, 60, 20)
    federation = partition_source(source, rule, Terms(4, split="official"))
    train, test = federation.count_labels(), federation.count_labels("test")
    assert ((train > 0) == (test > 0)).all()
    assert test.sum() == sum(20 for c in train.sum(axis=0) if c)
    assert all(r.max() < 240 for r in federation.train.values())
    assert all(r.min() >= 240 for r in federation.test.values())


def test_without_an_official_test_set_it_is_said():
    with pytest.raises(DataError, match=r"data\.split = 'official' needs .* made has none"):
        partition_source(made([0, 1] * 10), IID(), Terms(2, split="official"))


def test_a_client_without_test_examples_is_said():
    source = official(2, 50, 3)
    with pytest.raises(DataError, match=r"client \d got \d+ examples to train and 0 to test"):
        partition_source(source, IID(), Terms(8, split="official"))


# A user's own -------------------------------------------------------------------------------


def test_a_users_rule_may_say_itself_what_trains_and_what_tests():
    class Alternating:
        def allot(self, source, terms):
            rows = [np.arange(i, len(source.y), terms.clients) for i in range(terms.clients)]
            return [hp.Share(r[:-1], r[-1:], f"site {i}") for i, r in enumerate(rows)]

    federation = partition_source(made([0, 1] * 6), Alternating(), Terms(3))
    assert federation.clients == ("site 0", "site 1", "site 2")
    assert federation.train["site 1"].tolist() == [1, 4, 7]
    assert federation.test["site 1"].tolist() == [10]
    assert federation.test["site 1"].dtype == torch.int64


def test_a_rule_that_forgets_a_client_is_told_so():
    class Forgetful:
        def deal(self, labels, classes, clients, draw):
            return np.array_split(np.arange(len(labels)), clients - 1)

    with pytest.raises(DataError, match=r"the partition made 2 clients, but data\.clients is 3"):
        partition_source(made([0, 1] * 6), Forgetful(), Terms(3))


def test_the_library_takes_partition_split_and_feature_skew():
    x = draw().integers(0, 255, (40, 8, 8)).astype(np.uint8)
    rule = hp.Shards(1, seed=4)
    federation = hp.federate(
        (x, np.arange(40) % 2), clients=4, partition=rule, feature_skew=hp.Rotation(20), seed=7
    )
    assert federation.skew == hp.Rotation(20, seed=7)
    assert (federation.count_labels() > 0).sum(axis=1).tolist() == [1] * 4
    with pytest.raises(DataError, match="official"):
        hp.federate((x, np.arange(40) % 2), clients=4, partition=rule, split="official")
