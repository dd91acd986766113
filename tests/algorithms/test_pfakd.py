"""PFAKD and PFAKD + AT: the teacher, the distillation distance, attention maps, and their limits FedPer and FedRep."""

from __future__ import annotations

from dataclasses import replace
from inspect import getclosurevars

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    replies,
    same,
    watching,
    wire,
)
from heterophony.algorithms import pfakd
from heterophony.algorithms.parts import distillation as attention_transfer
from heterophony.algorithms.pfakd import PFAKD
from heterophony.core.errors import ConfigError
from heterophony.core.tensors import mix

MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=1e-2, epochs=2)
OPTIONS = [{}, {"at": "alternating"}, {"at": "attention"}]


def with_dropout() -> hp.Net:
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Dropout(0.5))
    return hp.Net(base, nn.Linear(20, 10))


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm, with_dropout])
def test_without_distillation_it_is_fedper(net):
    how = {"model": net, "training": MOMENTUM}
    assert identical(played(PFAKD(beta=0.0), **how), played("fedper", **how))


@pytest.mark.parametrize("net", ["mlp", "digitsnet", net_with_batch_norm])
def test_in_the_first_batch_of_a_round_student_and_teacher_agree_exactly(net, monkeypatch):
    seen: list[list[float]] = []

    def recorded(z, target):
        out = mse_loss(z, target)
        seen[-1].append(float(out.detach()))
        return out

    def check(client, fit, loss, **how):
        seen.append([])
        fit(loss, **how)

    monkeypatch.setattr(pfakd, "mse_loss", recorded)
    played(watching(PFAKD, check), model=net, training=MOMENTUM, participation=1.0)
    assert len(seen) == 18
    assert all(values[0] == 0.0 for values in seen)
    assert all(v > 0 for values in seen for v in values[1:])


@pytest.mark.parametrize("settings", OPTIONS)
def test_the_teacher_is_the_received_base_and_stays_it(settings):
    seen = []

    def check(client, fit, loss, **how):
        known = getclosurevars(loss).nonlocals
        fit(loss, **how)
        if "teacher" in known:
            base = client.received.only("base.*").below("base.")
            seen.append(same(hp.weights(known["teacher"]), base))
            assert not same(hp.weights(client.net.base), base)

    played(watching(PFAKD, check, **settings), model=net_with_batch_norm, training=MOMENTUM)
    assert seen == [True] * 9


def test_the_teacher_normalises_by_the_batch_and_drops_nothing():
    net = hp.Net(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)), nn.Flatten()
    )
    teacher = pfakd.make_teacher(net)
    assert [m.training for m in teacher] == [False, True, False]
    x = torch.rand(8, 1, 8, 8)
    out = teacher(x)
    assert torch.equal(out, teacher(x))
    assert float(out.mean().abs()) < 1e-5  # normalised by this very batch
    assert not any(p.requires_grad for p in teacher.parameters())


@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_the_distance_is_a_mean_over_batch_and_features(beta):
    def check(client, fit, loss, **how):
        fit(loss, **how)
        net, teacher = client.net, getclosurevars(loss).nonlocals["teacher"]
        x, y = client.data.train.batch(torch.arange(7))
        z = net.base(x)
        far = (z - teacher(x)).square().sum() / z.numel()
        assert torch.allclose(loss(x, y), cross_entropy(net.head(z), y) + beta * far)

    played(watching(PFAKD, check, beta=beta), rounds=1)


def test_a_broadcast_leaves_the_head():
    result = played(PFAKD(), participation=Turns([0, 1], [1, 2], [1, 3]))
    kept = memory(result, "0")["net"]
    short = played(PFAKD(), rounds=1, participation=Turns([0, 1]))
    assert same(kept, memory(short, "0")["net"])
    assert same(hp.Tensors(result.personal("0").net.state_dict()).only("head.*"), kept)


def test_distillation_holds_features_near():
    def far(beta: float) -> float:
        result = played(PFAKD(beta=beta), rounds=1, participation=1.0, training=MOMENTUM)
        return float((model(result) - result.plan.create_initial_server().model).square())

    assert far(50.0) < far(1.0) < far(0.0)


def test_clients_count_by_their_examples_or_all_the_same(monkeypatch):
    for weights, share in (("samples", lambda r: r.samples), ("uniform", lambda r: 1)):
        result, sent = replies(monkeypatch, PFAKD(), rounds=1, weights=weights)
        whole = sum(share(r) for r in sent[0])
        told = mix([r.tensors for r in sent[0]], [share(r) / whole for r in sent[0]])
        assert same(model(result), told)


