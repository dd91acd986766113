"""Our SGD has the bits of torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from heterophony.core.tensors import Tensors, params, state
from heterophony.core.training import SGD, Training
from heterophony.models.convnets import digitsnet


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return digitsnet((1, 8, 8), 10).to(memory_format=torch.channels_last)


def step(net: nn.Module, optimiser: SGD | torch.optim.SGD, i: int) -> None:
    draw = torch.Generator().manual_seed(i)
    x, y = torch.randn(6, 1, 8, 8, generator=draw), torch.randint(10, (6,), generator=draw)
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    optimiser.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_it_has_the_bits_of_torch(momentum, weight_decay):
    how = Training(lr=0.1, momentum=momentum, weight_decay=weight_decay)
    mine, plain = make_net(), make_net()
    ours = SGD(params(mine), how, {"head.*": 0.3}, Tensors())
    groups = [
        {"params": list(plain.base.parameters())},
        {"params": plain.head.parameters(), "lr": 0.3},
    ]
    theirs = torch.optim.SGD(
        groups, lr=0.1, momentum=momentum, weight_decay=weight_decay, fused=True
    )
    for i in range(4):
        step(mine, ours, i)
        step(plain, theirs, i)
    assert state(mine).digest() == state(plain).digest()
    kept = {k: theirs.state[p].get("momentum_buffer") for k, p in plain.named_parameters()}
    assert sorted(ours.momentum) == sorted(k for k, v in kept.items() if v is not None)
    assert all(torch.equal(v, kept[k]) for k, v in ours.momentum.items())


def test_momentum_continues_from_the_buffers_that_it_is_given():
    how = Training(lr=0.1, momentum=0.9)
    whole, halves = make_net(), make_net()
    once = SGD(params(whole), how, {}, Tensors())
    first = SGD(params(halves), how, {}, Tensors())
    for i in range(2):
        step(whole, once, i)
        step(halves, first, i)
    second = SGD(params(halves), how, {}, Tensors(first.momentum))
    for i in range(2, 4):
        step(whole, once, i)
        step(halves, second, i)
    assert state(whole).digest() == state(halves).digest()


def test_a_parameter_without_a_gradient_is_not_updated_and_begins_later():
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    named = Tensors({"a": a, "b": b})
    sgd = SGD(named, Training(lr=0.5, momentum=0.5, weight_decay=0.1), {}, Tensors())
    a.grad = torch.ones(2)
    sgd.step()
    assert b.tolist() == [1, 1]
    assert list(sgd.momentum) == ["a"]
    a.grad, b.grad = torch.ones(2), torch.full((2,), 0.9)
    sgd.step()
    assert sgd.momentum["b"].tolist() == pytest.approx([1, 1])  # the gradient, with weight decay
    assert sgd.momentum["a"].tolist() == pytest.approx([1.595, 1.595])  # half of 1.1, and 1.045


def test_parameters_of_two_types_are_stepped_alike():
    named = Tensors(
        {t: nn.Parameter(torch.ones(2, dtype=getattr(torch, t))) for t in ("float32", "float64")}
    )
    for p in named.values():
        p.grad = torch.ones_like(p)
    SGD(named, Training(lr=0.5, momentum=0.9), {}, Tensors()).step()
    assert all(p.tolist() == [0.5, 0.5] for p in named.values())


def test_two_rates_for_one_parameter_are_refused():
    with pytest.raises(ValueError, match="two learning rates"):
        SGD(params(make_net()), Training(), {"head.*": 0.1, "*.bias": 0.2}, Tensors())
