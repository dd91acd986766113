"""FedReG with its phases interleaved: in turn by epoch, with momentum that goes on, and new draws."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import identical, played, watching
from heterophony.algorithms.fedreg import FedReG
from heterophony.core import client as client_module
from heterophony.core.errors import ConfigError
from heterophony.core.training import create_optimizer

TWO = hp.Training(epochs=2, batch=16, lr=0.05)
TURNS = {"augment": "copy", "phases": "interleaved"}


def test_with_one_epoch_both_orders_are_the_same():
    assert identical(played(FedReG(**TURNS)), played(FedReG(augment="copy")))


def test_the_phases_take_turns_by_epoch():
    order = []

    def check(client, fit, loss, **how):
        order.append((how["phase"], how.get("epochs"), how.get("turn")))
        before = client.examples
        fit(loss, **how)
        work.append(client.examples - before)

    work = []
    a = played(watching(FedReG, check, **TURNS), rounds=1, participation=1 / 6, training=TWO)
    assert order == [("own", 1, 0), ("generic", 1, 0), ("own", 1, 1), ("generic", 1, 1)]
    assert work[:2] == work[2:]
    b = played(FedReG(augment="copy"), rounds=1, participation=1 / 6, training=TWO)
    assert not identical(a, b)


def test_every_turn_draws_anew_and_continues_the_momentum(monkeypatch):
    orders, begun, ended = [], [], []

    def check(client, fit, loss, **how):
        def watched(x, y):
            orders[-1].append(y.tolist())
            return loss(x, y)

        orders.append([])
        fit(watched, **how)
        ended.append(dict(client._momentum["generic"]))

    def record(named, how, rates, kept, factor):
        begun.append(dict(kept))
        return create_optimizer(named, how, rates, kept, factor)

    monkeypatch.setattr(client_module, "create_optimizer", record)
    reset = hp.Training(epochs=2, batch=16, lr=0.05, momentum_state="reset")
    alone = watching(FedReG, check, variant="no_own_phase", **TURNS)
    result = played(alone, rounds=1, participation=1 / 6, training=reset)
    assert orders[0] != orders[1]
    assert begun[0] == {}
    assert begun[1].keys() == ended[0].keys() != set()
    assert all(torch.equal(begun[1][k], ended[0][k]) for k in begun[1])
    (event,) = [e for e in result.events if e["event"] == "round"]
    assert event["loss"].keys() == {"generic"}


def test_steps_cannot_be_interleaved_by_epoch():
    with pytest.raises(
        ConfigError, match=r"^algorithm.phases: 'interleaved' changes the phase after"
    ):
        played(FedReG(**TURNS), training=hp.Training(steps=3))
