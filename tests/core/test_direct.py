"""Training without autograd: what is compiled, and that its bits are those of autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.nn.utils.parametrizations import weight_norm

import heterophony as hp
from helpers.support import digits, played
from heterophony.core import direct, groups
from heterophony.core.direct import PACKED, Rates, Stack, add_as_torch, compile_net
from heterophony.core.groups import check_pass, cut_batches, find_fastest_training, prepare_pass
from heterophony.core.meeting import Meeting
from heterophony.core.samples import Samples
from heterophony.core.tasks import TASKS
from heterophony.core.tensors import Tensors, params
from heterophony.core.training import create_optimizer

CLASSES = TASKS["classification"].loss


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(groups, "VERDICTS", {})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(*layers: nn.Module) -> hp.Net:
    return hp.Net(nn.Sequential(*layers[:-1]), nn.Sequential(layers[-1]))


def perceptron(inputs: int = 12, hidden: int = 7, classes: int = 4) -> hp.Net:
    return build(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def list_kinds(net: nn.Module) -> list[str] | None:
    compiled = compile_net(net)
    return None if compiled is None else [layer.kind for layer in compiled.layers]


# What is compiled ---------------------------------------------------------------------------


def test_the_layers_of_a_net_are_listed():
    assert list_kinds(perceptron()) == ["flatten", "linear", "ReLU", "linear"]
    net = build(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
    assert list_kinds(net) == ["conv", "pool", "Tanh", "flatten", "linear"]
    assert list(compile_net(net).parameters) == [k for k, _ in net.named_parameters()]


class OwnLinear(nn.Linear):
    """A layer that may do anything."""


class OwnNet(hp.Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def with_hook() -> hp.Net:
    net = perceptron()
    net.base[1].register_forward_hook(lambda *_: None)
    return net


def with_own_forward() -> hp.Net:
    net = perceptron()
    net.base[1].forward = torch.relu
    return net


def with_tied_weights() -> hp.Net:
    net = build(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    net.head[0].weight = net.base[0].weight
    return net


@pytest.mark.parametrize(
    "make",
    [
        lambda: build(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
        lambda: build(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        lambda: build(OwnLinear(4, 4), nn.Linear(4, 2)),
        lambda: build(weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)),
        lambda: build(nn.Linear(4, 4).double(), nn.Linear(4, 2)),
        lambda: OwnNet(nn.Linear(4, 4), nn.Linear(4, 2)),
        with_hook,
        with_own_forward,
        with_tied_weights,
    ],
)
def test_what_is_not_plain_is_left_to_autograd(make):
    assert compile_net(make()) is None


# Bits ---------------------------------------------------------------------------------------


def try_net(
    net: hp.Net, shape: tuple[int, ...], batch: int, loss=CLASSES, **how: float
) -> tuple[bool, int]:
    """Try a net in the self-test: does it have the bits of autograd, alone and in a group?"""
    training = hp.Training(**{"batch": batch, "lr": 0.1, "momentum": 0.9, **how})
    x = torch.rand(3 * batch, *shape)
    outputs = net.eval()(x).shape[1]
    y = (
        torch.arange(len(x)) % outputs
        if loss is CLASSES
        else (torch.rand(len(x), outputs) > 0.5).float()
    )
    optimiser = create_optimizer(params(net), training, {}, Tensors())
    one = prepare_pass(net, loss, optimiser, Samples(x, y), None)
    one.places, one.sizes = cut_batches([torch.arange(len(x))], batch)
    return check_pass(one)


@pytest.mark.parametrize(
    ("inputs", "hidden", "batch"), [(64, 100, 10), (60, 33, 9), (61, 33, 7), (7, 3, 2)]
)
@pytest.mark.parametrize("how", [{}, {"nesterov": True}, {"momentum": 0.0, "weight_decay": 0.01}])
def test_a_group_has_the_bits_of_each_client_alone(inputs, hidden, batch, how):
    alone, packing = try_net(perceptron(inputs, hidden), (inputs,), batch, **how)
    assert alone
    assert packing


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(0.2), nn.GELU()]
)
def test_activations_have_the_bits_of_autograd(activation):
    rows = build(nn.Linear(9, 11), activation, nn.ReLU(), nn.Linear(11, 3))
    assert try_net(rows, (9,), 5)[0]
    images = build(nn.Conv2d(1, 3, 3), activation, nn.Flatten(), nn.Linear(48, 3))
    assert try_net(images, (1, 6, 6), 5)[0]


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(45, 4)],
        [nn.Conv2d(2, 4, 3, stride=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)],
        [
            nn.Conv2d(2, 4, 3, groups=2),
            nn.MaxPool2d(3, 2),
            nn.Flatten(),
            nn.Linear(4, 4, bias=False),
        ],
    ],
)
def test_convolutions_have_the_bits_of_autograd(layers):
    net = build(*layers).to(memory_format=torch.channels_last)
    assert try_net(net, (2, 6, 6), 5) > (True, 0)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_other_losses_have_the_bits_of_autograd(task):
    assert try_net(perceptron(), (12,), 6, TASKS[task].loss) > (True, 0)


def test_frozen_layers_stay_as_they_are():
    net = perceptron()
    net.base.requires_grad_(False)
    hp.list_tensors(net)
    for p in net.base.parameters():
        p._heterophony_given = True
    assert try_net(net, (12,), 6) > (True, 0)


@pytest.mark.parametrize("size", [1, 2, 10, 15, 16, 17, 33, 250, 300])
def test_losses_are_added_in_the_order_of_torch(size):
    logs = torch.randn(size, 4).log_softmax(1)
    y = torch.arange(size) % 4
    picked = -logs.gather(1, y.unsqueeze(1)).squeeze(1)
    assert torch.equal(add_as_torch(picked) / size, nll_loss(logs, y))


def test_mini_batches_of_an_epoch_may_be_short():
    places, sizes = cut_batches([torch.arange(5), torch.arange(4)], 2)
    assert sizes == [2, 2, 1, 2, 2]
    assert places.tolist() == [[0, 1], [2, 3], [4, 0], [0, 1], [2, 3]]


# The self-test ------------------------------------------------------------------------------


def spoil(monkeypatch, kind: str) -> None:
    right = direct.BY_NAME[kind]
    wrong = replace(right, backward=lambda g, *rest: right.backward(g, *rest) * (1 + 2**-23))
    monkeypatch.setitem(direct.BY_NAME, kind, wrong)


def build_tanh_net() -> hp.Net:
    return hp.Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()), nn.Linear(16, 10))


def test_a_wrong_kernel_is_found_and_not_used(monkeypatch):
    expected = played("fedavg", model=build_tanh_net, fast="off")
    assert played("fedavg", model=build_tanh_net).events[0]["training"] == "groups"
    monkeypatch.setattr(groups, "VERDICTS", {})
    spoil(monkeypatch, "Tanh")
    found = played("fedavg", model=build_tanh_net)
    assert found.events[0]["training"] == "autograd"
    assert found.model_sha256 == expected.model_sha256


@pytest.mark.parametrize(("place", "entry"), [(0, 0), (20, 3), (31, 9)])
def test_a_kernel_that_is_wrong_for_one_client_of_a_group_runs_alone(place, entry, monkeypatch):
    expected = played("fedavg", fast="off")
    right, sizes = groups.run_passes, list[int]()

    def run(passes, packing=PACKED):
        right(passes, packing)
        sizes.append(len(passes))
        if len(passes) > place and len(passes) > 1:
            with torch.no_grad():
                passes[place].parameters["head.0.bias"][entry].mul_(1 + 2**-22)

    monkeypatch.setattr(groups, "run_passes", run)  # as the self-test calls it
    monkeypatch.setattr("heterophony.core.meeting.run_passes", run)
    found = played("fedavg")
    assert found.events[0]["training"] == "direct"
    assert found.model_sha256 == expected.model_sha256
    trained = sum(len(e["clients"]) for e in found.events if e["event"] == "round")
    assert sizes[-trained:] == [1] * trained


def test_a_layer_on_a_shape_that_it_was_not_written_for_is_left_to_autograd():
    net = hp.Net(nn.Sequential(nn.Linear(3, 4), nn.Flatten()), nn.Linear(8, 2))
    samples = Samples(torch.rand(6, 2, 3), torch.arange(6) % 2)
    assert find_fastest_training(net, CLASSES, hp.Training(batch=3), samples) == "autograd"


# Passes -------------------------------------------------------------------------------------


def odd_net() -> hp.Net:
    """A net whose parameters end anywhere."""
    return perceptron(64, 33, 10)


class DrawingPull(hp.Algorithm):
    """An algorithm whose ``pull`` draws random numbers between the epochs' orders."""

    def local(self, client):
        client.fit(pull=lambda w: w.map(lambda v: 0.01 * torch.rand_like(v)))
        return client.shared()


