"""FedRep-full: all steps but one train the head, nothing is personal, and its limit FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import counts, memory, model, played, replies, same, watching, wire
from heterophony.algorithms.fedrep_full import FedRepFull
from heterophony.core.tensors import mix


def steps(j: int, **how) -> hp.Training:
    return hp.Training(epochs=0, steps=j, batch=16, lr=0.05, momentum=0.0, **how)


def test_with_one_step_it_is_fedavg_with_one_step():
    a = played("fedrep_full", training=steps(1))
    b = played("fedavg", training=steps(1), weights="uniform")
    assert same(model(a), model(b))
    assert counts(a, "G") == counts(b, "G")
    assert counts(a, "P")[-1] == counts(b, "P")[-1]


def test_all_but_one_step_move_the_head_alone_even_under_weight_decay():
    seen = []

    def check(client, fit, loss, **how):
        before, batches = hp.weights(client.net), []
        fit(lambda x, y: (batches.append(x.clone()), loss(x, y))[1], **how)
        after = hp.weights(client.net)
        still = [k for k in before if torch.equal(before[k], after[k])]
        seen.append((len(batches), still, batches[0]))

    played(watching(FedRepFull, check), training=steps(4, weight_decay=0.1), rounds=1)
    for head, full in zip(seen[::2], seen[1::2], strict=True):
        assert head[:2] == (3, ["base.1.bias", "base.1.weight"])
        assert full[:2] == (1, [])
        assert not torch.equal(head[2], full[2])  # a fresh shuffle


@pytest.mark.parametrize("how", [{"lr": 0.0}, {"steps": 0}])
def test_without_learning_rate_or_steps_nothing_moves(how):
    result = played("fedrep_full", training=replace(steps(4), **how))
    assert same(model(result), result.plan.create_initial_server().model)


def test_nothing_stays_and_clients_count_the_same(monkeypatch):
    result, sent = replies(monkeypatch, "fedrep_full", rounds=1, training=steps(4))
    assert len({r.samples for r in sent[0]}) > 1
    assert same(model(result), mix([r.tensors for r in sent[0]], [1 / 3] * 3))
    assert all(memory(result, c) == {} for c in result.plan.federation.clients)


def test_p_is_the_common_model_after_head_steps_and_measured_once():
    result = played("fedrep_full", training=steps(6))
    assert counts(result, "P")[:-1] == [None] * 3
    own = hp.Tensors(result.personal("0").net.state_dict())
    assert same(own.only("base.*"), model(result).only("base.*"))
    assert not same(own.only("head.*"), model(result).only("head.*"))


def test_traffic_is_fedavgs():
    assert wire(FedRepFull()) == [(797_962, 797_962)] * 2
