"""MOON: the contrastive loss, the frozen nets it compares with, the projection, and its limit FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import pytest
import torch

import heterophony as hp
from helpers.support import digits, identical, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.moon import MOON
from heterophony.core.tensors import state


def close(a: hp.Tensors, b: hp.Tensors) -> bool:
    return all(torch.allclose(v, b[k], rtol=0, atol=1e-6) for k, v in a.items())


def test_without_contrast_it_is_fedavg():
    a, b = played(MOON(mu=0.0)), played("fedavg")
    assert same(model(a), model(b))
    assert [e["P"] for e in a.events if e["event"] == "evaluation"] == [
        e["P"] for e in b.events if e["event"] == "evaluation"
    ]


def test_equal_features_are_a_contrast_of_log_two_without_gradient():
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(8, 5, generator=draw, requires_grad=True)
    other = torch.randn(8, 5, generator=draw)
    contrast = MOON().compute_contrast(z, other, other)
    contrast.backward()
    assert contrast.item() == pytest.approx(log(2), abs=1e-6)
    assert float(z.grad.abs().max()) < 1e-7


def test_the_contrast_is_the_papers():
    draw = torch.Generator().manual_seed(0)
    z, near, far = (torch.randn(4, 6, generator=draw) for _ in range(3))
    cosines = [torch.cosine_similarity(z, o).double() / 0.5 for o in (near, far)]
    expected = -(cosines[0].exp() / (cosines[0].exp() + cosines[1].exp())).log().mean()
    assert MOON().compute_contrast(z, near, far).item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_sharp_contrast_stays_finite():
    z = torch.eye(3)
    value = MOON(temperature=1e-4).compute_contrast(z, -z, z)
    assert value.item() == pytest.approx(2e4)


def test_its_first_round_is_fedavg():
    a, b = played(MOON(mu=5.0), rounds=1), played("fedavg", rounds=1)
    assert close(model(a), model(b))
    assert not close(
        model(played(MOON(mu=5.0), rounds=2, participation=1.0)),
        model(played("fedavg", rounds=2, participation=1.0)),
    )


def test_what_the_client_compares_with_is_its_own_last_base_in_eval_mode():
    @dataclass(frozen=True)
    class Watched(MOON):
        def local(self, client):
            received = state(client.net.base)
            before = client.memory.get("base", received)
            out = super().local(client)
            assert same(client.memory["base"], state(client.net.base))
            assert not same(client.memory["base"], before)
            return out

        def compute_contrast(self, z, near, far):
            assert z.requires_grad
            assert not near.requires_grad
            assert not far.requires_grad
            return super().compute_contrast(z, near, far)

    result = played(Watched(), model=net_with_batch_norm, participation=1.0)
    assert "1.running_mean" in memory(result, "0")["base"]


def test_frozen_nets_use_the_statistics_they_learned_not_the_batch():
    """Then what they say of an example does not depend on its batch."""
    seen: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Watched(MOON):
        def local(self, client):
            client.net.eval()
            everything = client.data.train.batch(torch.arange(len(client.data.train)))[0]
            with torch.no_grad():
                whole = client.net.base(everything)
            out = super().local(client)
            apart = torch.cdist(seen[0], whole).min(1).values
            assert float(apart.max()) < 1e-2 < torch.pdist(whole).min()
            return out

        def compute_contrast(self, z, near, far):
            seen.append(near)
            assert torch.equal(near, far)  # in the first round the received model is both
            return super().compute_contrast(z, near, far)

    one = digits(clients=1, examples=80)
    played(Watched(), one, model=net_with_batch_norm, rounds=1)
    assert seen


@pytest.mark.parametrize("depth", [1, 2])
def test_projection_puts_256_features_between_base_and_head(depth):
    result = played(MOON(projection=True), model="digitsnet", head_depth=depth, rounds=2)
    assert model(result)["head.0.weight"].shape[1] == 256


def test_nothing_more_travels_than_in_fedavg():
    assert played("moon").summary.bytes == played("fedavg").summary.bytes
    assert not identical(played("moon"), played(MOON(mu=0.0)))
