"""Centralised: FedAvg of one client bit for bit, and a cosine from the learning rate to nothing."""

from __future__ import annotations

from math import cos, pi

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.centralized import Centralized
from heterophony.core.algorithm import POOLED_CLIENT
from heterophony.data.federation import Federation

MOMENTUM = hp.Training(epochs=2, batch=16, lr=0.05, momentum=0.9, weight_decay=1e-3)


def measured(result, what):
    return [e[what] for e in result.events if e["event"] == "evaluation"]


@pytest.mark.parametrize("net", ["mlp", "digitsnet", net_with_batch_norm])
def test_it_is_fedavg_with_one_client_bit_for_bit(net):
    alone = digits(clients=1, examples=120)
    how = {"model": net, "training": MOMENTUM, "participation": 1.0, "buffers": "average"}
    a, b = (played(name, alone, **how) for name in ("centralized", "fedavg"))
    assert same(model(a), model(b))
    assert measured(a, "G") == measured(b, "G")
    assert measured(a, "P") == measured(b, "P")
    assert memory(a, POOLED_CLIENT).keys() == memory(b, "0").keys() >= {"momentum/main"}
    assert same(memory(a, POOLED_CLIENT)["momentum/main"], memory(b, "0")["momentum/main"])


def test_however_the_data_are_dealt_it_is_trained_on_all_of_them():
    """As FedAvg on one client that has the same rows in the same order."""
    many = digits()
    rows, tests = (torch.cat(list(part.values())) for part in (many.train, many.test))
    one = Federation("one", many.x, many.y, many.scale, many.labels, {"0": rows}, {"0": tests})
    a, b = played("centralized", many), played("fedavg", one, participation=1.0)
    assert same(model(a), model(b))
    assert [sum(g) for g in measured(a, "G")] == [sum(g) for g in measured(b, "G")]


def test_there_is_one_model_for_everybody_and_no_traffic():
    result = played("centralized")
    assert measured(result, "P") == measured(result, "G")
    assert result.summary.bytes == {"up": 0, "down": 0}
    rounds = [e for e in result.events if e["event"] == "round"]
    assert [e["clients"] for e in rounds] == [[POOLED_CLIENT]] * 3
    assert {c.participations for c in result.clients.values()} == {0}
    assert [seen for e in rounds for _, seen in e["P_local"]] == [
        sum(result.plan.federation.sizes("test").values())
    ] * 3


def rates(result):
    return [e["measures"]["lr"] for e in result.events if e["event"] == "round"]


def test_the_cosine_goes_from_the_learning_rate_to_nothing():
    how = Centralized(schedule="cosine")
    training = hp.Training(epochs=1, batch=16, lr=0.01)
    assert rates(played(how, training=training, rounds=4)) == [
        pytest.approx(0.005 * (1 + cos(pi * t / 4))) for t in range(4)
    ]
    assert rates(played(how, training=training, rounds=1)) == [0.01]
    assert 0.01 * how.compute_lr_factor(0, 140) == 0.01
    assert how.compute_lr_factor(140, 140) == 0
    steps = [how.compute_lr_factor(t, 140) for t in range(141)]
    assert steps == sorted(steps, reverse=True)


def test_the_cosine_is_torchs_own():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=0.01)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7)
    for t in range(8):
        ours = 0.01 * Centralized(schedule="cosine").compute_lr_factor(t, 7)
        assert ours == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimiser.step()
        theirs.step()


def test_a_constant_rate_is_the_default_and_the_schedule_changes_what_is_learned():
    constant, cosine = (played(Centralized(s)) for s in ("constant", "cosine"))
    assert same(model(constant), model(played("centralized")))
    assert rates(constant) == [QUICK.lr] * 3
    assert not same(model(constant), model(cosine))
    first = [model(played(Centralized(s), rounds=1)) for s in ("constant", "cosine")]
    assert same(*first)


def test_it_resumes_to_the_same_bits_in_the_middle_of_the_cosine(tmp_path):
    how, whole = Centralized("cosine"), played(Centralized("cosine"))

    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(how, out=tmp_path / "run", on_event=stop)
    again = played(how, out=tmp_path / "run", resume=True)
    assert again.model_sha256 == whole.model_sha256
