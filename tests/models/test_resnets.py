"""ResNet-8 and ResNet-10: exactly the tensors of the FedDecomp authors, counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterophony.core.errors import ConfigError
from heterophony.core.net import Net
from heterophony.core.randomness import seeded
from heterophony.models import get_model_builder
from heterophony.models.resnets import NarrowBlock

CIFAR, TINY = (3, 32, 32), (3, 64, 64)
SIZES = [
    ("resnet8", CIFAR, 10, 1_235_274, 2_688, 9),
    ("resnet8", CIFAR, 100, 1_258_404, 2_688, 9),
    ("resnet10", CIFAR, 100, 4_957_092, 5_760, 12),
    ("resnet10", TINY, 200, 5_008_392, 5_760, 12),
]


def norms(net: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]


def made(name: str, shape: tuple[int, ...], classes: int) -> Net:
    with seeded("init"):
        return get_model_builder(name)(shape, classes, 1)


@pytest.mark.parametrize(("name", "shape", "classes", "count", "affine", "modules"), SIZES)
def test_the_parameters_are_those_of_the_paper(name, shape, classes, count, affine, modules):
    net = made(name, shape, classes)
    assert sum(p.numel() for p in net.parameters()) == count
    assert len(norms(net)) == modules
    assert sum(p.numel() for m in norms(net) for p in m.parameters()) == affine
    running = [v for k, v in net.named_buffers() if v.is_floating_point()]
    assert sum(v.numel() for v in running) == affine
    assert sum(p.numel() for p in net.head.parameters()) == classes * (net.head[0].in_features + 1)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "total"),
    [
        ("resnet8", CIFAR, 10, 4_951_848),
        ("resnet10", CIFAR, 100, 19_851_408),
        ("resnet10", TINY, 200, 20_056_608),
    ],
)
def test_the_bytes_on_the_wire_with_running_statistics(name, shape, classes, total):
    net = made(name, shape, classes)
    tensors = [v for v in net.state_dict().values() if v.is_floating_point()]
    assert sum(v.numel() * v.element_size() for v in tensors) == total


def test_the_layers_are_those_of_the_table():
    net = made("resnet10", CIFAR, 100)
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [tuple(m.weight.shape) for m in convs] == [
        (64, 3, 7, 7),
        *[(64, 64, 3, 3)] * 2,
        *[(128, 64, 3, 3), (128, 128, 3, 3), (128, 64, 1, 1)],
        *[(256, 128, 3, 3), (256, 256, 3, 3), (256, 128, 1, 1)],
        *[(512, 256, 3, 3), (512, 512, 3, 3), (512, 256, 1, 1)],
    ]
    assert [m.stride[0] for m in convs] == [2, 1, 1, 2, 1, 2, 2, 1, 2, 2, 1, 2]
    assert all(m.bias is None for m in convs)
    assert all((m.eps, m.momentum) == (1e-5, 0.1) for m in norms(net))
    assert all(bool((m.weight == 1).all()) and not m.bias.any() for m in norms(net))


@pytest.mark.parametrize(
    ("shape", "sides"), [(CIFAR, [16, 8, 8, 4, 2, 1]), (TINY, [32, 16, 16, 8, 4, 2])]
)
def test_the_maps_have_the_sizes_of_the_table(shape, sides):
    x, seen = torch.zeros(2, *shape), []
    for layer in made("resnet10", shape, 10).base:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | NarrowBlock):
            seen.append(x.shape[-1])
    assert seen == sides
    assert x.shape == (2, 512)


def test_convolutions_begin_as_kaiming_says():
    weight = made("resnet8", CIFAR, 10).base[0].weight.detach()
    assert abs(float(weight.std()) - (2 / (64 * 49)) ** 0.5) < 1e-3


def test_at_32_pixels_the_last_convolution_learns_only_its_centre():
    net = made("resnet10", CIFAR, 10)
    with seeded("x"):
        net(torch.randn(2, *CIFAR)).sum().backward()
    last = [m for m in net.modules() if isinstance(m, NarrowBlock)][-1]
    moved = (last.conv2.weight.grad != 0).flatten(0, 1).any(0)
    assert moved.nonzero().tolist() == [[1, 1]]
    assert int((last.conv1.weight.grad != 0).flatten(0, 1).any(0).sum()) == 4


def test_only_the_linear_layer_is_a_head_and_only_images_are_welcome():
    with pytest.raises(ConfigError, match="must be 1 to 1 for this model, not 2"):
        get_model_builder("resnet8")(CIFAR, 10, 2)
    with pytest.raises(ConfigError, match="needs images"):
        get_model_builder("resnet8")((64,), 10, 1)
