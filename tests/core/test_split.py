"""Any module as base and head: the same bits as before, or a refusal that says what to write."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, log_softmax, relu

import heterophony as hp
from heterophony.core.errors import ConfigError
from heterophony.core.randomness import seeded
from heterophony.core.split import verify_origin
from heterophony.models import MODEL_DESCRIPTIONS, get_model_builder


class LogSoftmax(nn.Module):
    """The first network of many tutorials: dropout by function, and log_softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc1, self.fc2 = nn.Linear(144, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = dropout(relu(self.conv(x)), 0.25, training=self.training)
        x = dropout(relu(self.fc1(x.flatten(1))), training=self.training)
        return log_softmax(self.fc2(x), dim=1)


class Residual(LogSoftmax):
    """The head's own input goes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(144, 10), nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.fc1(relu(self.conv(x)).flatten(1)))
        return x + self.fc2(x)


class LongResidual(Residual):
    """A value from before the activation goes around the head."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(self.conv(x).flatten(1))
        return x + self.fc2(relu(x))


class HeadFirst(nn.Module):
    """The head is declared before the body."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 10)
        self.body = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)).relu())


class Scaled(HeadFirst):
    """The logits are scaled by a parameter, and by a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.5]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale / torch.tensor(3.0)


class Normalised(nn.Module):
    """BatchNorm and dropout as modules, a softmax after the head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.fc, self.soft = nn.Linear(144, 10), nn.LogSoftmax(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.soft(self.fc(self.drop(self.bn(self.conv(x)).relu().flatten(1))))


class ControlFlow(HeadFirst):
    """torch.fx cannot follow it; the head is last."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        return self.head(h.relu() if h.sum() > 0 else h.tanh())


class ControlFlowAround(ControlFlow):
    def forward(self, x: Tensor) -> Tensor:
        return log_softmax(super().forward(x), 1)


class Twice(HeadFirst):
    """The head is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head(self.body(x.flatten(1))))


class ByHand(HeadFirst):
    """The last layer is not called as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.body(x.flatten(1)), self.head.weight)


class Noisy(HeadFirst):
    """Draws noise that tracing would freeze."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(10)


class OtherSteps(HeadFirst):
    """Another forward in training than in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else super().forward(x).softmax(1)


