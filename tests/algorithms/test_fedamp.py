"""FedAMP: attention by distances, a pull that has a gradient, a start at the cloud's model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heterophony as hp
from helpers.support import QUICK, counts, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedamp import FedAMP
from heterophony.jobs.plan import Job
from heterophony.jobs.work import work

WHOLE = {"participation": 1.0}


def models(*values: float) -> list[hp.Tensors]:
    return [hp.Tensors({"w": torch.full((4,), v)}) for v in values]


def test_attention_is_the_derivative_times_alpha():
    xi = FedAMP(alpha=0.5, sigma=2.0).compute_attention(models(0.0, 1.0, 3.0), 1)
    want = [0.25 * torch.tensor(-d / 2.0, dtype=torch.float64).exp() for d in (4.0, 36.0)]
    assert torch.allclose(xi[0, 1:], torch.stack(want))
    assert xi[0, 1] == xi[1, 0]
    assert torch.allclose(xi.sum(1), torch.ones(3, dtype=torch.float64))


def test_alpha_falls_every_thirty_rounds():
    assert [FedAMP(alpha=100.0).compute_alpha(t) for t in (0, 29, 30)] == [100.0, 100.0, 10.0]


def test_too_much_attention_is_scaled_down_and_told():
    """Near models and alpha = sigma = 1: each other one would weigh nearly 1."""
    algorithm = FedAMP(alpha=1.0, sigma=1.0)
    xi = algorithm.compute_attention(models(*[0.0] * 36), 1)
    assert torch.allclose(xi.sum(1), torch.ones(36, dtype=torch.float64))
    assert torch.equal(xi.diagonal(), torch.zeros(36, dtype=torch.float64))
    assert bool((xi >= 0).all())
    result = played(FedAMP(alpha=1e9, sigma=1e6), rounds=1, **WHOLE)
    (event,) = [e for e in result.events if e["event"] == "round"]
    assert event["measures"]["rescaled"] == 6
    assert played(FedAMP(), rounds=1).events[2]["measures"]["rescaled"] == 0


def test_running_statistics_are_mixed_but_are_no_distance():
    how = {"model": net_with_batch_norm, "buffers": "average", "rounds": 1, **WHOLE}
    result = played(FedAMP(sigma=10.0, alpha=1.0), **how)
    server = result._server
    known = [server.memory[f"model/{c}"] for c in server.clients]
    learned = [w.without("*running*") for w in known]
    assert any("running_mean" in k for k in known[0])
    xi = server.memory["attention"]["xi"]
    assert torch.equal(xi, result.plan.algorithm.compute_attention(learned, 1))
    cloud = result.plan.algorithm.send(server, "2")
    assert same(cloud, hp.mix(known, xi[2].tolist()))


@pytest.mark.parametrize("lam", [1e3, 1e6])
def test_the_first_step_of_a_round_is_not_pulled(lam):
    """The local model starts at the cloud's, so that nothing is between them."""
    how = {"training": replace(QUICK, epochs=0, steps=1, momentum_state="reset"), **WHOLE}
    algorithm = {"alpha": 1.0, "sigma": 10.0}
    a, b = (played(FedAMP(lam=x, **algorithm), **how) for x in (lam, 0.0))
    for c in a.plan.federation.clients:
        assert same(memory(a, c)["own"], memory(b, c)["own"])


def test_the_pull_has_a_gradient():
    how = {"rounds": 1, "training": replace(QUICK, epochs=3), **WHOLE}
    free, held = (played(FedAMP(lam=x, alpha=1.0), **how) for x in (0.0, 1.0))
    start = free.plan.create_initial_server().model
    for c in free.plan.federation.clients:
        far, near = (memory(r, c)["own"] - start for r in (free, held))
        assert near.square() < far.square()


def test_the_local_model_starts_at_the_cloud_model():
    """A port that does not is Local; so is one whose pull has no gradient."""
    still = replace(QUICK, lr=0.0)
    one = played(FedAMP(alpha=1.0, sigma=10.0), rounds=1, **WHOLE)
    cloud = {c: one.plan.algorithm.send(one._server, c) for c in one._server.clients}
    assert all(not same(cloud[c], one._server.memory[f"model/{c}"]) for c in cloud)
    seen = {}

    class Watched(FedAMP):
        def local(self, client):
            seen[client.id] = hp.weights(client.net)
            return super().local(client)

    server = one._server
    plan = replace(one.plan, algorithm=Watched(alpha=1.0, sigma=10.0), training=still)
    for c in server.clients:
        reply = work(
            plan, Job(kind="train", t=1, client=c, tensors=cloud[c]), one._run_folder.client_store
        )
        assert same(seen[c], cloud[c])
        assert same(reply.tensors, cloud[c])


def test_the_floor_of_alpha_keeps_late_rounds_finite():
    how = {"training": replace(QUICK, lr=0.1), "rounds": 2, **WHOLE}
    result = played(FedAMP(alpha=1e-12, lam=1.0), **how)
    assert all(bool(v.isfinite().all()) for v in memory(result, "0")["own"].values())


def test_p_is_of_the_model_trained_last_or_of_the_cloud():
    local, cloud = (played(FedAMP(alpha=1e5, tested=x), **WHOLE) for x in ("local", "cloud"))
    assert local.model_sha256 == cloud.model_sha256
    assert local.G is None
    rounds = [e["P_local"] for e in local.events if e["event"] == "round"]
    assert [[right for right, _ in r] for r in rounds] == counts(local, "P")[1:]
    assert counts(local, "P") != counts(cloud, "P")


def test_up_and_down_are_one_model_each():
    size = sum(v.numel() for v in model(played("fedavg", rounds=0)).values())
    result = played("fedamp", digits(clients=3, examples=90), rounds=2, **WHOLE)
    assert result.summary.bytes == {"up": 2 * 3 * 4 * size, "down": 2 * 3 * 4 * size}
