"""The models: exactly the sizes of the papers, cut into base and head without changing a bit."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError
from heterophony.core.net import Net
from heterophony.core.randomness import seeded
from heterophony.core.split import split
from heterophony.core.tensors import Tensors, weights
from heterophony.models import MODEL_DESCRIPTIONS, get_model_builder
from heterophony.studies.spec import RunSpec

CIFAR, GREY, DIGITS = (3, 32, 32), (1, 28, 28), (1, 8, 8)
SEQUENCES = ("charlstm", "text_tiny", "tokenlstm")
IMAGES = [k for k in MODEL_DESCRIPTIONS if k not in SEQUENCES]


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def noise(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    with seeded("noise", shape):
        return torch.randn(n, *shape)


def features(net: Net, shape: tuple[int, ...]) -> int:
    return net.base(noise(shape)).shape[1]


# Sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "classes", "count"),
    [
        (CIFAR, 10, 797_962),
        (CIFAR, 100, 815_332),
        (GREY, 10, 573_578),
        (GREY, 47, 580_719),
        (GREY, 62, 583_614),
        (GREY, 26, 576_666),
    ],
    ids=["cifar10", "cifar100", "fmnist", "emnist-balanced", "emnist-byclass", "emnist-letters"],
)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_convnet_has_the_parameters_of_the_paper(shape, classes, count, depth):
    net = get_model_builder("convnet")(shape, classes, depth)
    assert size(net) == count
    assert net(noise(shape)).shape == (4, classes)


@pytest.mark.parametrize(
    ("shape", "depth", "count", "width"),
    [
        (CIFAR, 1, 1_930, 192),
        (CIFAR, 2, 75_850, 384),
        (CIFAR, 3, 690_634, 1600),
        (GREY, 1, 1_930, 192),
        (GREY, 2, 75_850, 384),
        (GREY, 3, 469_450, 1024),
    ],
)
def test_convnet_heads_by_depth(shape, depth, count, width):
    net = get_model_builder("convnet")(shape, 10, depth)
    assert size(net.head) == count
    assert features(net, shape) == width
    assert sum(isinstance(m, nn.Linear) for m in net.head) == depth


def test_convnet_layers_are_those_of_the_table():
    net = get_model_builder("convnet")(CIFAR, 10, 1)
    each = [size(m) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert each == [4_864, 102_464, 614_784, 73_920, 1_930]


@pytest.mark.parametrize(
    ("shape", "count", "base"), [((3, 32, 32), 308_310, 307_300), ((1, 28, 28), 79_510, 78_500)]
)
def test_mlp_has_the_parameters_of_the_testbed(shape, count, base):
    net = get_model_builder("mlp")(shape, 10, 1)
    assert size(net) == count
    assert (size(net.base), size(net.head)) == (base, 1_010)
    assert features(net, shape) == 100
    assert weights(net).nbytes == 4 * count


def test_mlp_takes_any_shape():
    net = get_model_builder("mlp")((7,), 3, 2)
    assert net(noise((7,))).shape == (4, 3)
    assert size(net.base) == 0


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [("vit_tiny", CIFAR, 142_026), ("vit_tiny", DIGITS, 136_138), ("text_tiny", (32,), 134_916)],
)
def test_transformers_have_exactly_these_parameters(name, shape, count):
    assert size(get_model_builder(name)(shape, 10 if len(shape) == 3 else 4, 1)) == count


def build_with(*settings: str) -> Net:
    words = ["data.name=photos", "data.clients=2", *settings]
    spec = RunSpec(read_config(None, words)).load_data()
    return spec.build_plan().template


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet8", 1_235_274), ("resnet8_small", 79_962), ("resnet10_small", 310_746)],
)
def test_group_norm_replaces_every_batch_norm(name, count):
    net = build_with(f"model.name={name}", "model.norm=group")
    plain = build_with(f"model.name={name}")
    assert size(net) == size(plain) == count
    assert not [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not dict(net.named_buffers())
    for key, value in net.state_dict().items():  # nothing else is drawn in another way
        assert torch.equal(value, plain.state_dict()[key]), key


def test_group_norm_is_that_of_resnet18_group():
    known = build_with("model.name=resnet18_group")
    found = build_with("model.name=resnet18", "model.norm=group")
    assert Tensors(found.state_dict()).digest() == Tensors(known.state_dict()).digest()


def test_a_net_without_batch_norm_has_no_other_normalisation():
    with pytest.raises(ConfigError, match=r"^model\.norm: the model has no BatchNorm to replace"):
        build_with("model.name=convnet", "model.norm=group")


def test_padding_does_not_change_what_text_tiny_computes():
    with seeded("init"):
        net = get_model_builder("text_tiny")((6,), 4, 1).eval()
    text = torch.tensor([[5, 9, 2, 0, 0, 0]])
    before = net(text)
    with torch.no_grad():
        net.base[0].embedding.weight[0] += 3  # the padding's own vector
    assert torch.equal(net(text), before)


def test_large_tokens_share_embeddings_with_others_but_not_with_the_padding():
    with seeded("init"):
        net = get_model_builder("text_tiny")((3,), 4, 1).eval()
    few, many = torch.tensor([[1, 1023, 0]]), torch.tensor([[1024, 2046, 0]])
    assert torch.equal(net(few), net(many))
    assert not torch.equal(net(few), net(torch.tensor([[1, 2, 0]])))


def test_digitsnet_is_small():
    net = get_model_builder("digitsnet")(DIGITS, 10, 1)
    assert size(net) == 160 + 4_640 + 8_256 + 650
    assert net(noise(DIGITS)).shape == (4, 10)
    assert features(net, DIGITS) == 64


def test_convnet_takes_the_smallest_image_that_fits():
    assert get_model_builder("convnet")((1, 16, 16), 10, 1)(noise((1, 16, 16))).shape == (4, 10)


@pytest.mark.parametrize(
    "name", [k for k in IMAGES if not k.startswith(("resnet", "smallcnn", "vit"))]
)
def test_depth_moves_the_cut_and_nothing_else(name):
    nets = []
    for depth in (1, 2):
        with seeded("init"):
            nets.append(get_model_builder(name)(CIFAR, 10, depth))
    x = noise(CIFAR)
    assert torch.equal(nets[0](x), nets[1](x))


@pytest.mark.parametrize("name", [k for k in IMAGES if k != "vit_tiny"])  # ends in a norm
def test_the_activation_before_the_cut_belongs_to_the_base(name):
    net = get_model_builder(name)(CIFAR, 10, 1)
    assert net.base(noise(CIFAR)).min() >= 0
    assert isinstance(next(iter(net.head)), nn.Linear)


@pytest.mark.parametrize("name", IMAGES)
def test_logits_are_raw(name):
    net = get_model_builder(name)(CIFAR, 10, 1)
    assert isinstance(list(net.head)[-1], nn.Linear)
    assert (net(noise(CIFAR)) > 0).any()


# Pooling before ReLU ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape"), [("convnet", GREY), ("digitsnet", DIGITS)])
def test_pooling_before_relu_gives_the_values_and_gradients_of_pooling_after(name, shape):
    with seeded("init"):
        net = get_model_builder(name)(shape, 10, 1)
    layers = list(net.base)
    pools = [i for i, m in enumerate(layers) if isinstance(m, nn.MaxPool2d)]
    assert len(pools) == 2
    for i in pools:
        assert isinstance(layers[i + 1], nn.ReLU)
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    after = Net(nn.Sequential(*layers), net.head)
    y, grads, logits = torch.tensor([0, 3, 9, 3]), [], []
    for each in (net, after):
        each.zero_grad()
        x = noise(shape).requires_grad_()
        out = each(x)
        nn.functional.cross_entropy(out, y).backward()
        logits.append(out.detach())
        grads.append([x.grad, *(p.grad.clone() for p in net.parameters())])
    assert torch.equal(*logits)
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert all(g.any() for g in grads[0])


# Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "most"), [("convnet", 3), ("digitsnet", 2), ("mlp", 2)])
@pytest.mark.parametrize("wrong", [-1, 0, 4, 99])
def test_a_wrong_depth_is_refused_with_the_right_ones(name, most, wrong):
    with pytest.raises(
        ConfigError, match=rf"model.head_depth: must be 1 to {most} for this model, not {wrong}"
    ):
        get_model_builder(name)(CIFAR, 10, wrong)


@pytest.mark.parametrize("shape", [(64,), (8, 8), DIGITS, (3, 15, 32), (3, 32, 15), (1, 3, 32, 32)])
def test_convnet_refuses_what_is_too_small_or_no_image(shape):
    with pytest.raises(ConfigError, match="convnet needs images of at least 16x16") as caught:
        get_model_builder("convnet")(shape, 10, 1)
    assert str(shape) in str(caught.value)
    assert "digitsnet" in str(caught.value)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 3, 8)])
def test_digitsnet_refuses_what_is_no_image(shape):
    with pytest.raises(ConfigError, match="digitsnet needs images"):
        get_model_builder("digitsnet")(shape, 10, 1)


def test_an_unknown_model_gets_the_nearest_right_one():
    with pytest.raises(ConfigError, match=r"model.name: unknown name 'convnett'; .* 'convnet'\?"):
        get_model_builder("convnett")


# Any module as base and head ----------------------------------------------------------------


class Named(nn.Module):
    """A module with children of its own names; ``fc`` is called last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.bn(self.conv(x))).mean((2, 3)))


