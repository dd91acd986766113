"""FedPara: ranks, shapes, products and initial values of the factors, and which layers stay plain."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import model, played
from heterophony.algorithms.fedpara import (
    FedPara,
    HadamardProduct,
    choose_rank,
    factorise_net,
    multiply_factors,
)
from heterophony.models.resnets import resnet8


def count(*shape: int) -> int:
    return sum(map(prod, HadamardProduct(torch.empty(shape), 0.1, 0.0).shapes))


@pytest.mark.parametrize(
    ("shape", "r", "values", "of"),
    [
        ((256, 256, 3, 3), 36, 60_192, 589_824),
        ((128, 64, 1, 1), 12, 4_896, 8_192),  # 60 %
        ((64, 3, 7, 7), 8, 7_344, 9_408),  # 78 %
        ((100, 64), 8, 2 * 8 * 164, 6_400),
    ],
)
def test_counts_are_the_papers(shape, r, values, of):
    assert choose_rank(shape, 0.1) == r
    assert count(*shape) == values
    assert prod(shape) == of


def test_the_larger_side_decides_for_convolutions_the_smaller_for_linear_layers():
    assert choose_rank((400, 16, 3, 3), 1e-6) == 20
    assert choose_rank((400, 16), 1e-6) == 4


def test_shapes_and_products_are_the_papers():
    conv = HadamardProduct(torch.empty(6, 5, 3, 3), 0.5, 0.0)
    r = choose_rank((6, 5, 3, 3), 0.5)
    assert conv.shapes == [(r, r, 3, 3), (r, 6), (r, 5)] * 2
    t, o, i = conv.right_inverse(torch.empty(6, 5, 3, 3))[:3]
    w = torch.zeros(6, 5, 3, 3)
    for x in range(r):
        for y in range(r):
            w += o[x][:, None, None, None] * i[y][None, :, None, None] * t[x, y]
    assert torch.allclose(multiply_factors(t, o, i), w, atol=1e-5)


def test_the_rank_is_at_most_the_square_and_more_than_the_factors():
    torch.manual_seed(0)
    linear = HadamardProduct(torch.empty(60, 60), 1e-6, 0.0)
    linear.shapes = [(60, 3)] * 4
    factors = [f.double() for f in linear.right_inverse(torch.empty(60, 60))]
    assert int(torch.linalg.matrix_rank(multiply_factors(*factors[:2]))) == 3
    assert int(torch.linalg.matrix_rank(linear(*factors))) == 9


def test_factors_are_normal_with_root_two_over_the_root_of_their_inputs():
    torch.manual_seed(0)
    shape = (256, 200, 3, 3)
    conv = HadamardProduct(torch.empty(shape), 0.1, 0.0)
    t, o, i = conv.right_inverse(torch.empty(shape))[:3]
    r = len(o)
    for factor, inputs in ((t, r * 9), (o, r), (i, 200)):  # r to 256, 200 to r: maps
        assert factor.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.05)
        assert abs(factor.mean().item()) < 0.01


def test_with_one_added_the_last_factor_is_scaled_by_its_outputs():
    """W1 ⊙ (W2 + 1) is as large as W1; scaled as maps, its factors would diverge at usual rates."""
    torch.manual_seed(0)
    shape = (256, 200, 3, 3)
    _, o, i = HadamardProduct(torch.empty(shape), 0.1, 1.0).right_inverse(torch.empty(shape))[:3]
    assert o.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    assert i.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.05)


def test_stem_shortcuts_and_the_last_layer_stay_plain():
    net = factorise_net(resnet8((3, 32, 32), 10, 1), 0.1)
    plain = {
        k: tuple(p.shape) for k, p in net.named_parameters() if p.dim() > 1 and "original" not in k
    }
    assert sorted(plain.values()) == [
        (10, 256),
        (64, 3, 7, 7),
        (128, 64, 1, 1),
        (256, 128, 1, 1),
    ]
    made = [m for m in net.modules() if isinstance(m, HadamardProduct)]
    assert len(made) == 6
    assert all(p.numel() for p in net.parameters())


def test_no_layer_grows():
    net = hp.Net(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    assert not any(isinstance(m, HadamardProduct) for m in factorise_net(net, 1.0).modules())


def test_the_factors_travel_and_are_fewer():
    result = played("fedpara")
    names = [k for k in model(result) if "original" in k]
    assert len(names) == 4
    assert not any(k.endswith("base.1.weight") for k in model(result))
    sizes = sum(v.numel() for v in model(result).values())
    assert sizes == 2 * 8 * 164 + 100 + 1000 + 10
    whole = played("fedavg").summary.bytes
    assert result.summary.bytes["up"] * (6400 + 1110) == whole["up"] * sizes


def test_the_server_averages_factors_and_p_is_g():
    result = played(FedPara(gamma=0.3), model="digitsnet")
    assert all(e["P"] == e["G"] for e in result.events if e["event"] == "evaluation")
