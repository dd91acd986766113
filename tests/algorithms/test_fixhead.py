"""FixHead: with both parts off it is FedRoD; its directions are a simplex that nobody sends."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import QUICK, digits, memory, model, played, same
from heterophony.algorithms.fedrod import FedRoD
from heterophony.algorithms.fixhead import FixHead
from heterophony.algorithms.parts.layers import ScaledFeatures, make_directions
from heterophony.core.errors import ConfigError

FIRST_VALUES = [-0.01999229, 0.07576334, 0.16142669]  # of the first direction in 64 dimensions
MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=1e-3)


@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_without_its_parts_it_is_fedrod(head):
    off = FixHead(head=head, directions="learned", length=0.0)
    results = [played(a, model="digitsnet", training=MOMENTUM) for a in (off, FedRoD(head=head))]
    assert results[0].summary.model_sha256 == results[1].summary.model_sha256
    found = [[(e["G"], e["P"]) for e in r.events if e["event"] == "evaluation"] for r in results]
    assert found[0] == found[1]


def test_each_part_alone_changes_the_base():
    algorithms = [FixHead(length=0.0), FixHead(directions="learned"), FixHead(), FedRoD()]
    bases = [
        model(played(a, model="digitsnet", training=MOMENTUM)).only("base.*") for a in algorithms
    ]
    for first, second in combinations(bases, 2):
        assert list(first) == list(second)
        assert not same(first, second)


@pytest.mark.parametrize("features", [10, 64])
def test_the_directions_are_a_simplex(features):
    rows = make_directions(features, 10)
    torch.testing.assert_close(rows @ rows.T, torch.full((10, 10), -1 / 9) + 10 / 9 * torch.eye(10))


def test_with_few_features_the_directions_differ():
    rows = make_directions(4, 10)
    products = rows @ rows.T
    torch.testing.assert_close(products.diagonal(), torch.ones(10))
    assert products.fill_diagonal_(-1).max() < 0.95


def test_the_directions_are_those_of_the_stored_results():
    found = make_directions(64, 10)[0, :3]
    torch.testing.assert_close(found, torch.tensor(FIRST_VALUES))


def test_one_class_has_a_direction():
    torch.testing.assert_close(make_directions(5, 1).norm(dim=1), torch.ones(1))


def test_features_have_the_length_that_is_set():
    z = torch.rand(5, 7)
    torch.testing.assert_close(ScaledFeatures(4.0)(z).norm(dim=1), torch.full((5,), 4.0))


def test_the_shared_head_is_neither_sent_nor_kept_and_the_personal_one_stays():
    result = played(FixHead(), model="digitsnet")
    assert {name.partition(".")[0] for name in model(result)} == {"base"}
    assert {name.partition(".")[0] for name in memory(result, "0")["net"]} == {"own"}


def test_of_a_deeper_head_only_the_last_layer_is_fixed():
    result = played(FixHead(), model="digitsnet", head_depth=2)
    assert [name for name in model(result) if name.startswith("head")] == [
        "head.0.bias",
        "head.0.weight",
    ]


def test_all_layers_of_a_deeper_personal_head_learn():
    kept = memory(played(FixHead(), model="digitsnet", head_depth=2), "0")["net"]
    assert all(tensor.abs().max() > 0 for tensor in kept.values())


def make_net(head: nn.Module) -> hp.Net:
    return hp.Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU()), head)


def test_the_head_of_an_own_model_may_be_one_layer():
    torch.manual_seed(0)
    result = hp.run(
        FixHead(), digits(), model=make_net(nn.Linear(12, 10)), rounds=1, progress=False
    )
    assert result.summary.G.last > 0


@pytest.mark.parametrize("head", ["linear", "hyper"])
def test_a_head_without_a_linear_layer_is_refused(head):
    with pytest.raises(ConfigError, match=r"no linear layer.*; make nn\.Linear its last layer, or"):
        FixHead(head=head).build(make_net(nn.Identity()))
