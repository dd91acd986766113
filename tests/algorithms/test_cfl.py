"""CFL: when a cluster is split, how, and what its parts go on from."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import heterophony as hp
from helpers.support import model, played, same, two_kinds
from heterophony.algorithms.cfl import CFL
from heterophony.algorithms.parts.clusters import bisect_clients, compute_cosines
from heterophony.core.algorithm import Reply, Server

EAGER = CFL(eps1=10.0, eps2=0.0)


def at(*values: float) -> hp.Tensors:
    return hp.Tensors({"w": torch.tensor(values)})


def server(clients: str = "abcd") -> Server:
    return Server(0, {c: 10 * (i + 1) for i, c in enumerate(clients)}, at(0.0, 0.0))


def said(**models: tuple[float, float]) -> list[Reply]:
    return [Reply(c, "train", at(*w), 10 * ("abcde".index(c) + 1), 10 * ("abcde".index(c) + 1))
            for c, w in models.items()]  # fmt: skip


APART = {"a": (1.0, 0.1), "b": (-1.0, 0.1), "c": (1.0, 0.2), "d": (-1.0, 0.3)}


def clusters(server: Server) -> list[int]:
    return server.memory["clusters"]["of"].tolist()


def test_a_split_makes_the_largest_cosine_across_as_small_as_can_be():
    draw = torch.Generator().manual_seed(0)
    for n in (2, 3, 6):
        for _ in range(10):
            points = [hp.Tensors({"w": torch.randn(3, generator=draw)}) for _ in range(n)]
            cosines = compute_cosines(points)
            found, across = bisect_clients(cosines)
            assert 0 < len(found) < n
            assert 0 not in found
            parts = [p for k in range(1, n) for p in combinations(range(n), k)]
            assert across == min(
                max(float(cosines[i, j]) for i in p for j in range(n) if j not in p) for p in parts
            )


def test_clients_that_pull_apart_are_split_and_go_on_from_their_own_means():
    after = EAGER.merge(server(), said(**APART))
    assert clusters(after) == [0, 1, 0, 1]
    want = {"a": [1.0, (10 * 0.1 + 30 * 0.2) / 40], "b": [-1.0, (20 * 0.1 + 40 * 0.3) / 60]}
    for c, twin in (("a", "c"), ("b", "d")):
        assert torch.allclose(EAGER.send(after, c)["w"], torch.tensor(want[c]))
        assert EAGER.send(after, c) is EAGER.send(after, twin)
    assert same(after.model, at(0.0, 0.0))  # the root: what all had in common last
    assert same(EAGER.send(after, "new"), after.model)


@pytest.mark.parametrize(
    "rule",
    [
        CFL(eps1=0.0, eps2=0.0),  # it still moves
        CFL(eps1=10.0, eps2=1.1),  # all are content
        CFL(eps1=10.0, eps2=0.0, gamma=0.999),  # not clear enough
        CFL(eps1=10.0, eps2=0.0, smallest=5),
        CFL(eps1=10.0, eps2=0.0, wait=1),  # too early
    ],
)
def test_otherwise_it_is_not_split(rule):
    after = rule.merge(server(), said(**APART))
    assert "clusters" not in after.memory
    assert torch.allclose(after.model["w"], hp.mix([at(*w) for w in APART.values()], [0.1, 0.2, 0.3, 0.4])["w"])  # fmt: skip


def test_after_the_rounds_of_waiting_it_is_split_as_without_them():
    waits = replace(EAGER, wait=20)  # as in the authors' code
    after = [waits.merge(replace(server(), t=t), said(**APART)) for t in (19, 20)]
    assert "clusters" not in after[0].memory
    assert clusters(after[1]) == clusters(EAGER.merge(server(), said(**APART)))


def test_a_cluster_is_split_once_all_of_its_clients_were_heard():
    half = EAGER.merge(server(), said(a=(1.0, 0.1), b=(-1.0, 0.1), c=(1.0, 0.2)))
    assert "clusters" not in half.memory
    whole = EAGER.merge(half, said(d=(-9.0, 0.0)))
    assert clusters(whole) == [0, 1, 0, 1]
    assert same(EAGER.send(whole, "d"), at(-9.0, 0.0))
    assert same(EAGER.send(whole, "a"), half.model)  # nobody of its part took part
    assert not whole.memory["update/a"]  # from before the split


def test_a_part_is_split_again_by_its_own_clients():
    five = server("abcde")
    first = {
        "a": (1.0, 0.0),
        "b": (-1.0, 0.3),
        "c": (-1.0, -0.3),
        "d": (-1.0, 0.31),
        "e": (1.0, 0.1),
    }
    once = EAGER.merge(five, said(**first))
    assert clusters(once) == [0, 1, 1, 1, 0]
    models = {c: EAGER.send(once, c)["w"] for c in "abcde"}
    moves = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (0.0, -1.0), "d": (0.1, 1.0), "e": (1.0, 0.0)}
    moved = {c: tuple((models[c] + torch.tensor(m)).tolist()) for c, m in moves.items()}
    twice = EAGER.merge(once, said(**moved))
    assert clusters(twice) == [0, 1, 2, 1, 0]
    assert EAGER.measures(once, [], twice) == {"clusters": 3.0}
    assert torch.allclose(EAGER.send(twice, "c")["w"], torch.tensor(moved["c"]))


def test_it_finds_clients_of_two_kinds_and_g_stays_at_the_root():
    how = {"rounds": 6, "training": hp.Training(epochs=3, batch=10, lr=0.05), "participation": 1.0}
    result = played(CFL(eps1=0.5, eps2=0.1, gamma=0.8), two_kinds(), **how)
    of = clusters(result._server)
    assert of in ([0, 1] * 3, [1, 0] * 3)
    assert result.P.last > 0.9
    counted = [e["measures"]["clusters"] for e in result.events if e["event"] == "round"]
    split = counted.index(2.0)
    before = played("fedavg", two_kinds(), **{**how, "rounds": split})
    assert same(model(result), model(before))