class UsesNetBetween(hp.Algorithm):
    """After a plain pass, and in a ``pull``, autograd uses the net that a group has trained."""

    def local(self, client):
        net, (x, y) = client.net, client.data.train.batch(torch.arange(5))

        def pull(w: Tensors) -> Tensors:
            grads = torch.autograd.grad(client.loss(net(x), y), list(params(net).values()))
            return Tensors(zip(params(net), grads, strict=True))

        client.fit(pull=pull)
        client.fit(lambda x, y: 2 * client.loss(net(x), y), phase="own")
        return client.shared()


class SeveralPasses(hp.Algorithm):
    """Passes over parts, with rates of their own, that continue a phase."""

    def local(self, client):
        head = client.net.head
        client.fit(train=head, epochs=1, phase="head", rates={"head.0.bias": 0.001})
        client.fit(steps=3, pull=lambda w: 0.1 * w)
        client.fit(steps=2, turn=1)
        client.fit(train=client.net.base, data=client.data.test, epochs=1, phase="base")
        return client.shared()


@pytest.mark.parametrize("algorithm", [DrawingPull(), SeveralPasses(), UsesNetBetween()])
@pytest.mark.parametrize("how", [{}, {"drop_last": False, "weight_decay": 0.01}, {"momentum": 0.0}])
def test_passes_of_any_kind_have_the_same_bits(algorithm, how):
    training = hp.Training(**{"epochs": 2, "batch": 12, "lr": 0.05, **how})
    model = odd_net if algorithm.__class__ is UsesNetBetween else "mlp"
    settings = {"training": training, "model": model, "participation": 1.0}
    runs = [played(algorithm, fast=fast, **settings) for fast in ("auto", "off")]
    assert runs[0].model_sha256 == runs[1].model_sha256
    losses = [[e["loss"] for e in r.events if e["event"] == "round"] for r in runs]
    assert losses[0] == losses[1]


