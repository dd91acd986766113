"""FedDBE: the consensus of the first round, a personal shift, and the distance of mean features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    counts,
    digits,
    memory,
    model,
    played,
    same,
    watching,
    wire,
)
from heterophony.algorithms.feddbe import FedDBE


def consensus(result: hp.Result) -> torch.Tensor:
    return result._server.memory["consensus"]["dbe/mean"]


def test_the_first_round_is_fedavgs_and_finds_the_consensus():
    a, b = (played(x, rounds=1) for x in (FedDBE(), "fedavg"))
    assert same(model(a), model(b))
    sizes, means = [], []
    (event,) = [e for e in a.events if e["event"] == "round"]
    for c in event["clients"]:
        alone = played("fedavg", rounds=1, participation=Turns([int(c)]))
        data, net = alone.plan.federation.data(c).train, alone.personal(c).net.eval()
        with torch.no_grad():
            means.append(torch.cat([net.base(x) for x, _ in data.batches(250)]).mean(0))
        sizes.append(len(data))
    weights = torch.tensor(sizes) / sum(sizes)
    assert torch.allclose(consensus(a), weights @ torch.stack(means), atol=1e-6)


def test_the_consensus_is_fixed_after_the_first_round():
    one, three = (played(FedDBE(), rounds=r) for r in (1, 3))
    assert torch.equal(consensus(one), consensus(three))


def test_the_shift_is_learned_after_the_first_round_and_stays():
    result = played(FedDBE(), participation=Turns([0, 1], [0, 2], [0, 2]))
    shifts = {c: memory(result, c).get("net", {}).get("shift") for c in "0123"}
    assert shifts["0"].abs().min() > 0
    assert not torch.equal(shifts["0"], shifts["2"])
    assert not shifts["1"].any()  # trained in the first round alone
    assert shifts["3"] is None
    assert "shift" not in model(result)


@pytest.mark.parametrize("momentum", [1.0, 0.25])
def test_the_loss_is_of_shifted_features_and_of_their_moving_mean(momentum):
    seen = []

    def check(client, fit, loss, **how):
        told = client.received.get("dbe/mean")
        if told is not None:
            net, (x, y) = client.net, client.data.train.batch(torch.arange(8))
            means = [net.base(x[:4]).mean(0), net.base(x[4:]).mean(0)]
            want = [means[0], (1 - momentum) * means[0] + momentum * means[1]]
            for part, average in zip((slice(0, 4), slice(4, 8)), want, strict=True):
                plain = cross_entropy(net.head(net.base(x[part]) + net.shift), y[part])
                far = (average - told).square().mean()
                rest = loss(x[part], y[part]) - plain - 3.0 * far
                seen.append(abs(rest.item()))
        fit(loss, **how)

    how = {"rounds": 2, "participation": 1.0, "training": QUICK}
    played(watching(FedDBE, check, kappa=3.0, momentum=momentum), **how)
    assert len(seen) == 12
    assert max(seen) < 1e-5


def test_g_has_no_shift_and_p_is_g_before_it_is_learned():
    result = played(FedDBE(), rounds=2, participation=1.0)
    assert counts(result, "G")[:2] == counts(result, "P")[:2]
    net, x = result.personal("0").net, digits().data("0").test.batch(torch.arange(5))[0]
    with torch.no_grad():
        assert torch.equal(result.personal("0")(x), net.head(net.base(x) + net.shift))
        assert torch.equal(result.generic()(x), net.head(net.base(x)))


def test_without_shift_p_is_g_and_the_distance_is_still_held():
    result = played(FedDBE(shifts=False, kappa=1.0), participation=1.0)
    assert counts(result, "G") == counts(result, "P")
    assert not same(model(result), model(played("fedavg", participation=1.0)))


def test_a_vector_travels_beside_the_model():
    assert wire(FedDBE()) == [(797_962, 797_962 + 192), (797_962 + 192, 797_962 + 192)]


def test_a_head_without_linear_layers_is_refused():
    x = np.zeros((8, 3), dtype=np.float32)
    net = hp.Net(torch.nn.Linear(3, 2), torch.nn.Identity())
    with pytest.raises(hp.HeterophonyError, match="the head has no linear layer"):
        played(FedDBE(), hp.federate([(x, np.arange(8) % 2, x, np.arange(8) % 2)]),
               model=lambda: net)  # fmt: skip
