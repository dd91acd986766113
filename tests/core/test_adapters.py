"""Adapters: a fresh one changes nothing, only it and the head are trained, and it can be merged."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import heterophony as hp
from helpers.support import digits, played
from heterophony.config.reading import read_config
from heterophony.core.adapters import ADAPTERS, LORA_A, LoRA, build_adapter, merge_adapters
from heterophony.core.errors import ConfigError
from heterophony.core.net import Net
from heterophony.core.randomness import seeded
from heterophony.core.tensors import Tensors, matches_any
from heterophony.models import get_model_builder

SHAPES = {"mlp": (1, 8, 8), "digitsnet": (1, 8, 8), "resnet18": (3, 32, 32), "vit_tiny": (3, 8, 8)}
HOW = {"rounds": 2, "participation": 1.0, "training": hp.Training(steps=3, batch=8, lr=0.05)}


def build(name: str) -> tuple[Net, Tensor]:
    with seeded("init", name):
        net = get_model_builder(name)(SHAPES[name], 10, 1).eval()
        return net, torch.randn(4, *SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_fresh_adapter_leaves_the_outputs_as_they_are(name, kind):
    net, x = build(name)
    if kind == "bottleneck" and name == "resnet18":
        return  # its base has no linear layer
    before = net(x)
    assert torch.equal(build_adapter({"kind": kind}).apply(net)(x), before)


def test_bottlenecks_need_linear_layers():
    with pytest.raises(ConfigError, match="it has no layer of a kind that can be adapted"):
        hp.Bottleneck().apply(build("resnet18")[0])


def test_only_the_adapter_and_the_head_are_trained():
    net = LoRA(rank=2).apply(build("mlp")[0])
    trained = {k: tuple(p.shape) for k, p in net.named_parameters() if p.requires_grad}
    assert trained == {
        "base.1.lora_A": (2, 64),
        "base.1.lora_B": (100, 2),
        "head.0.weight": (10, 100),
        "head.0.bias": (10,),
    }


def test_targets_choose_layers_by_pattern():
    net = LoRA(targets=("*.query", "*.value")).apply(build("vit_tiny")[0])
    adapted = {k.rsplit(".", 2)[1] for k, p in net.named_parameters() if "lora" in k}
    assert adapted == {"query", "value"}
    with pytest.raises(
        ConfigError, match=r"no layer of the net matches targets \['\*\.qeury'\]; it has base"
    ):
        LoRA(targets=("*.qeury",)).apply(build("vit_tiny")[0])


def test_any_module_has_its_last_layer_for_a_head():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hp.LoRA(rank=1).apply(module)
    assert {k for k, p in module.named_parameters() if p.requires_grad} == {
        *("0.lora_A", "0.lora_B", "2.weight", "2.bias")
    }


@pytest.mark.parametrize("name", SHAPES)
def test_a_merged_net_computes_the_same_with_plain_layers(name):
    net, x = build(name)
    LoRA(rank=2).apply(net)
    with seeded("trained"), torch.no_grad():
        for key, p in net.named_parameters():
            if "lora_B" in key:
                p.normal_(std=0.1)
    before = net(x)
    merged = merge_adapters(deepcopy(net))
    assert not any("lora" in k for k in merged.state_dict())
    assert {type(m) for m in merged.modules() if isinstance(m, nn.Linear | nn.Conv2d)} <= {
        *(nn.Linear, nn.Conv2d)
    }
    assert torch.allclose(merged(x), before, atol=1e-5)


def test_results_give_merged_models():
    result = played("fedsa_lora", digits(clients=2), model="mlp", **HOW)
    x = torch.as_tensor(result.plan.federation.samples("0", "test").batch(torch.arange(3))[0])
    plain, merged = result.personal("0"), result.personal("0", merge=True)
    assert "base.1.lora_A" in plain.net.state_dict()
    assert "base.1.lora_A" not in merged.net.state_dict()
    assert torch.allclose(plain.net(x), merged.net(x), atol=1e-5)


# As settings --------------------------------------------------------------------------------


def test_a_configuration_names_the_adapter():
    table = '{kind="lora",rank=2,alpha=2,targets=["base.*"]}'
    config = read_config(None, ["data.name=digits", "model.name=mlp", f"model.adapter={table}"])
    net = config.build_plan(config.build_federation()).model()
    assert net.get_submodule("base.1").lora_A.shape == (2, 64)
    assert "rank = 2" in config.to_toml()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('{kind="lroa"}', "model.adapter.kind: unknown name 'lroa'; did you mean 'lora'?"),
        ('{kind="lora",rank=0}', "model.adapter.rank: must be at least 1"),
        (
            '{kind="lora",rank=1000000000}',
            "model.adapter.rank: must be at least 1 and at most 4096",
        ),
        ('{kind="bottleneck",width=4097}', "model.adapter.width: must be at least 1 and at most"),
        ('{kind="lora",rnak=2}', "model.adapter.rnak"),
        ("{rank=2}", "model.adapter.kind: missing; choose lora, bottleneck, bias, last_layer"),
    ],
)
def test_a_wrong_adapter_is_one_line(table, message):
    with pytest.raises(ConfigError) as caught:
        read_config(None, ["data.name=digits", f"model.adapter={table}"])
    assert str(caught.value).startswith(message)


# Algorithms on adapters ---------------------------------------------------------------------


def adapted() -> Net:
    with seeded("init"):
        return LoRA(rank=8, alpha=8).apply(get_model_builder("mlp")((1, 8, 8), 10, 1))


def models(name: str, net: Net, **settings: object) -> Tensors:
    result = played(name, digits(clients=3), model=net, **HOW, **settings)
    return result._server.model


def freeze(net: Net, *patterns: str) -> Net:
    for key, parameter in net.named_parameters():
        if matches_any(key, patterns):
            parameter.requires_grad_(False)
    return net


def test_fedsa_lora_with_nothing_personal_is_fedavg_on_adapters():
    assert (
        models("fedsa_lora", adapted(), keeps="nothing").digest()
        == models("fedavg", adapted()).digest()
    )


def test_ffa_lora_is_fedavg_on_adapters_with_every_a_frozen():
    found = models("ffa_lora", adapted())
    assert found.digest() == models("fedavg", freeze(adapted(), LORA_A)).digest()
    assert not any("lora_A" in k for k in found)


def test_linear_probe_is_fedavg_with_the_base_frozen():
    with seeded("init"):
        net = get_model_builder("mlp")((1, 8, 8), 10, 1)
    found = models("linear_probe", deepcopy(net))
    assert found.digest() == models("fedavg", freeze(net, "base.*")).digest()
    assert set(found) == {"head.0.weight", "head.0.bias"}


def test_feddpa_without_its_personal_adapter_is_fedavg_on_adapters():
    found = models("feddpa", adapted(), most=0.0)
    plain = Tensors({k.replace(".common.", "."): v for k, v in found.items()})
    assert plain.digest() == models("fedavg", adapted()).digest()


def test_feddpa_trains_a_personal_adapter_that_never_leaves_and_changes_only_p():
    net = adapted()
    found = models("feddpa", net)
    plain = Tensors({k.replace(".common.", "."): v for k, v in found.items()})
    assert plain.digest() == models("fedavg", adapted()).digest()  # the common one is FedAvg's
    assert not any("own" in k for k in found)


def test_fedsa_lora_shares_a_alone_also_in_a_net_of_peft():
    peft = pytest.importorskip("peft")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    settings = peft.LoraConfig(r=2, target_modules=["1"], modules_to_save=["3"])
    result = played(
        "fedsa_lora", digits(clients=2), model=peft.get_peft_model(module, settings), **HOW
    )
    assert all("lora_A" in k for k in result._server.model)
    assert result._server.model