@pytest.mark.parametrize("settings", [{}, {"at": "alternating"}])
def test_the_learning_rate_decays_by_the_schedule_of_all_algorithms(settings):
    rates: list[float] = []

    def check(client, fit, loss, **how):
        assert "how" not in how  # nothing of its own: ``fit`` applies training.schedule
        rates.append(client.lr)
        fit(loss, **how)

    training = hp.Training(epochs=1, batch=16, lr=0.05, schedule="exponential", decay_factor=0.9)
    played(
        watching(PFAKD, check, **settings), participation=Turns([0], [0], [0]), training=training
    )
    times = 2 if settings else 1
    assert rates == [0.05 * 0.9**t for t in range(3) for _ in range(times)]


def test_traffic_is_the_bases():
    assert wire(PFAKD()) == [(796_032, 796_032)] * 2
    conv = (nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 4), nn.Conv2d(32, 64, 3))
    head = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
    net = hp.Net(nn.Sequential(*conv), head)  # the layers of the paper's CIFAR-10 network
    travels = sum(net.get_parameter(k).numel() for k in PFAKD().shared(net, 0))
    assert travels == 27_168
    assert round(travels / 44_266, 4) == 0.6137


# AT: alternating ----------------------------------------------------------------------------


def test_alternating_freezes_the_base_then_the_head():
    moved, epochs = [], []

    def check(client, fit, loss, **how):
        before, steps = hp.weights(client.net), []
        fit(lambda x, y: (steps.append(1), loss(x, y))[1], **how)
        after = hp.weights(client.net)
        moved.append([not same(before.only(p), after.only(p)) for p in ("base.*", "head.*")])
        epochs.append(len(steps) / (len(client.data.train) // QUICK.batch or 1))

    played(watching(PFAKD, check, at="alternating"), rounds=2, training=MOMENTUM)
    assert moved == [[False, True], [True, False]] * 6
    assert epochs == [1, 2] * 6


def test_alternating_without_distillation_is_fedrep_with_one_epoch_for_the_head():
    from heterophony.algorithms.fedrep import FedRep

    a = played(PFAKD(beta=0.0, at="alternating"), training=MOMENTUM)
    b = played(FedRep(head_epochs=1, base_epochs=2), training=MOMENTUM)
    assert identical(a, b)


# AT: attention ------------------------------------------------------------------------------


def test_attention_without_weight_is_pfakd():
    how = {"model": "digitsnet", "training": MOMENTUM, "rounds": 2}
    a, b = played(PFAKD(at="attention", at_weight=0.0), **how), played(PFAKD(), **how)
    assert identical(a, b)
    assert not identical(b, played(PFAKD(at="attention"), **how))


def test_attention_agrees_exactly_in_the_first_batch(monkeypatch):
    seen: list[list[float]] = []

    def recorded(student, teacher):
        out = attention_transfer.compute_attention_loss(student, teacher)
        assert len(student) == len(teacher) == 2
        seen[-1].append(float(out.detach()))
        return out

    def check(client, fit, loss, **how):
        seen.append([])
        fit(loss, **how)

    monkeypatch.setattr(pfakd, "compute_attention_loss", recorded)
    played(watching(PFAKD, check, at="attention"), model="digitsnet", rounds=2)
    assert all(values[0] == 0.0 for values in seen)
    assert any(v > 0 for values in seen for v in values)


def test_attention_is_the_mean_over_stages_of_normalised_squared_maps():
    net, other = (
        played("fedavg", model="digitsnet", rounds=0, seed=s).plan.template.base for s in (0, 1)
    )
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (_, mine), (_, wanted) = (attention_transfer.forward_with_attention(n, x) for n in (net, other))
    told = 0.0
    for cut in (3, 6):
        q, p = ((n[:cut](x) ** 2).mean(1).flatten(1) for n in (net, other))
        q, p = q / q.norm(dim=1, keepdim=True), p / p.norm(dim=1, keepdim=True)
        told = told + (q - p).square().mean() / 2
    assert torch.allclose(attention_transfer.compute_attention_loss(mine, wanted), told)
    assert not any(m._forward_hooks for m in net.modules())


def test_stages_are_blocks_of_convolutions_or_the_layers_of_a_resnet():
    resnet = nn.Sequential()
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4", "pool"):
        resnet.add_module(name, nn.Sequential() if name.startswith("layer") else nn.Conv2d(1, 1, 1))
    assert attention_transfer.find_stages(resnet) == list(resnet)[1:5]
    conv = [nn.Conv2d(1, 1, 1), nn.ReLU(), nn.MaxPool2d(2)]
    chain = nn.Sequential(*conv, nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.ReLU())
    assert attention_transfer.find_stages(chain) == [chain[2], chain[4]]


def test_attention_needs_convolutions_and_says_so_before_the_first_round():
    with pytest.raises(
        ConfigError, match="attention transfer needs a model whose base has convolutions"
    ):
        played(PFAKD(at="attention"), model="mlp")
