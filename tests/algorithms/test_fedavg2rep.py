"""FedAvg2Rep: the switch from FedAvg to FedRep-full, with either phase left out, and its traffic."""

from __future__ import annotations

import heterophony as hp
from helpers.support import counts, digits, identical, model, played, same, watching, wire
from heterophony.algorithms.fedavg2rep import FedAvg2Rep


def steps(j: int) -> hp.Training:
    return hp.Training(epochs=0, steps=j, batch=16, lr=0.05)  # with momentum, which persists


def test_without_a_second_phase_it_is_fedavg():
    for rounds in (3, 5):
        a = played(FedAvg2Rep(warmup_rounds=5), rounds=rounds, training=steps(8))
        b = played("fedavg", rounds=rounds, training=steps(4), weights="uniform")
        assert a.model_sha256 == b.model_sha256
        assert counts(a, "G") == counts(b, "G")
        assert counts(a, "P")[-1] == counts(b, "P")[-1]


def test_without_a_first_phase_it_is_fedrep_full():
    a, b = (played(x, training=steps(8)) for x in (FedAvg2Rep(warmup_rounds=0), "fedrep_full"))
    assert identical(a, b)


def test_at_the_switch_it_is_where_fedavg_is():
    longer = played(FedAvg2Rep(warmup_rounds=2), rounds=4, training=steps(8))
    fedavg = played("fedavg", rounds=2, training=steps(4), weights="uniform")
    assert counts(longer, "G")[:3] == counts(fedavg, "G")
    assert not same(model(longer), model(fedavg))


def test_the_warm_up_has_its_own_steps_and_then_all_but_one_are_the_heads():
    done = []

    def check(client, fit, loss, **how):
        taken = []
        fit(lambda x, y: (taken.append(1), loss(x, y))[1], **how)
        done.append((client.t, how.get("phase"), len(taken)))

    algorithm = watching(FedAvg2Rep, check, warmup_rounds=1)
    played(algorithm, rounds=2, participation=hp.Uniform(count=1), training=steps(8))
    assert done == [(0, None, 4), (1, "head", 7), (1, None, 1)]
    assert FedAvg2Rep().warmup_rounds == 500
    assert FedAvg2Rep().warmup_steps == 4


def test_nothing_is_reset_at_the_switch():
    seen = []

    def check(client, fit, loss, **how):
        seen.append("momentum/main" in client.memory)
        fit(loss, **how)

    algorithm = watching(FedAvg2Rep, check, warmup_rounds=1)
    played(
        algorithm, digits(clients=1, examples=80), rounds=2, participation=1.0, training=steps(4)
    )
    assert seen == [False, True, True]


def test_traffic_is_fedavgs_in_both_phases():
    assert wire(FedAvg2Rep(warmup_rounds=1)) == [(797_962, 797_962)] * 2