def sequential() -> nn.Sequential:
    with seeded("sequential"):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)
        )


@pytest.mark.parametrize(
    ("head", "base_size", "head_size"),
    [(1, 0, 679), (3, 585, 94), (5, 655, 24), (-1, 655, 24), (None, 655, 24), ("3", 585, 94)],
)
def test_a_sequential_is_cut_at_an_index(head, base_size, head_size):
    module, x = sequential(), noise(DIGITS)
    net = split(module, head)
    assert (size(net.base), size(net.head)) == (base_size, head_size)
    assert torch.equal(net(x), module(x))


def test_a_named_part_of_a_sequential_takes_with_it_what_follows():
    module = nn.Sequential(
        OrderedDict(flat=nn.Flatten(), first=nn.Linear(64, 9), fc=nn.Linear(9, 3), soft=nn.Tanh())
    )
    for net in (split(module, "fc"), split(module)):
        assert [type(m) for m in net.head] == [nn.Linear, nn.Tanh]
        assert torch.equal(net(noise(DIGITS)), module(noise(DIGITS)))


def test_a_module_used_twice_does_not_shift_the_cut():
    relu = nn.ReLU()
    module = nn.Sequential(nn.Linear(8, 6), relu, nn.Linear(6, 5), relu, nn.Linear(5, 4), relu)
    net = split(module)
    assert [type(m) for m in net.head] == [nn.Linear, nn.ReLU]
    assert size(net.head) == 24
    assert torch.equal(net(noise((8,))), module(noise((8,))))


