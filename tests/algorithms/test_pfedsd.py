"""pFedSD: a teacher that is the client's own past; without it, FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import QUICK, counts, memory, model, net_with_batch_norm, played, same
from heterophony.algorithms.pfedsd import PFedSD
from heterophony.core.randomness import seeded

HOW = {"participation": 1.0, "buffers": "average", "weights": "uniform"}


def dropping() -> hp.Net:
    base = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 20), nn.ReLU())
    return hp.Net(base, nn.Linear(20, 10))


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm, dropping])
def test_the_first_round_is_fedavgs(net):
    a, b = (played(x, model=net, rounds=1, **HOW) for x in ("pfedsd", "fedavg"))
    assert same(model(a), model(b))


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_without_weight_it_is_fedavg(net):
    a, b = (played(x, model=net, **HOW) for x in (PFedSD(lam=0.0), "fedavg"))
    assert same(model(a), model(b))
    assert counts(a, "G") == counts(b, "G")


def test_with_a_teacher_it_is_another():
    a, b = (played(x, **HOW) for x in ("pfedsd", "fedavg"))
    assert not same(model(a), model(b))


def test_a_teacher_equal_to_the_student_is_no_distance():
    with seeded("logits"):
        logits = torch.randn(7, 10, requires_grad=True)
    distance = PFedSD().compute_distillation_loss(logits, logits.detach())
    assert abs(distance.detach()) < 1e-6
    distance.backward()
    assert logits.grad.abs().max() < 1e-6


def test_the_distance_by_hand():
    with seeded("logits"):
        student, teacher = torch.randn(2, 4, 3, dtype=torch.float64)
    p, q = (teacher / 2).softmax(1), (student / 2).softmax(1)
    want = 4 * (p * (p / q).log()).sum(1).mean()
    assert torch.allclose(PFedSD(temperature=2.0).compute_distillation_loss(student, teacher), want)


@pytest.mark.parametrize(("mode", "moved"), [("eval", False), ("train", True)])
def test_the_teacher_is_in_eval_mode_and_does_not_change(mode, moved):
    modes = []

    class Watched(PFedSD):
        def local(self, client):
            fit = client.fit

            def watched(loss):
                before = client.memory.get("own", hp.Tensors()).map(torch.clone)
                hook = client.net.base[1].register_forward_pre_hook(
                    lambda norm, _: modes.append((client.t, norm.training))
                )
                fit(loss)
                hook.remove()
                if before:
                    assert same(before, client.memory["own"]) is not moved

            client.fit = watched
            return super().local(client)

    played(Watched(teacher_bn=mode), model=net_with_batch_norm, rounds=2, **HOW)
    alone, taught = ([m for t, m in modes if t == at] for at in (0, 1))
    assert all(alone)
    assert taught == [True, mode == "train"] * (len(taught) // 2)
    assert len(taught) == 2 * len(alone)


def test_the_student_trains_in_train_mode_beside_its_teacher():
    seen = []

    class Watched(PFedSD):
        def compute_distillation_loss(self, student, teacher):
            assert student.requires_grad
            assert not teacher.requires_grad
            seen.append(len(student))
            return super().compute_distillation_loss(student, teacher)

        def run_teacher(self, client, x):
            was = client.net.training
            out = super().run_teacher(client, x)
            assert client.net.training is was
            return out

    played(Watched(), model=net_with_batch_norm, rounds=2, **HOW)
    assert seen


def test_the_teachers_dropout_does_not_touch_the_students():
    """With a weight too small to matter, the student is FedAvg's although the teacher ran."""
    for mode in ("eval", "train"):
        algorithm = PFedSD(lam=1e-30, teacher_bn=mode)
        a, b = (played(x, model=dropping, **HOW) for x in (algorithm, "fedavg"))
        assert same(model(a), model(b))


def test_p_is_the_model_trained_last_and_g_the_average():
    result = played("pfedsd", **{**HOW, "training": replace(QUICK, lr=0.1)})
    rounds = [e["P_local"] for e in result.events if e["event"] == "round"]
    assert [[right for right, _ in r] for r in rounds] == counts(result, "P")[1:]
    assert counts(result, "P") != counts(result, "G")
    x = torch.rand(3, 1, 8, 8)
    own = result.plan.template
    own.load_state_dict(memory(result, "1")["own"])
    assert torch.equal(result.personal("1")(x), own.eval()(x))
