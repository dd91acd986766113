"""LG-FedAvg: only the top layers travel; there is no generic model."""

from __future__ import annotations

from dataclasses import dataclass

import heterophony as hp
from helpers.support import digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.lgfedavg import LGFedAvg
from heterophony.core.tensors import state


def test_only_the_last_layer_travels():
    """The head, not the first layers."""
    shared = model(played("lgfedavg", model="digitsnet"))
    assert {k: tuple(v.shape) for k, v in shared.items()} == {
        "head.0.bias": (10,),
        "head.0.weight": (10, 64),
    }


def test_the_head_of_a_resnet8_is_a_fifth_of_a_percent():
    from heterophony.models.resnets import resnet8

    net = resnet8((3, 32, 32), 10, 1)
    sizes = [net.get_parameter(k).numel() for k in LGFedAvg().shared(net, 0)]
    assert sum(sizes) == 2570
    assert round(sum(sizes) / sum(p.numel() for p in net.parameters()), 4) == 0.0021


def test_more_top_layers_are_shared_where_the_head_is_deeper():
    shared = model(played("lgfedavg", model="digitsnet", head_depth=2))
    assert sum(v.numel() for v in shared.values()) == 128 * 64 + 64 + 64 * 10 + 10


def test_the_extractor_goes_unchanged_through_loading():
    @dataclass(frozen=True)
    class Watched(LGFedAvg):
        def local(self, client):
            base = state(client.net).only("base.*")
            before = client.memory.get("seen", base)
            assert same(base, before)
            out = super().local(client)
            client.memory["seen"] = state(client.net).only("base.*")
            return out

    result = played(Watched(), model=net_with_batch_norm, participation=1.0, buffers="average")
    kept = memory(result, "0")
    assert same(kept["seen"], kept["net"])
    assert "base.1.running_mean" in kept["net"]
    now = hp.Tensors(result.personal("0").net.state_dict())
    assert same(now.only("base.*"), kept["net"])
    assert same(now.only("head.*"), model(result))


def test_it_is_the_mirror_image_of_fedper():
    a, b = played("lgfedavg"), played("fedper")
    assert not set(model(a)) & set(model(b))
    assert set(model(a)) | set(model(b)) == set(model(played("fedavg")))


def test_there_is_no_model_for_everybody():
    result = played("lgfedavg")
    assert result.G is None
    assert all(e["G"] is None for e in result.events if e["event"] == "evaluation")


def test_with_one_client_it_is_local():
    one = digits(clients=1, examples=80)
    a, b = played("lgfedavg", one), played("local", one)
    assert same(model(a) | memory(a, "0")["net"], memory(b, "0")["net"])
