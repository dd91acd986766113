"""CharLSTM, PFAKD's networks and ResNet-18: exactly the sizes of the papers, cut where they cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import identical
from heterophony.config.reading import read_config
from heterophony.config.sections import ModelSection
from heterophony.core.errors import ConfigError
from heterophony.core.randomness import seeded
from heterophony.models import MODEL_DESCRIPTIONS, get_default_head_depth, get_model_builder

CIFAR, GREY, TEXT = (3, 32, 32), (1, 28, 28), (80,)


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def layers(net: nn.Module) -> list[int]:
    return [size(m) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "depth", "whole", "head", "width"),
    [
        ("charlstm", TEXT, 80, 1, 819_920, 20_560, 256),
        ("pfakd_cnn", CIFAR, 10, 2, 44_266, 17_098, 256),  # the authors' split
        ("pfakd_cnn", CIFAR, 10, 1, 44_266, 650, 64),  # the paper's
        ("pfakd_cnn", GREY, 10, 1, 31_690, 650, 64),  # the paper's network for Fashion-MNIST
        ("pfakd_fmnist", GREY, 10, 1, 117_066, 1_290, 128),
        ("resnet18", CIFAR, 100, 1, 11_220_132, 51_300, 512),
        ("resnet18", CIFAR, 10, 1, 11_173_962, 5_130, 512),
        ("resnet18_group", CIFAR, 100, 1, 11_220_132, 51_300, 512),
        ("resnet18_imagenet", CIFAR, 100, 1, 11_227_812, 51_300, 512),
        ("resnet18_imagenet", CIFAR, 1000, 1, 11_689_512, 513_000, 512),  # torchvision's
    ],
)
def test_parameters_are_those_of_the_papers(name, shape, classes, depth, whole, head, width):
    net = get_model_builder(name)(shape, classes, depth)
    assert (size(net), size(net.head)) == (whole, head)
    x = torch.zeros(2, *shape) if len(shape) == 3 else torch.zeros(2, *shape, dtype=torch.int64)
    z = net.base(x)
    assert z.shape == (2, width)
    assert net.head(z).shape == (2, classes)


@pytest.mark.parametrize(
    ("name", "shape", "each"),
    [
        ("pfakd_cnn", CIFAR, [448, 8_224, 18_496, 16_448, 650]),
        ("pfakd_cnn", GREY, [160, 8_224, 18_496, 4_160, 650]),
        ("pfakd_fmnist", GREY, [416, 12_832, 102_528, 1_290]),
    ],
)
def test_layers_are_those_of_the_tables(name, shape, each):
    assert layers(get_model_builder(name)(shape, 10, 1)) == each


def test_the_default_split_is_the_authors_code():
    assert {
        k: get_default_head_depth(get_model_builder(k))
        for k in MODEL_DESCRIPTIONS
        if get_default_head_depth(get_model_builder(k)) > 1
    } == {"pfakd_cnn": 2}


@pytest.mark.parametrize(
    ("pairs", "depth"),
    [
        (["algorithm.name=pfakd"], 2),
        (["algorithm.name=pfakd", "model.head_depth=1"], 1),
        (["algorithm.name=fedreg", "model.name=convnet"], 2),  # its paper says so
        (["algorithm.name=fedper", "model.name=convnet"], 1),
    ],
)
def test_a_run_takes_the_depth_of_the_user_the_algorithm_or_the_model(pairs, depth, tmp_path):
    x, y = np.zeros((8, 32, 32, 3), np.uint8), np.arange(8) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    few = ["data.partition.kind=iid", "data.clients=2", f"data.name={tmp_path / 'a.npz'}"]
    config = read_config(None, ["model.name=pfakd_cnn", *few, *pairs])
    federation = config.build_federation()
    assert config.fill_model_defaults(federation).model == ModelSection(config.model.name, depth)
    linears = [m for m in config.build_plan(federation).template.head if isinstance(m, nn.Linear)]
    assert len(linears) == depth
    how = config.algorithm_name
    once = hp.run(
        how, federation, model=config.model.name, rounds=0, head_depth=config.model.head_depth
    )
    assert len([m for m in once.plan.template.head if isinstance(m, nn.Linear)]) == depth


# ResNet-18 ------------------------------------------------------------------------------------


def list_torchvision_names() -> list[str]:
    """The names in the state dict of torchvision's ResNet-18, in their order."""
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

    def norm(name: str) -> list[str]:
        return [f"{name}.{k}" for k in statistics]

    names = ["conv1.weight", *norm("bn1")]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"layer{stage}.{block}"
            names += [f"{at}.conv1.weight", *norm(f"{at}.bn1")]
            names += [f"{at}.conv2.weight", *norm(f"{at}.bn2")]
            if stage > 1 and block == 0:
                names += [f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


def test_resnet18_imagenet_has_torchvisions_names_and_layers():
    net = get_model_builder("resnet18_imagenet")(CIFAR, 1000, 1)
    names = [k.partition(".")[2] for k in net.state_dict()]
    assert names == list_torchvision_names()
    assert len(names) == 122
    stem = net.base.conv1
    assert (stem.kernel_size, stem.stride, stem.padding) == ((7, 7), (2, 2), (3, 3))
    strides = {k: m.stride[0] for k, m in net.base.named_modules() if isinstance(m, nn.Conv2d)}
    assert [k for k, stride in strides.items() if stride == 2] == [
        "conv1",
        *(f"layer{i}.0.{part}" for i in (2, 3, 4) for part in ("conv1", "downsample.0")),
    ]
    assert net.base.layer1(torch.zeros(1, 64, 8, 8)).shape == (1, 64, 8, 8)
    assert net.base.maxpool(net.base.conv1(torch.zeros(1, 3, 224, 224))).shape == (1, 64, 56, 56)


def test_resnet18_is_the_table():
    net = get_model_builder("resnet18")(CIFAR, 100, 1)
    base = list(net.base)
    sizes = [size(m) for m in base if size(m)]
    assert sizes[:2] == [1_728, 128]
    stages = [sum(sizes[i : i + 2]) for i in range(2, 10, 2)]
    assert stages == [147_968, 525_568, 2_099_712, 8_393_728]
    assert size(net.base) == 11_168_832
    assert sum(v.numel() for k, v in net.named_buffers() if v.is_floating_point()) == 9_600
    assert all(m.bias is None for m in net.modules() if isinstance(m, nn.Conv2d))
    x = torch.zeros(1, *CIFAR)
    for layer in base[:-2]:
        x = layer(x)
    assert x.shape == (1, 512, 4, 4)
    assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


def test_with_groups_there_is_nothing_but_parameters():
    net = get_model_builder("resnet18_group")(CIFAR, 10, 1)
    norms = [m for m in net.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 20
    assert {m.num_groups for m in norms} == {2}
    assert not list(net.buffers())
    with seeded("x"):
        x = torch.randn(3, *CIFAR)
    alone, together = net.eval()(x[:1]), net.train()(x)[:1]
    assert torch.allclose(alone, together, atol=1e-5)  # no example sees another


# CharLSTM -------------------------------------------------------------------------------------


def test_tokenlstm_predicts_at_every_place_from_what_is_before():
    net = get_model_builder("tokenlstm")(TEXT, 80, 1)
    assert (size(net), size(net.head)) == (95_824, 10_320)
    x = torch.arange(160).view(2, 80) % 80
    other = x.clone()
    other[:, 40:] = 7
    assert net(x).shape == (2, 80, 80)
    assert torch.allclose(net(x)[:, :40], net(other)[:, :40])


def test_charlstm_is_the_table_and_begins_every_sequence_anew():
    net = get_model_builder("charlstm")(TEXT, 80, 1)
    reader = net.base[0]
    assert (size(reader.embedding), size(reader.lstm)) == (640, 798_720)
    own = dict(reader.lstm.named_parameters())
    assert sum(v.numel() for k, v in own.items() if k.endswith("_l0")) == 272_384
    assert sum(v.numel() for k, v in own.items() if k.endswith("_l1")) == 526_336
    with seeded("x"):
        x = torch.randint(80, (3, 20))
    z = net(x)
    assert torch.allclose(net(x[1:2]), z[1:2], atol=1e-6)
    assert torch.equal(net(x), z)
    assert not torch.allclose(net(x[:, :-1]), z)
    assert torch.equal(net(x.to(torch.int16)), z)


def text(clients: int, examples: int = 24) -> list[tuple[np.ndarray, np.ndarray]]:
    """The next character is the last one, or the one after it."""
    draw = np.random.default_rng(0)
    out = []
    for _ in range(clients):
        x = draw.integers(0, 5, size=(examples, 6)).astype(np.int32)
        out.append((x, x[:, -1].astype(np.int64)))
    return out


@pytest.mark.parametrize("name", ["fedavg", "fedper", "moon"])
def test_charlstm_runs_on_sequences_of_integers_on_both_engines(name):
    few = hp.Training(epochs=1, batch=8, lr=0.5)
    how = {"model": "charlstm", "rounds": 1, "training": few}
    federation = hp.federate(text(2))
    here = hp.run(name, federation, **how)
    assert identical(here, hp.run(name, federation, engine="pool", workers=2, **how))
    start = here.plan.template.state_dict()["base.0.lstm.weight_hh_l0"]
    assert not torch.equal(here._server.model["base.0.lstm.weight_hh_l0"], start)


# What does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("charlstm", CIFAR, "charlstm needs sequences of integers, not examples of shape"),
        ("pfakd_cnn", (1, 23, 28), "pfakd_cnn needs images of at least 24x24, not examples of"),
        ("pfakd_fmnist", (1, 11, 11), "pfakd_fmnist needs images of at least 12x12, not examples"),
        ("resnet18", TEXT, "resnet18 needs images, not examples of shape (80,); use mlp"),
    ],
)
def test_what_does_not_fit_is_said(name, shape, said):
    with pytest.raises(ConfigError) as caught:
        get_model_builder(name)(shape, 10, 1)
    assert str(caught.value).startswith(f"model.name: {said}")


@pytest.mark.parametrize(("name", "smallest"), [("pfakd_cnn", 24), ("pfakd_fmnist", 12)])
def test_the_smallest_image_fits(name, smallest):
    shape = (1, smallest, smallest)
    assert get_model_builder(name)(shape, 10, 1)(torch.zeros(1, *shape)).shape == (1, 10)


def test_numbers_are_no_characters():
    with pytest.raises(ConfigError, match="reads sequences of integers"):
        get_model_builder("charlstm")(TEXT, 80, 1)(torch.zeros(1, *TEXT))