# The meeting --------------------------------------------------------------------------------


def test_an_error_of_one_client_is_its_own():
    ended = list[int]()

    def task(number: int) -> int:
        if number == 1:
            raise ValueError("one")
        ended.append(number)
        return number

    with pytest.raises(ValueError, match="one"):
        Meeting([lambda i=i: task(i) for i in range(4)]).run()
    assert ended == [0, 2, 3]


def test_results_come_in_the_order_of_the_tasks():
    assert Meeting([lambda i=i: i * i for i in range(5)]).run() == [0, 1, 4, 9, 16]


def test_clients_of_a_round_train_as_one_group(monkeypatch):
    sizes, right = list[int](), groups.run_passes

    def run(passes, packing=PACKED):
        sizes.append(len(passes))
        right(passes, packing)

    monkeypatch.setattr("heterophony.core.meeting.run_passes", run)
    played("fedavg", digits(), participation=1.0, rounds=2)
    assert sizes == [6, 6]


def test_sgd_rounds_in_a_group_as_it_does_alone():
    """The last entries of a tensor, which fill no vector of the processor, round in another way."""
    draw = torch.Generator().manual_seed(0)
    start, grads = torch.rand(2, 64, 30, generator=draw).sub_(0.5)
    rates = Rates((("bias", 0.05),), 0.9, False, 1e-3)

    def update(members: Tensor) -> Tensor:
        stack = Stack([{"bias": nn.Parameter(start[i].clone())} for i in members], rates, PACKED)
        for is_first in (True, False, False):
            stack.grads["bias"].each.copy_(grads[members])
            stack.make_update(0, len(members))(is_first)
        return stack.values["bias"].each.clone()

    everyone = torch.arange(64)
    assert torch.equal(update(everyone), torch.cat([update(i) for i in everyone.split(1)]))
