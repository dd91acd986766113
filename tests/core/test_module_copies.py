"""Copies of modules are those of ``deepcopy``, and tensors are loaded as by ``load_state_dict``."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from helpers.support import net_with_batch_norm
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.core import net as module_copies
from heterophony.core.net import Net, copy_module, load_tensors
from heterophony.core.tensors import state
from heterophony.models import get_model_builder

MODELS = {
    "mlp": (1, 8, 8),
    "digitsnet": (1, 8, 8),
    "convnet": (1, 28, 28),
    "resnet8": (3, 16, 16),
    "charlstm": (12,),
}


def build(model: str, algorithm: str = "fedavg") -> Net:
    shape = MODELS[model]
    net = get_model_builder(model)(shape, 10, 1)
    net.shape = shape
    net = get_algorithm_class(algorithm)().build(net)
    return net.to(memory_format=torch.channels_last) if model != "charlstm" else net


def describe(module: nn.Module) -> list[object]:
    """All that two copies must agree in, but for their values."""
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    about: list[object] = [
        (k, type(v), v.dtype, v.shape, v.stride(), v.requires_grad) for k, v in tensors
    ]
    about += [(k, type(m), m.training, list(m.__dict__)) for k, m in module.named_modules()]
    return about


def check_copy(module: nn.Module) -> None:
    mine, plain = copy_module(module), deepcopy(module)
    assert describe(mine) == describe(plain)
    for (k, a), (_, b) in zip(mine.state_dict().items(), plain.state_dict().items(), strict=True):
        assert torch.equal(a, b), k
    own = {v.data_ptr() for v in module.state_dict().values() if v.numel()}
    assert not own & {v.data_ptr() for v in mine.state_dict().values()}
    parts = {id(m) for m in module.modules()}
    assert not parts & {id(m) for m in mine.modules()}


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_of_every_kind_of_model_is_that_of_deepcopy(model):
    check_copy(build(model))


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_a_copy_of_what_every_algorithm_builds_is_that_of_deepcopy(name):
    check_copy(build("digitsnet", name))


def test_flags_and_modes_are_copied():
    net = net_with_batch_norm()
    net.head.requires_grad_(False)
    net.base.eval()
    check_copy(net)


def test_nothing_that_is_done_to_a_copy_reaches_the_original_or_another_copy():
    net = net_with_batch_norm()
    before, about = state(net), describe(net)
    worn = copy_module(net)
    worn(torch.randn(4, 1, 8, 8)).sum().backward()  # BatchNorm counts, gradients appear
    worn.eval().requires_grad_(False)
    worn.base.register_forward_hook(lambda *_: torch.zeros(()))
    worn.base.forward = lambda x: x  # as the evaluation caches features
    worn.head = nn.Identity()
    worn.register_buffer("extra", torch.ones(1))
    next(worn.parameters()).data.zero_()
    assert describe(net) == about
    assert describe(copy_module(net)) == about
    assert state(net).digest() == before.digest() == state(copy_module(net)).digest()
    assert all(p.grad is None for p in copy_module(net).parameters())


def test_tied_parameters_and_parts_stay_tied():
    layer, free = nn.Linear(4, 4), nn.Linear(4, 4)
    free.weight = layer.weight
    net = Net(nn.Sequential(layer, nn.ReLU(), layer), free)
    copy = copy_module(net)
    assert copy.base[0] is copy.base[2] is not layer
    assert copy.head.weight is copy.base[0].weight is not layer.weight


class Odd(nn.Module):
    """Has what other attributes can refer to: a list of its parts, a bound method, a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.listed = [self.inner, {"weight": self.inner.weight}]
        self.call = self.inner.forward
        self.constant = torch.ones(3)
        self.shapes = ((1, 2), [3])

    def forward(self, x):
        return self.call(x) + self.constant


def test_attributes_refer_to_the_copy():
    odd = Odd()
    copy = copy_module(odd)
    assert copy.listed[0] is copy.inner is not odd.inner
    assert copy.listed[1]["weight"] is copy.inner.weight is not odd.inner.weight
    assert copy.call.__self__ is copy.inner
    assert copy.constant is not odd.constant
    assert copy.shapes[1] is not odd.shapes[1]


class OwnCopy(nn.Linear):
    """Says itself how it is copied."""

    def __deepcopy__(self, memo):
        return OwnCopy(1, 1)


def test_a_module_that_says_how_it_is_copied_is_copied_so():
    copy = copy_module(nn.Sequential(nn.Linear(3, 3), OwnCopy(3, 3)))
    assert copy[1].weight.shape == (1, 1)


def test_plain_modules_are_copied_without_deepcopy(monkeypatch):
    net = build("digitsnet")
    monkeypatch.setattr(module_copies, "deepcopy", None)
    assert describe(copy_module(net)) == describe(net)


# Loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "base.", "head."])
@pytest.mark.parametrize("make", [net_with_batch_norm, partial(build, "resnet8")])
def test_loading_is_that_of_torch(make, part):
    mine, plain = make(), make()
    tensors = {k: torch.randn(v.shape).to(v.dtype) for k, v in mine.state_dict().items()}
    tensors = {k: v for k, v in tensors.items() if k.startswith(part)}
    plain.load_state_dict(mine.state_dict())
    plain.load_state_dict(tensors, strict=False)
    assert load_tensors(mine, tensors) == []
    assert state(mine).digest() == state(plain).digest()


def test_unknown_names_are_returned_and_wrong_shapes_refused():
    net = build("mlp")
    assert load_tensors(net, {"head.0.extra": torch.ones(1)}) == ["head.0.extra"]
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_tensors(net, {"head.0.bias": torch.ones(3)})


class Doubling(nn.Linear):
    """Changes what is loaded."""

    def _load_from_state_dict(self, tensors, prefix, *rest):
        tensors[f"{prefix}bias"] = 2 * tensors[f"{prefix}bias"]
        super()._load_from_state_dict(tensors, prefix, *rest)


def test_a_module_that_loads_in_its_own_way_does_so():
    net = nn.Sequential(Doubling(2, 2))
    load_tensors(net, {"0.bias": torch.ones(2)})
    assert net[0].bias.tolist() == [2, 2]


def test_named_parameters_are_those_of_torch():
    tied = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    nested = nn.Sequential(tied, nn.Identity(), tied, nn.PReLU())
    for module in (tied, nested):
        assert list(module_copies.iterate_named_parameters(module)) == list(
            module.named_parameters()
        )


class FrozenNorm(nn.Sequential):
    """Keeps its BatchNorm in evaluation mode, as fine-tuning often does."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self[1].eval()
        return self


def test_a_module_that_overrides_train_decides_the_mode_of_its_parts():
    plain, frozen = (
        kind(nn.Linear(2, 2), nn.BatchNorm1d(2)) for kind in (nn.Sequential, FrozenNorm)
    )
    for whole in (nn.Sequential(plain.eval()), nn.Sequential(frozen.eval())):
        module_copies.start_training(whole)
        again = deepcopy(whole).train()
        assert [m.training for m in whole.modules()] == [m.training for m in again.modules()]
    assert plain[1].training
    assert not frozen[1].training
