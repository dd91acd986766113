"""pFedGate: blocks that add up, a budget that holds, gates that do not depend on a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import QUICK, counts, digits, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.parts.layers import (
    GatingLayer,
    ParameterBlocks,
    SwitchableNorm,
    forward_gated,
    select_blocks,
    split_into_blocks,
)
from heterophony.algorithms.pfedgate import PFedGate
from heterophony.core.randomness import seeded
from heterophony.models import get_model_builder
from heterophony.models.resnets import build_resnet

WHOLE = {"participation": 1.0}


def noise(*shape: int) -> torch.Tensor:
    with seeded("noise", shape):
        return torch.randn(*shape)


class Open(PFedGate):
    """All gates are exactly 1."""

    def build(self, net):
        net = super().build(net)
        for head in net.gate.heads:
            nn.init.zeros_(head[1].weight)
            nn.init.constant_(head[1].bias, 200.0)
        return net


# Blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensors", "number", "gate"),
    [("resnet8", 29, 145, 445_887), ("resnet10", 38, 190, 584_262)],
)
def test_blocks_and_gates_of_the_residual_networks(name, tensors, number, gate):
    net = get_model_builder(name)((3, 32, 32), 10, 1)
    cut = split_into_blocks(net, 5)
    assert len(cut) == tensors
    assert sum(len(b.sizes) for b in cut) == number
    for b in cut:
        assert sum(b.sizes) == net.get_parameter(b.name).numel()
    net.shape = (3, 32, 32)
    built = PFedGate().build(net)
    assert sum(p.numel() for p in built.gate.parameters()) == gate
    assert [b.name for b in split_into_blocks(built, 5)] == [
        b.name for b in cut
    ]  # none of the gate itself
    assert {b.name for b in cut if b.in_linear_layer} == {"head.0.weight", "head.0.bias"}


def test_a_gate_for_64_pixels():
    gate = GatingLayer((3, 64, 64), 190, separate=False)
    assert sum(p.numel() for p in gate.parameters()) == 2_335_302


@pytest.mark.parametrize(
    ("n", "sizes"),
    [(1, (1,)), (3, (1, 1, 1)), (5, (1,) * 5), (6, (2, 2, 2)), (11, (3, 3, 3, 2)), (12, (3,) * 4)],
)
def test_pieces_are_equal_and_the_last_is_shorter(n, sizes):
    net = nn.Sequential(nn.Linear(n, 1, bias=False))
    assert split_into_blocks(net, 5)[0].sizes == sizes


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_holds_and_first_blocks_are_kept(seed):
    cut = split_into_blocks(get_model_builder("resnet8")((3, 32, 32), 10, 1), 5)
    with seeded(seed):
        keep, share = select_blocks(cut, torch.rand(145), 0.5 - 0.2)
    assert share <= 0.44
    sizes = torch.tensor([n for b in cut for n in b.sizes])
    assert share == float(sizes[keep].sum() / sizes.sum())
    at = 0
    for b in cut:
        assert keep[at]
        at += len(b.sizes)


def test_the_choice_is_by_importance_lower_index_first_and_skips_what_does_not_fit():
    cut = [ParameterBlocks("a", (1, 4, 4, 2), True), ParameterBlocks("b", (1, 2, 2), True)]
    scores = torch.tensor([0.0, 0.9, 0.9, 0.5, 0.0, 0.9, 0.1])
    keep, share = select_blocks(cut, scores, 0.5)  # 7 of 14: 4, not the next 4, then 2, not 2
    assert keep.tolist() == [True, True, False, False, True, True, False]
    assert share == 0.5
    other = [replace(cut[0], in_linear_layer=False), cut[1]]  # 5 of 10, and 2 of 4
    assert select_blocks(other, scores, 0.5)[0].tolist() == [
        *(True, True, False, False),
        True,
        True,
        False,
    ]


def test_a_dropped_block_is_zero_and_gets_no_gradient():
    net = get_model_builder("digitsnet")((1, 8, 8), 10, 1)
    cut = split_into_blocks(net, 5)
    with seeded("gates"):
        keep, _ = select_blocks(cut, torch.rand(sum(len(b.sizes) for b in cut)), 0.3)
    gates = torch.where(keep, 0.7, 0.0)
    forward_gated(
        net, cut, gates, hp.Tensors(net.named_parameters()), noise(9, 1, 8, 8)
    ).sum().backward()
    at = 0
    for b in cut:
        for piece in net.get_parameter(b.name).grad.flatten().split(b.sizes[0]):
            assert keep[at] or not piece.any()
            at += 1


def test_logits_are_raw():
    """The gated forward is the net's own: no ReLU after the last layer."""
    net = get_model_builder("mlp")((1, 8, 8), 10, 1)
    cut, x = split_into_blocks(net, 5), noise(50, 1, 8, 8)
    w = hp.Tensors(net.named_parameters())
    ones = torch.ones(sum(len(b.sizes) for b in cut))
    out = forward_gated(net, cut, ones, w, x)
    assert torch.equal(out, net(x))
    assert (out < 0).any()


