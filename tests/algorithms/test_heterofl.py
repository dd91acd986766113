"""HeteroFL: every entry is averaged over the clients that have it."""

from __future__ import annotations

import pytest
import torch

from helpers.support import client_after, identical, model, played, same
from heterophony.algorithms.fedavg import FedAvg
from heterophony.algorithms.heterofl import HeteroFL
from heterophony.core.algorithm import Reply, Server
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import Tensors

WIDTHS = ["mlp", "mlp@0.5", "mlp@0.25"]


def test_with_whole_nets_it_is_fedavg():
    assert identical(played(HeteroFL(), model="digitsnet"), played("fedavg", model="digitsnet"))


def make_replies(*shapes: tuple[int, int]) -> list[Reply]:
    torch.manual_seed(0)
    return [
        Reply(str(i), "train", Tensors({"w": torch.randn(shape)}), 3 + i, 3 + i)
        for i, shape in enumerate(shapes)
    ]


def test_replies_of_the_whole_net_are_merged_as_in_fedavg():
    replies, server = (
        make_replies((2, 3), (2, 3), (2, 3)),
        Server(0, {}, Tensors({"w": torch.ones(2, 3)})),
    )
    assert same(HeteroFL().merge(server, replies).model, FedAvg().merge(server, replies).model)


def test_every_entry_is_the_mean_over_those_that_have_it():
    before = torch.full((3, 4), 7.0)
    replies = make_replies((2, 3), (1, 3), (2, 1))
    after = HeteroFL().merge(Server(0, {}, Tensors({"w": before})), replies).model["w"]
    for i in range(3):
        for j in range(4):
            held = [
                (r.weight, float(r.tensors["w"][i, j]))
                for r in replies
                if i < r.tensors["w"].shape[0] and j < r.tensors["w"].shape[1]
            ]
            total = sum(n for n, _ in held)
            expected = sum(n * v for n, v in held) / total if held else 7.0
            assert float(after[i, j]) == pytest.approx(expected, abs=1e-6)


def test_zeros_in_place_of_missing_entries_would_be_noticed():
    """The defect: to pad narrow nets with zeros and to average over all clients."""
    replies = make_replies((2, 2), (1, 2))
    server = Server(0, {}, Tensors({"w": torch.ones(2, 2)}))
    right = HeteroFL().merge(server, replies).model["w"]
    padded = torch.stack(
        [
            torch.nn.functional.pad(r.tensors["w"], (0, 0, 0, 2 - len(r.tensors["w"])))
            for r in replies
        ]
    )
    wrong = (padded * torch.tensor([3.0, 4.0]).view(2, 1, 1)).sum(0) / 7
    assert torch.allclose(right[0], wrong[0])
    assert torch.equal(right[1], replies[0].tensors["w"][1])
    assert not torch.allclose(right[1], wrong[1])


def test_clients_receive_their_slices():
    result = played(HeteroFL(), model=WIDTHS)
    whole = model(result)
    assert result.plan.net_of["1"] == "mlp@0.5"
    for client, units in (("0", 100), ("1", 50), ("2", 25)):
        sent = result.plan.algorithm.send(result._server, client)
        assert sent["base.1.weight"].shape == (units, 64)
        assert sent["head.0.weight"].shape == (10, units)
        assert all(torch.equal(v, whole[k][tuple(map(slice, v.shape))]) for k, v in sent.items())
    assert result.G is not None


def test_a_narrow_net_is_scaled_when_it_trains_and_when_it_predicts():
    """The authors' code scales in training alone: another function than the one that was trained."""
    client = client_after(played(HeteroFL(), model=WIDTHS, rounds=1), "1")
    x, net = torch.randn(4, 1, 8, 8), client.net
    hidden = torch.nn.functional.linear(x.flatten(1), net.base[1].weight, net.base[1].bias).relu()
    expected = net.head(hidden / 0.5)
    assert torch.allclose(net.train()(x), expected)
    assert torch.allclose(net.eval()(x), expected)
    assert not torch.allclose(net.head(hidden), expected)  # the defect
    plain = client_after(played(HeteroFL(scale=False), model=WIDTHS, rounds=1), "1").net
    assert "Divide" not in repr(plain)


def test_nets_of_other_layers_are_refused():
    with pytest.raises(ConfigError, match=r"needs nets with the same layers, .* differs"):
        played(HeteroFL(), model=["mlp", "digitsnet"])