class InPlace(HeadFirst):
    """The output of the head is changed afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        out.mul_(2)
        return out


class Wrapped(nn.Module):
    """Everything is in one child."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Listed(nn.Module):
    """Layers in a list, which is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 9), nn.Linear(9, 9), nn.Linear(9, 10)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x.relu())
        return x


class Transformer(nn.Module):
    """Rows of an image as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.Linear(8, 10)
        self.position = nn.Parameter(torch.linspace(-1, 1, 96).reshape(1, 12, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1, 2)
        tokens = self.encoder(tokens + self.position[:, : tokens.size(1)])
        return self.classify(tokens.mean(1)).log_softmax(-1)


class OwnSequential(nn.Sequential):
    """A Sequential whose forward does more."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


def images(n: int = 4, shape: tuple[int, ...] = (1, 8, 8)) -> Tensor:
    with seeded("images"):
        return torch.randn(n, *shape)


def assert_same(module: nn.Module, net: nn.Module, x: Tensor) -> None:
    """Both compute the same bits, gradients too, in both modes."""
    for mode in (True, False):
        outputs, gradients = [], []
        for part in (deepcopy(module), deepcopy(net)):
            with seeded("draws"):
                outputs.append(part.train(mode)(x))
            outputs[-1].square().sum().backward()
            grads = (p.grad for p in part.parameters() if p.grad is not None)
            gradients.append(sorted(g.double().sum().item() for g in grads))
        assert torch.equal(*outputs)
        assert gradients[0] == gradients[1]


RIGHT = [
    *(LogSoftmax, Residual, HeadFirst, Scaled, Normalised, InPlace, Wrapped, Listed),
    *(Transformer, OwnSequential),
]


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("make", RIGHT)
def test_a_split_net_computes_the_same_bits(make, with_example):
    with seeded("weights"):
        module = make()
    net = hp.split(module, example=images() if with_example else None)
    assert_same(module, net, images())
    names = {k for k, _ in net.named_parameters()}
    assert {k.split(".")[0] for k in names} == {"base", "head"}
    assert len(names) == len(list(module.parameters()))
    for copy in (deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert_same(module, copy, images())
        assert {k for k, _ in copy.named_parameters()} == names
    verify_origin(net, images())


@pytest.mark.parametrize(
    ("make", "head"),
    [
        (LogSoftmax, {"fc2.weight", "fc2.bias"}),
        (Residual, {"fc2.weight", "fc2.bias"}),
        (HeadFirst, {"weight", "bias"}),
        (Scaled, {"scale", "head.weight", "head.bias"}),
        (Normalised, {"fc.weight", "fc.bias"}),
        (Wrapped, {"weight", "bias"}),
        (Listed, {"weight", "bias"}),
        (Transformer, {"classify.weight", "classify.bias"}),
    ],
)
def test_the_head_is_what_is_called_last_and_what_follows(make, head):
    for example in (None, images()):
        assert {k for k, _ in hp.split(make(), example=example).head.named_parameters()} == head


def test_a_named_head_takes_with_it_what_follows():
    module = LogSoftmax()
    net = hp.split(module, "fc1")
    assert {k.split(".")[0] for k, _ in net.base.named_parameters()} == {"conv"}
    assert_same(module, net, images())
    assert net.base(images()).shape == (4, 144)


@pytest.mark.parametrize("head", [1, -1, "3"])
def test_an_own_sequential_is_cut_at_an_index_too(head):
    module = OwnSequential()
    net = hp.split(module, head)
    assert_same(module, net, images())
    assert sum(p.numel() for p in net.head.parameters()) == (685 if head == 1 else 100)


@pytest.mark.parametrize("path", ["net.1", "net.3"])
def test_a_head_may_be_named_by_its_path(path):
    module = Wrapped()
    net = hp.split(module, path)
    assert_same(module, net, images())
    size = sum(p.numel() for p in net.head.parameters())
    assert size == {"net.1": 685, "net.3": 100}[path]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (LongResidual, "operations after 'fc2' also use values from before it"),
        (Twice, "its forward calls 'head' 2 times"),
        (ByHand, "nothing with parameters comes before 'body'"),
        (ControlFlowAround, "torch.fx cannot follow its forward (symbolically traced variables"),
        (Noisy, "its forward creates random tensors"),
        (OtherSteps, "base and head compute something different in evaluation"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(make, reason):
    with pytest.raises(ConfigError) as caught:
        hp.split(make(), example=images())
    said = str(caught.value)
    assert said.startswith(f"cannot split {make.__name__}: {reason}")
    assert said.endswith("; write both parts yourself, as in hp.Net(base, head)")
    assert "\n" not in said


def test_control_flow_before_the_head_does_no_harm():
    module = ControlFlow()
    net = hp.split(module, example=images())
    assert {k for k, _ in net.head.named_parameters()} == {"weight", "bias"}
    for x in (images(), -images()):
        assert_same(module, net, x)


def test_without_an_example_a_wrong_split_is_found_later():
    """The head is declared first, and torch.fx cannot follow: the last child is only a guess."""
    net = hp.split(ControlFlow())
    with pytest.raises(
        ConfigError,
        match=r"^cannot split ControlFlow: base and head cannot be called one after the other; .* hp\.Net",
    ):
        verify_origin(net, images())
    verify_origin(hp.split(ControlFlow(), "head"), images())
    verify_origin(hp.Net(nn.Flatten(), nn.Linear(64, 3)), images())


def test_weights_that_are_loaded_after_the_split_are_those_that_are_compared():
    for make in (HeadFirst, LogSoftmax):
        net, other = hp.split(make()), hp.split(make())
        net.load_state_dict(other.state_dict())
        verify_origin(net, images())


def test_a_split_moves_no_statistics_and_no_random_state():
    module, before = Normalised(), torch.random.get_rng_state()
    net = hp.split(module, example=images(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert module.bn.num_batches_tracked == net.base.bn.num_batches_tracked == 0
    assert torch.equal(net.base.bn.running_mean, torch.zeros(4))
    assert module.training
    assert net.training
    assert not any(m._forward_hooks for m in net.modules())


def test_an_example_that_does_not_fit_is_said():
    with pytest.raises(ConfigError) as caught:
        hp.split(LogSoftmax(), example=images(4, (1, 9, 9)))
    assert str(caught.value).startswith(
        "LogSoftmax cannot process examples of 1×9×9: mat1 and mat2"
    )


def test_a_module_that_returns_more_than_logits_is_refused():
    class Pair(HeadFirst):
        def forward(self, x):
            return super().forward(x), x

    with pytest.raises(
        ConfigError, match=r"^Pair returns tuple, not a tensor; return only the logits"
    ):
        hp.split(Pair(), example=images())


@pytest.mark.parametrize("name", sorted(MODEL_DESCRIPTIONS))
def test_the_models_of_the_library_are_split_again_and_verified(name):
    reads_tokens = name in ("charlstm", "text_tiny", "tokenlstm")
    shape = (12,) if reads_tokens else (3, 32, 32)
    module = get_model_builder(name)(shape, 10, 1)
    x = torch.arange(48).reshape(4, 12) % 10 if reads_tokens else images(2, shape)
    net = hp.split(module, example=x)
    expected = {f"base.{k}" if k.startswith("base.") else k for k, _ in module.named_parameters()}
    assert {k for k, _ in net.named_parameters()} == expected
