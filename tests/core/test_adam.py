"""Our Adam and AdamW have the bits of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from heterophony.core.tensors import Tensors, params, state
from heterophony.core.training import SGD, Adam, Training, create_optimizer
from heterophony.models.convnets import digitsnet

THEIRS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return digitsnet((1, 8, 8), 10).to(memory_format=torch.channels_last)


def step(net: nn.Module, optimiser: Adam | torch.optim.Optimizer, i: int) -> None:
    draw = torch.Generator().manual_seed(i)
    x, y = torch.randn(6, 1, 8, 8, generator=draw), torch.randint(10, (6,), generator=draw)
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    optimiser.step()


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_has_the_bits_of_torch(name, weight_decay):
    how = Training(optimizer=name, lr=0.02, betas=[0.8, 0.9], eps=1e-6, weight_decay=weight_decay)
    mine, plain = make_net(), make_net()
    ours = create_optimizer(params(mine), how, {"head.*": 0.06}, Tensors(), 0.5)
    groups = [
        {"params": list(plain.base.parameters())},
        {"params": plain.head.parameters(), "lr": 0.03},
    ]
    theirs = THEIRS[name](
        groups, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=weight_decay, fused=True
    )
    for i in range(4):
        step(mine, ours, i)
        step(plain, theirs, i)
    assert state(mine).digest() == state(plain).digest()
    kept = ours.state()
    assert len(kept) == 3 * len(params(plain))
    for k, p in plain.named_parameters():
        for part in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(kept[f"{part}/{k}"], theirs.state[p][part])


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_defaults_are_those_of_torch(name):
    how, defaults = Training(optimizer=name), THEIRS[name]([nn.Parameter(torch.ones(1))]).defaults
    for key in ("lr", "betas", "eps", "weight_decay"):
        assert getattr(how, key) == defaults[key]


def test_it_continues_from_the_state_that_it_is_given():
    how = Training(optimizer="adam", lr=0.1)
    whole, halves = make_net(), make_net()
    once, first = (Adam(params(net), how, {}, Tensors()) for net in (whole, halves))
    for i in range(2):
        step(whole, once, i)
        step(halves, first, i)
    kept = Tensors({k: v.contiguous() for k, v in first.state().items()})  # as after a file
    second = Adam(params(halves), how, {}, kept)
    for i in range(2, 4):
        step(whole, once, i)
        step(halves, second, i)
    assert state(whole).digest() == state(halves).digest()
    assert all(
        v.item() == 2 for k, v in kept.items() if k.startswith("step/")
    )  # a copy was counted


def test_a_parameter_without_a_gradient_is_not_updated_and_counts_its_own_steps():
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    adam = Adam(Tensors({"a": a, "b": b}), Training(optimizer="adamw", lr=0.5), {}, Tensors())
    a.grad = torch.ones(2)
    adam.step()
    assert b.tolist() == [1, 1]
    assert {k for k in adam.state() if k.startswith("step/")} == {"step/a"}
    b.grad = torch.ones(2)
    adam.step()
    assert (adam.steps["a"].item(), adam.steps["b"].item()) == (2, 1)


def test_parameters_of_two_types_are_stepped_alike():
    named = Tensors(
        {t: nn.Parameter(torch.ones(2, dtype=getattr(torch, t))) for t in ("float32", "float64")}
    )
    for p in named.values():
        p.grad = torch.ones_like(p)
    Adam(named, Training(optimizer="adam", lr=0.5), {}, Tensors()).step()
    assert all(p.tolist() == pytest.approx([0.5, 0.5]) for p in named.values())


def test_sgd_is_chosen_by_default_and_has_no_state_without_momentum():
    net = make_net()
    sgd = create_optimizer(params(net), Training(momentum=0.0), {}, Tensors())
    assert isinstance(sgd, SGD)
    step(net, sgd, 0)
    assert sgd.state() == {}
