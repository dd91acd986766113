"""Modules that cannot be split, and modules that return an object with logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heterophony as hp
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.core.errors import ConfigError

SHORT = {"rounds": 2, "training": hp.Training(lr=0.05, epochs=1, batch=10)}


def make_data() -> hp.Federation:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 6)).astype(np.float32)
    return hp.federate((x, (x[:, 0] > 0).astype(np.int64)), clients=3, partition=hp.IID())


class Functional(nn.Module):
    """Its last layer is a parameter of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        last = nn.Linear(8, 2)
        self.weight, self.bias = last.weight, last.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.first(x).relu(), self.weight, self.bias)


class Returning(nn.Module):
    """Returns an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.last(self.first(x).relu()))


class Outputs(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


class ReturningInTraining(Returning):
    """Returns a named tuple in training and a tensor in evaluation, as torchvision's GoogLeNet does."""

    def forward(self, x: Tensor) -> Outputs | Tensor:
        logits = self.last(self.first(x).relu())
        return Outputs(logits, 2 * logits) if self.training else logits


def make_split() -> hp.Net:
    module = Returning()
    return hp.Net(nn.Sequential(module.first, nn.ReLU()), module.last)


def get_values(result: Any) -> list[Tensor]:
    return list(result.generic().state_dict().values())


def make_in_evaluation() -> nn.Module:
    return ReturningInTraining().eval()  # as a pretrained net is given


@pytest.mark.parametrize("module", [Functional, Returning, ReturningInTraining, make_in_evaluation])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "ditto", "scaffold"])
def test_a_module_has_the_bits_of_the_same_net_in_two_parts(module, algorithm):
    found = hp.run(algorithm, make_data(), model=module(), **SHORT)
    wanted = hp.run(algorithm, make_data(), model=make_split(), **SHORT)
    assert {c: r.correct for c, r in found.clients.items()} == {
        c: r.correct for c, r in wanted.clients.items()
    }
    both = [sorted(v.flatten().tolist() for v in get_values(r)) for r in (found, wanted)]
    assert both[0] == both[1]


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep", "fedrod", "fedproto", "fedbabu"])
def test_an_algorithm_that_needs_a_head_says_so(algorithm):
    with pytest.raises(ConfigError, match="cannot split Functional"):
        hp.run(algorithm, make_data(), model=Functional(), **SHORT)


@pytest.mark.parametrize("module", [Returning, ReturningInTraining])
def test_logits_of_an_object_have_a_head(module):
    found = hp.run("fedper", make_data(), model=module(), **SHORT)
    wanted = hp.run("fedper", make_data(), model=make_split(), **SHORT)
    assert {c: r.correct for c, r in found.clients.items()} == {
        c: r.correct for c, r in wanted.clients.items()
    }


def test_a_tensor_in_evaluation_is_split_too():
    module, x = ReturningInTraining(), torch.ones(4, 6)
    net = hp.split(module, example=x)
    assert torch.equal(net.eval()(x), module.eval()(x))
    assert torch.equal(net.train()(x), module.train()(x).logits)


NO_HEAD = [n for n in ALGORITHM_CLASSES if not get_algorithm_class(n)().needs_head]


@pytest.mark.parametrize("name", NO_HEAD)
def test_every_algorithm_that_needs_no_head_takes_any_module(name):
    hp.run(name, make_data(), model=Functional(), rounds=1, training=SHORT["training"])


def test_an_output_without_logits_is_refused():
    class Pair(Returning):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(ConfigError, match="Pair returns tuple, not a tensor"):
        hp.run("fedavg", make_data(), model=Pair(), **SHORT)
