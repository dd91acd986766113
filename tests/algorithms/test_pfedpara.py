"""pFedPara: which factors travel and which stay, in every layer."""

from __future__ import annotations

import torch
from torch import nn

import heterophony as hp
from helpers.support import digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.fedpara import HadamardProduct, multiply_factors
from heterophony.algorithms.pfedpara import PFedPara
from heterophony.models.resnets import resnet8


def test_without_an_own_product_it_is_the_shared_one():
    torch.manual_seed(0)
    for shape in ((40, 30), (16, 12, 3, 3)):
        weight = HadamardProduct(torch.empty(shape), 0.1, 1.0)
        factors = weight.right_inverse(torch.empty(shape))
        half = len(factors) // 2
        own = [torch.zeros_like(f) for f in factors[half:]]
        assert torch.equal(weight(*factors[:half], *own), multiply_factors(*factors[:half]))
        assert not torch.equal(weight(*factors), multiply_factors(*factors[:half]))


def test_the_first_half_travels_and_the_second_stays():
    result = played("pfedpara")
    shared = [k for k in model(result) if "original" in k]
    assert [k[-1] for k in shared] == ["0", "1"] * 2
    kept = memory(result, result.events[-3]["clients"][0])["net"]
    assert [k[-1] for k in kept] == ["2", "3"] * 2
    convolutions = PFedPara().build(resnet8((3, 32, 32), 10, 1))
    stays = list(PFedPara().stays(convolutions))
    assert len(stays) == 6 * 3 + 2
    assert {k[-1] for k in stays if k.startswith("base.")} == {"3", "4", "5"}
    assert {k for k in stays if k.startswith("head.")} == {
        f"head.0.parametrizations.weight.original{i}" for i in (2, 3)
    }


def test_what_stays_goes_unchanged_through_loading():
    result = played("pfedpara", model="digitsnet", participation=1.0)
    for c in result.plan.federation.clients:
        kept = memory(result, c)["net"]
        now = hp.Tensors(result.personal(c).net.state_dict())
        assert same(now.only(*kept), kept)
        assert same(now.only(*model(result)), model(result))
    own = [memory(result, c)["net"] for c in result.plan.federation.clients]
    assert not same(own[0], own[1])


def test_half_of_the_factors_travel():
    a, b = (played(x).summary.bytes["up"] for x in ("pfedpara", "fedpara"))
    # FedPara keeps the weights of the last layer; three clients in three rounds
    assert (b - a) == 4 * (8 * 164 + (1_000 - 4 * 110)) * 3 * 3


def test_the_last_layer_has_a_personal_part_even_if_that_saves_nothing():
    net = PFedPara().build(hp.Net(nn.Flatten(), nn.Sequential(nn.Linear(64, 2))))
    assert list(PFedPara().stays(net)) == [
        f"head.0.parametrizations.weight.original{i}" for i in (2, 3)
    ]


def test_personal_models_are_above_the_generic_one():
    """Without factors in the last layer both have 85.05 % right."""
    how = {"participation": 1.0, "rounds": 6, "evaluate_every": 6, "model": "mlp"}
    training = hp.Training(epochs=1, batch=8, lr=0.05)
    result = played("pfedpara", digits(alpha=0.1), training=training, **how).summary
    assert result.P.last > result.G.last + 0.05


def test_running_statistics_are_shared_where_they_travel():
    result = played("pfedpara", model=net_with_batch_norm, buffers="average")
    assert "base.1.running_mean" in model(result)