# The gate -----------------------------------------------------------------------------------


def test_switch_norm_mixes_three_normalisations():
    norm, x = SwitchableNorm(3), noise(6, 3, 5, 5) * 3 + 1
    kinds = {
        0: nn.InstanceNorm2d(3, track_running_stats=False),
        1: nn.GroupNorm(1, 3),
        2: nn.BatchNorm2d(3),
    }
    for i, kind in kinds.items():
        with torch.no_grad():
            for w in (norm.of_mean, norm.of_variance):
                w.copy_(torch.nn.functional.one_hot(torch.tensor(i), 3) * 100.0)
            assert torch.allclose(norm(x), kind(x), atol=1e-4)


def test_switch_norm_remembers_with_nine_tenths():
    norm, x = SwitchableNorm(2), noise(8, 2, 4, 4) + 2
    norm(x)
    assert torch.allclose(norm.running_mean, 0.1 * x.mean((0, 2, 3)))
    var = x.var((0, 2, 3), unbiased=False)
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * var, atol=1e-5)


def test_the_choice_carries_gradient_and_scales_by_m():
    algorithm, cut = PFedGate(), split_into_blocks(get_model_builder("mlp")((1, 8, 8), 10, 1), 5)
    g = noise(20).sigmoid().requires_grad_()
    m = torch.full((20,), 0.25)
    gates, share = algorithm.compute_gates(cut, g, m)
    kept = gates > 0
    assert torch.equal(gates[kept], m[kept])
    assert share <= 0.5
    gates.sum().backward()
    assert torch.equal(g.grad[kept & (g > 0.2)], m[kept & (g > 0.2)])
    assert not g.grad[~kept].any()
    assert algorithm.compute_gates(cut, g, m)[1] == share
    assert PFedGate(sparsity=1.0).compute_gates(cut, g, m) == (m, 1.0)


def test_separate_transform_has_a_second_head():
    one, two = (GatingLayer((1, 8, 8), 7, s) for s in (False, True))
    x = noise(5, 1, 8, 8)
    assert one(x)[0] is one(x)[1] or torch.equal(*one(x))
    assert not torch.equal(*two(x))


# Runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["mlp", "digitsnet", net_with_batch_norm])
def test_with_open_gates_it_is_fedavg(net):
    how = {"model": net, "buffers": "average", **WHOLE}
    a = played(Open(sparsity=1.0, gate_lr=0.0, clip=1e9), **how)
    b = played("fedavg", **how)
    assert same(model(a), model(b))
    assert counts(a, "G") == counts(b, "G")


def test_gates_stay_and_persist_and_learn():
    result = played("pfedgate", **WHOLE)
    start = hp.Tensors(result.plan.template.state_dict()).only("gate.*")
    for c in result.plan.federation.clients:
        kept = memory(result, c)["net"]
        assert kept.keys() == start.keys()
        assert not same(kept, start)
    assert not any(k.startswith("gate.") for k in model(result))


def test_kept_fraction_is_recorded_and_within_the_budget():
    for event in played("pfedgate", model="digitsnet").events:
        if event["event"] == "round":
            assert 0.2 <= event["measures"]["kept_fraction"] <= 0.5


def test_without_a_learning_rate_of_its_own_the_gate_has_the_models():
    a, b = (played(PFedGate(gate_lr=x), rounds=1) for x in (None, QUICK.lr))
    assert a.model_sha256 == b.model_sha256
    still = played(PFedGate(gate_lr=0.0), rounds=1)
    start = hp.weights(still.plan.template).only("gate.*")
    for c in still.events[2]["clients"]:
        assert same(memory(still, c)["net"].only(*start), start)


def test_late_learning_rates_are_a_tenth():
    slow = played(PFedGate(decay_after=0, gate_lr=0.5), rounds=1)
    how = {"rounds": 1, "training": replace(QUICK, lr=QUICK.lr * 0.1)}
    tenth = played(PFedGate(gate_lr=0.5 * 0.1), **how)
    assert same(model(slow), model(tenth))
    assert same(
        model(played(PFedGate(decay_after=5), rounds=1)), model(played("pfedgate", rounds=1))
    )


