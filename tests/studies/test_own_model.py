"""A user's own model in a run: what it computes is what is trained, and mistakes are said before."""

from __future__ import annotations

from threading import Lock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, log_softmax, relu

import heterophony as hp
from helpers.support import blobs, digits, identical, model, played
from heterophony.core.errors import ConfigError


class Body(nn.Module):
    """Convolution, hidden layer and dropout; the same draws in every class below."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1 = nn.Conv2d(1, 4, 3), nn.Linear(144, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.fc1(relu(self.conv(x)).flatten(1)))
        return dropout(x, 0.2, training=self.training)


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(self.fc2(x), dim=1)


class Whole(Body):
    """The same in one class: a network as most tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(self.fc2(super().forward(x)), dim=1)


class Backwards(nn.Module):
    """The head is declared first, and torch.fx cannot follow the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(16, 10), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        return self.head(h if h.isnan().any() else h.relu())


class Around(Whole):
    """The hidden layer's input goes around the head."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(Body.forward(self, x)) + x.mean()


def in_two_parts() -> hp.Net:
    return hp.Net(Body(), Tail())


def split_without_example() -> hp.Net:
    return hp.split(Whole())


def split_wrongly() -> hp.Net:
    return hp.split(Backwards())


def linear(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, outputs))


def seven() -> nn.Sequential:
    return linear(7)


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedrod"])
def test_a_net_that_ends_in_log_softmax_trains_as_its_two_parts_do(name):
    expected = played(name, model=in_two_parts)
    assert identical(played(name, model=Whole), expected)
    assert identical(played(name, model=split_without_example), expected)
    assert set(model(expected)) <= {
        f"{part}.{kind}"
        for part in ("base.conv", "base.fc1", "head.fc2", "own.fc2")
        for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("make", [Whole, Backwards])
def test_every_engine_cuts_at_the_same_place(make):
    given = make()
    for own in (make, given, hp.split(given, example=digits().x[:4] / 255)):
        serial = played("fedper", model=own, rounds=2)
        assert identical(serial, played("fedper", model=own, rounds=2, engine="pool", workers=2))


def test_a_head_that_is_declared_first_is_the_head():
    net = played("fedper", model=Backwards, rounds=1).personal("0").net
    assert {tuple(p.shape) for p in net.head.parameters()} == {(10,), (10, 16)}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (
            Around,
            "cannot split Around: operations after 'fc2' also use values from before it; write",
        ),
        (
            split_wrongly,
            "cannot split Backwards: base and head cannot be called one after the other;",
        ),
        (seven, "model: Sequential has 7 outputs, but the data have 10 classes; give its last"),
        (
            lambda: linear(10)[1:],
            "Sequential cannot process examples of 1×8×8: mat1 and mat2 shapes",
        ),
        (lambda: hp.Net(nn.Identity(), nn.Conv2d(1, 10, 3)), "model: Net returns 10×6×6 for each"),
        (lambda: None, "model: the function returned NoneType; make it return an nn.Module"),
        (7, "model: must be a name, an nn.Module or a function that makes one, not 7"),
    ],
)
def test_models_that_do_not_fit_are_said_in_one_line_before_anything_is_written(
    own, said, tmp_path
):
    with pytest.raises(ConfigError) as caught:
        played("fedper", model=own, out=tmp_path / "run")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class Locked(Whole):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.lock = Lock()


@pytest.mark.parametrize("given", [Locked, Locked()], ids=["class", "instance"])
def test_a_model_that_cannot_be_copied_is_said_with_the_part(given):
    with pytest.raises(ConfigError) as caught:
        played("fedavg", model=given)
    assert str(caught.value) == (
        "model: every client needs a copy of Locked, but model.conv.lock cannot be copied (cannot"
        " pickle '_thread.lock' object); create it inside the method that uses it"
    )


def test_more_outputs_than_classes_are_warned_of_and_work():
    with pytest.warns(
        UserWarning, match=r"^model: Sequential has 12 outputs, but the data have 10"
    ):
        assert played("fedavg", model=lambda: linear(12), rounds=1).G is not None


def test_an_own_algorithm_may_use_the_output_as_it_likes():
    class Summed(hp.Algorithm):
        """The net has two outputs for each class."""

        def local(self, client):
            client.fit(lambda x, y: nn.functional.cross_entropy(self.predict(client, x), y))
            return client.shared()

        def predict(self, client, x):
            return client.net(x).unflatten(1, (3, 2)).sum(2)

    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 6))
    assert hp.run(Summed(), hp.federate(blobs([12, 20])), model=net, rounds=1).G is not None


def test_clients_with_a_single_example_can_be_first():
    (a, b) = blobs([1, 20])
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    federation = hp.federate([(*a, *b), (*b, *b)])
    assert hp.run("fedavg", federation, model=net, rounds=1).G is not None


def test_a_run_leaves_the_model_and_the_random_state_as_they_were():
    given, before = Whole().eval(), torch.random.get_rng_state()
    weights = {k: v.clone() for k, v in given.state_dict().items()}
    played("fedavg", model=given, rounds=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(v, weights[k]) for k, v in given.state_dict().items())
    assert not given.training
    assert not any(m._forward_hooks for m in given.modules())
