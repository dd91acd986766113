"""HeurFedAMP: attention by cosines, with Local and FedAvg as its limits."""

from __future__ import annotations

import pytest
import torch

import heterophony as hp
from helpers.support import counts, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.heurfedamp import HeurFedAMP

WHOLE = {"participation": 1.0, "weights": "uniform"}


def test_golden_attention():
    a = torch.tensor([1.0, 0.0, 0.0])
    b, c = torch.tensor([0.9, (1 - 0.81) ** 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.75**0.5])
    xi = HeurFedAMP(own_share=1 / 3).compute_attention([hp.Tensors({"w": v}) for v in (a, b, c)], 1)
    assert abs(xi[0, 1] - 0.666636) < 1e-6
    assert abs(xi[0, 2] - 0.0000303) < 1e-7
    assert torch.allclose(xi.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-12)


def test_a_sharp_attention_stays_finite():
    models = [hp.Tensors({"w": torch.randn(9)}) for _ in range(4)]
    xi = HeurFedAMP(sigma=1e6).compute_attention(models, 1)
    assert bool(torch.isfinite(xi).all())
    assert torch.allclose(xi.sum(1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(xi.diagonal(), torch.full((4,), 0.25, dtype=torch.float64))


def test_rows_of_a_run_sum_to_one_and_leave_out_who_never_took_part():
    result = played(HeurFedAMP(), rounds=1, participation=0.5)
    xi = result._server.memory["attention"]["xi"]
    assert xi.shape == (3, 3)
    assert torch.allclose(xi.sum(1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("net", ["digitsnet", net_with_batch_norm])
@pytest.mark.parametrize("buffers", ["local", "average"])
def test_alone_and_not_pulled_it_is_local(net, buffers):
    how = {"model": net, "buffers": buffers, **WHOLE}
    a, b = played(HeurFedAMP(lam=0.0, own_share=1.0), **how), played("local", **how)
    for c in a.plan.federation.clients:
        assert same(memory(a, c)["own"], memory(b, c)["net"])
    assert counts(a, "P") == counts(b, "P")


def test_with_equal_attention_and_no_pull_it_is_fedavg():
    a = played(HeurFedAMP(lam=0.0, sigma=0.0, tested="cloud"), **WHOLE)
    b = played("fedavg", **WHOLE)
    for c in a.plan.federation.clients:
        cloud = a.plan.algorithm.send(a._server, c)
        assert all(torch.allclose(cloud[k], v, atol=1e-6) for k, v in model(b).items())
    assert counts(a, "P") == counts(b, "P")