@pytest.mark.parametrize("head", ["fc", None])
def test_a_named_child_becomes_the_head(head):
    module, x = Named(), noise(DIGITS)
    net = split(module, head)
    assert size(net.head) == 25
    for mode in (True, False):
        module.train(mode)
        net.train(mode)
        assert torch.equal(net(x), module(x))
    assert net.base(x).shape == (4, 4)
    assert sorted(k.split(".")[0] for k in weights(net)) == ["base"] * 4 + ["head"] * 2


@pytest.mark.parametrize("name", IMAGES)
def test_our_own_models_can_be_split_again(name):
    net = get_model_builder(name)(CIFAR, 10, 1)
    assert torch.equal(split(net)(noise(CIFAR)), net(noise(CIFAR)))


def test_splitting_copies_and_leaves_the_module_as_it_was():
    module = Named()
    before = weights(module).digest()
    net = split(module)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert weights(module).digest() == before
    assert isinstance(module.fc, nn.Linear)


def test_what_cannot_be_split_by_itself_says_how():
    lonely = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    for module in (nn.Linear(3, 2), lonely, nn.ReLU()):
        with pytest.raises(ConfigError, match=r"cannot split .* name the head"):
            split(module)
    assert size(split(lonely, 1).head) == 8


@pytest.mark.parametrize("head", ["fcc", "conv.weight", 0, 2])
def test_a_head_that_is_not_there_is_refused(head):
    with pytest.raises(ConfigError, match=f"Named has no child '{head}' to use as the head"):
        split(Named(), head)


@pytest.mark.parametrize("head", [0, 6, 7, -6, -7, "0"])
def test_a_cut_that_leaves_a_part_empty_is_refused(head):
    with pytest.raises(ConfigError, match=f"cannot split a Sequential of 6 at {head}"):
        split(sequential(), head)
