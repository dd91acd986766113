"""FML: two nets that teach each other, without gradients through the teacher."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from helpers.support import client_after, memory, model, played, same
from heterophony.algorithms import fml
from heterophony.algorithms.fml import FML
from heterophony.core.client import Client


def test_without_distillation_it_is_local_beside_fedavg():
    both, local, fedavg = played(FML(alpha=1.0, beta=1.0)), played("local"), played("fedavg")
    assert same(model(both).below("meme."), model(fedavg))
    for client in both.plan.federation.clients:
        ours, alone = (memory(r, client).get("net") for r in (both, local))
        assert (ours is None and alone is None) or same(ours, alone)
    for measure, other in (("P", local), ("G", fedavg)):
        measured = [
            [e[measure] for e in r.events if e["event"] == "evaluation"] for r in (both, other)
        ]
        assert measured[0] == measured[1]


def test_the_shared_net_is_the_smallest():
    result = played(FML(), model=["digitsnet", "mlp@0.1", "smallcnn"])
    fedavg = played("fedavg", model="mlp@0.1")
    assert model(result).below("meme.").keys() == model(fedavg).keys()
    alone = played(FML(alpha=1.0, beta=1.0), model=["digitsnet", "mlp@0.1", "smallcnn"])
    assert same(model(alone).below("meme."), model(fedavg))
    assert result.G is not None


def test_equal_nets_begin_with_different_weights():
    initial = FML().build(played("local", rounds=0).plan.build_net()).state_dict()
    assert not torch.equal(initial["base.1.weight"], initial["meme.base.1.weight"])


def run_gradients(mix=fml.mix_losses) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by own and shared logits of the own net's loss, and its value."""
    client = client_after(played(FML(), rounds=1))
    torch.manual_seed(0)
    own, common = (torch.randn(5, 10, requires_grad=True) for _ in range(2))
    y = torch.tensor([0, 1, 2, 3, 4])
    value = mix(client, own, common, 0.25, y)
    value.backward()
    return own.grad, common.grad, value.detach()


def test_the_loss_is_that_of_the_formula():
    own, common, value = run_gradients()
    torch.manual_seed(0)
    p, q = (torch.randn(5, 10).double() for _ in range(2))
    labels = -p.log_softmax(1)[range(5), range(5)].mean()
    apart = (q.softmax(1) * (q.log_softmax(1) - p.log_softmax(1))).sum(1).mean()
    assert float(value) == pytest.approx(float(0.25 * labels + 0.75 * apart), rel=1e-6)
    assert common is None
    assert own.abs().sum() > 0


def test_defects_of_other_code_would_be_noticed():
    def through_the_teacher(client: Client, out: Tensor, teacher: Tensor, share: float, y: Tensor):
        apart = kl_div(out.log_softmax(1), teacher.softmax(1), reduction="batchmean")
        return share * client.loss(out, y) + (1 - share) * apart

    def mean_over_classes(client: Client, out: Tensor, teacher: Tensor, share: float, y: Tensor):
        apart = kl_div(out.log_softmax(1), teacher.detach().softmax(1), reduction="mean")
        return share * client.loss(out, y) + (1 - share) * apart

    right = run_gradients()
    with pytest.warns(UserWarning, match="batchmean"):
        weak = run_gradients(mean_over_classes)
    assert run_gradients(through_the_teacher)[1] is not None
    assert weak[2] != right[2]