def test_gradients_are_clipped():
    tiny = played(PFedGate(clip=1e-4), rounds=1, training=replace(QUICK, momentum=0.0, steps=1))
    start = hp.weights(tiny.plan.template)
    for c in tiny.events[2]["clients"]:
        own = memory(tiny, c)["own"].only(*start)
        moved = (own - start).square().sqrt()
        assert float(moved) <= 1.01 * QUICK.lr * 1e-4 + 1e-6
        gate = memory(tiny, c)["net"].only(*start)
        assert float((gate - start).square().sqrt()) <= 1.01 * QUICK.lr * 1e-4 + 1e-6


def test_in_turn_the_gate_learns_first_and_alone():
    seen = []

    class Watched(PFedGate):
        def local(self, client):
            fit = client.fit

            def watched(loss, train, **how):
                before = hp.weights(client.net)
                fit(loss, train, **how)
                after = hp.weights(client.net)
                gate = how["phase"].startswith("gate")
                still = "without" if gate else "only"
                assert same(getattr(before, still)("gate.*"), getattr(after, still)("gate.*"))
                assert not same(before, after)
                seen.append(how["phase"])

            client.fit = watched
            return super().local(client)

    played(Watched(mode="alternate"), rounds=1, training=replace(QUICK, epochs=2))
    assert seen == ["gate0", "main0", "gate1", "main1"] * 3


def test_answers_do_not_depend_on_the_batch_they_come_in():
    federation = digits(clients=2, examples=200)
    result = played("pfedgate", federation, model="digitsnet", **WHOLE)
    x, _ = federation.data("0").test.batch(torch.arange(12))
    own = result.personal("0")
    together = own(x)
    for part in (x[:1], x[3:7], x.flip(0)):
        at = [next(i for i in range(12) if torch.equal(x[i], v)) for v in part]
        assert torch.allclose(own(part), together[at], atol=1e-5)


def test_gates_look_at_the_whole_test_set_in_eval_mode(monkeypatch):
    federation = digits(clients=2, examples=200)
    result = played(PFedGate(tested="received"), federation, model="digitsnet", **WHOLE)
    own, data = result.personal("0"), federation.data("0").test
    x, y = data.batch(torch.arange(len(data)))
    net, algorithm = own.net, result.plan.algorithm
    assert not net.gate.training
    cut = split_into_blocks(net, 5)
    gates, _ = algorithm.compute_gates(cut, *(v.mean(0) for v in net.gate(x)))
    want = forward_gated(net, cut, gates, hp.Tensors(net.named_parameters()), x)
    assert torch.allclose(own(x), want, atol=1e-6)
    last = counts(result, "P")[-1]
    assert int((want.argmax(1) == y).sum()) == last[0]
    monkeypatch.setattr("heterophony.jobs.evaluation.EVALUATION_BATCH", 3)
    again = played(PFedGate(tested="received"), federation, model="digitsnet", **WHOLE)
    assert counts(again, "P") == counts(result, "P")


def test_p_is_after_local_training_and_g_is_the_plain_average():
    result = played("pfedgate", **WHOLE)
    rounds = [e["P_local"] for e in result.events if e["event"] == "round"]
    assert [[right for right, _ in r] for r in rounds] == counts(result, "P")[1:]
    x = noise(4, 1, 8, 8)
    plain = get_model_builder("mlp")((1, 8, 8), 10, 1)
    plain.load_state_dict(model(result))
    assert torch.equal(result.generic()(x), plain(x))


def test_batch_norm_is_gated_but_its_statistics_are_not():
    names = [b.name for b in split_into_blocks(build_resnet((1, 8, 8), 10, 1, (4, 8)), 5)]
    assert "base.1.weight" in names
    assert not any("running" in k for k in names)


def test_a_batch_of_one_is_skipped():
    federation = digits(clients=2, examples=120)
    small = {c: federation.train[c][:17] for c in federation.clients}
    how = {"training": replace(QUICK, drop_last=False), **WHOLE}
    assert played("pfedgate", replace(federation, train=small), **how).summary.rounds == 3


def test_features_need_no_image():
    x = noise(40, 5).numpy()
    y = (torch.arange(40) % 3).numpy()
    assert played("pfedgate", hp.federate([(x, y)] * 2), **WHOLE).summary.rounds == 3
