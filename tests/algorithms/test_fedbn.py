"""FedBN: BatchNorm stays, told by its type; without any it is FedAvg."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import digits, identical, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedbn import FedBN
from heterophony.models import get_model_builder
from heterophony.models.resnets import build_resnet


def small_resnet() -> hp.Net:
    return build_resnet((1, 8, 8), 10, 1, (4, 8))


def grouped() -> hp.Net:
    base = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten())
    return hp.Net(base, nn.Linear(144, 10))


@pytest.mark.parametrize("net", ["mlp", "digitsnet", grouped])
@pytest.mark.parametrize("buffers", ["local", "average"])
def test_without_batch_norm_it_is_fedavg(net, buffers):
    how = {"model": net, "buffers": buffers}
    assert identical(played("fedbn", **how), played("fedavg", **how))


@pytest.mark.parametrize("buffers", ["local", "average"])
@pytest.mark.parametrize("net", [net_with_batch_norm, small_resnet])
def test_norms_stay_whatever_their_name(net, buffers):
    """The shortcut's is called downsample.1: a search for 'bn' would let it travel."""
    result = played("fedbn", model=net, buffers=buffers, participation=1.0, rounds=2)
    template = result.plan.template
    norms = [k for k, m in template.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(k.startswith(f"{n}.") for k in model(result) for n in norms)
    for c in result.plan.federation.clients:
        kept = memory(result, c)["net"]
        assert {k.rpartition(".")[0] for k in kept} == set(norms)
        parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        assert set(kept) == {f"{n}.{p}" for n in norms for p in parts}
        now = hp.Tensors(result.personal(c).net.state_dict())
        assert same(now.only(*kept), kept)
        assert same(now.only(*model(result)), model(result))
    if net is small_resnet:
        assert any("downsample.1" in n for n in norms)


def test_norms_are_trained():
    result = played("fedbn", model=net_with_batch_norm, participation=1.0, rounds=1)
    start = hp.Tensors(result.plan.template.state_dict())
    assert not torch.equal(memory(result, "0")["net"]["base.1.weight"], start["base.1.weight"])


def test_with_one_client_it_is_local():
    alone, how = digits(clients=1, examples=80), {"model": net_with_batch_norm}
    a, b = played("fedbn", alone, **how), played("local", alone, **how)
    assert same(memory(a, "0")["net"] | model(a), memory(b, "0")["net"])


@pytest.mark.parametrize(
    ("name", "classes", "modules", "ratio"),
    [("resnet8", 10, 9, 0.99566), ("resnet10", 100, 12, 0.99768)],
)
def test_what_travels_of_the_residual_networks(name, classes, modules, ratio):
    net = get_model_builder(name)((3, 32, 32), classes, 1)
    assert len(FedBN().stays(net)) == modules
    sent = sum(net.state_dict()[k].numel() for k in FedBN().shared(net, 0, buffers=True))
    whole = sum(v.numel() for v in net.state_dict().values() if v.is_floating_point())
    assert round(sent / whole, 5) == ratio


def test_g_has_the_mean_of_all_norms():
    result = played("fedbn", model=net_with_batch_norm, participation=1.0, weights="uniform")
    clients = result.plan.federation.clients
    mean = hp.mix([memory(result, c)["net"] for c in clients], [1 / len(clients)] * len(clients))
    now = hp.Tensors(result.generic().net.state_dict())
    assert same(now.only("base.1.*"), mean)
