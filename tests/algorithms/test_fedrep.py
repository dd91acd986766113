"""FedRep: head and base train in turn, each for its epochs, and only the base travels."""

from __future__ import annotations

from dataclasses import replace

import pytest

import heterophony as hp
from helpers.support import (
    QUICK,
    identical,
    memory,
    model,
    played,
    same,
    watching,
    whole_base,
    wire,
)
from heterophony.algorithms.fedrep import FedRep

HEAVY = replace(QUICK, momentum=0.9, weight_decay=0.1)  # zeroed gradients would still move


def test_the_base_rests_while_the_head_learns_and_the_other_way_round():
    moved = []

    def check(client, fit, loss, **how):
        before = hp.weights(client.net)
        fit(loss, **how)
        after = hp.weights(client.net)
        pairs = [same(before.only(part), after.only(part)) for part in ("base.*", "head.*")]
        moved.append((how.get("phase"), *pairs))

    played(watching(FedRep, check), rounds=3, training=HEAVY, participation=1.0)
    assert moved == [("head", True, False), (None, False, True)] * 18


@pytest.mark.parametrize("epochs", [0, 5])  # a head without parameters cannot use them
def test_without_head_it_is_fedavg_over_the_bases_epochs(epochs):
    a = played(FedRep(head_epochs=epochs, base_epochs=2), model=whole_base)
    b = played("fedavg", model=whole_base, training=replace(QUICK, epochs=2))
    assert identical(a, b)


def test_without_epochs_for_the_base_the_base_stays():
    result = played(FedRep(base_epochs=0))
    assert same(model(result), result.plan.create_initial_server().model)
    assert "net" in memory(result, result.events[-3]["clients"][0])


def test_of_five_epochs_four_are_the_heads_and_one_is_the_bases():
    done = []

    def check(client, fit, loss, **how):
        steps = []
        fit(lambda x, y: (steps.append(1), loss(x, y))[1], **how)
        epoch = len(client.data.train) // QUICK.batch or 1
        done.append((how.get("phase"), len(steps) / epoch))

    played(watching(FedRep, check), rounds=1, training=replace(QUICK, epochs=5))
    assert done == [("head", 4), (None, 1)] * 3


@pytest.mark.parametrize(("depth", "shared"), [(1, 796_032), (2, 722_112), (3, 107_328)])
def test_only_the_base_travels(depth, shared):
    assert wire(FedRep(), 1, depth) == [(shared, shared)]
