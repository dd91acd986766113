"""FedDecomp: shapes of the golden file, what each phase may move, and FedAvg as its limit."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import heterophony as hp
from helpers.support import (
    QUICK,
    Recorder,
    digits,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
)
from heterophony.algorithms.feddecomp import FedDecomp
from heterophony.algorithms.parts.low_rank import FACTOR_PATTERNS, LowRankParametrization
from heterophony.core.randomness import seeded
from heterophony.core.tensors import matches_any
from heterophony.engines import base
from heterophony.models import get_model_builder
from heterophony.tools.bench import count_training_flops
from heterophony.tools.tables import list_tensors, measure_relative_to_fedavg

PAPER = {"weights": "uniform", "buffers": "average", "participation": 1.0}
HOW = replace(QUICK, epochs=3, momentum_state="reset", drop_last=False)


def short(name: str) -> str:
    """A tensor's name without the trace of the low-rank part."""
    return name.replace("parametrizations.weight.original", "weight")


def plain(tensors: hp.Tensors) -> hp.Tensors:
    return hp.Tensors({short(k): v for k, v in tensors.items()})


def lowrank(net: nn.Module) -> list[LowRankParametrization]:
    return [m for m in net.modules() if isinstance(m, LowRankParametrization)]


def run(algorithm, net="digitsnet", **how):
    return played(algorithm, model=net, **{"training": HOW, **PAPER, **how})


# Shapes (golden) ----------------------------------------------------------------------------

AUTHORS_8 = [  # B's rows, inner size, A's columns, 1/s: ResNet-8 in the network's order
    (448, 266, 21, 38),
    *[(192, 114, 192, 38)] * 2,
    *[(384, 228, 192, 76), (384, 228, 384, 76), (128, 76, 64, 76)],
    *[(768, 459, 384, 153), (768, 459, 768, 153), (256, 153, 128, 153)],
    (10, 6, 256, 6),
]
PAPER_8 = [
    (448, 7, 21, 1),
    *[(192, 114, 192, 38)] * 2,
    *[(384, 114, 192, 38), (384, 228, 384, 76), (128, 38, 64, 38)],
    *[(768, 228, 384, 76), (768, 459, 768, 153), (256, 76, 128, 76)],
    (10, 6, 256, 6),
]


@pytest.mark.parametrize(
    ("rule", "layers", "total"), [("authors", AUTHORS_8, 1_827_470), ("paper", PAPER_8, 1_337_359)]
)
def test_the_factors_of_resnet8_have_the_golden_shapes(rule, layers, total):
    net = FedDecomp(rank_rule=rule).build(get_model_builder("resnet8")((3, 32, 32), 10, 1))
    found = [(*m.b.shape, m.a.shape[1], round(1 / m.scale)) for m in lowrank(net)]
    assert found == layers
    assert sum(m.a.numel() + m.b.numel() for m in lowrank(net)) == total


@pytest.mark.parametrize(
    ("rule", "classes", "total"),
    [
        ("authors", 100, 9_374_121),
        ("paper", 100, 7_149_254),
        ("authors", 200, 9_406_601),
        ("paper", 200, 7_181_734),
    ],
)
def test_the_factors_of_resnet10_add_up(rule, classes, total):
    how = FedDecomp(conv_rank=0.8, linear_rank=0.4, rank_rule=rule)
    net = how.build(get_model_builder("resnet10")((3, 32, 32), classes, 1))
    assert sum(m.a.numel() + m.b.numel() for m in lowrank(net)) == total


def test_the_unit_of_a_linear_layer_is_its_ratio_of_the_smaller_side_and_at_least_one():
    weight = torch.empty(10, 256)
    assert [
        FedDecomp(linear_rank=r).compute_rank_unit(weight) for r in (0.2, 0.4, 0.6, 0.8, 1.0)
    ] == [*(2, 4, 6, 8, 10)]
    assert FedDecomp(linear_rank=0.01).compute_rank_unit(weight) == 1


def test_the_product_is_read_row_by_row():
    out, into, k = 4, 6, 3
    part = LowRankParametrization(torch.empty(out, into, k, k), 2, 0.5)
    with torch.no_grad(), seeded("b"):
        part.b.normal_()
        tau = part(torch.zeros(out, into, k, k))
        product = part.b @ part.a
    for o, i, a, b in ((0, 0, 0, 0), (1, 4, 2, 1), (3, 5, 2, 2), (2, 1, 0, 2)):
        q = i * k * k + a * k + b
        assert tau[o, i, a, b] == 0.5 * product[o * k + q // (into * k), q % (into * k)]


def test_a_begins_uniform_within_its_bound_and_the_same_for_all():
    part = LowRankParametrization(torch.empty(64, 32, 3, 3), 16, 1.0)
    assert part.a.abs().max() <= 96**-0.5
    assert part.a.abs().max() > 0.95 * 96**-0.5
    result = run("feddecomp", rounds=1, training=replace(HOW, lr=0.0))
    first = [memory(result, c)["net"] for c in result.plan.federation.clients]
    assert all(same(f, first[0]) for f in first)


# Invariants ---------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["mlp", "digitsnet", net_with_batch_norm])
def test_it_begins_as_the_plain_model(net):
    started = run("feddecomp", net, rounds=0).plan
    fedavg = run("fedavg", net, rounds=0).plan
    assert same(plain(started.create_initial_server().model), fedavg.create_initial_server().model)
    with seeded("x"):
        x = torch.randn(5, 1, 8, 8)
    assert torch.equal(started.template(x), fedavg.template(x))
    for part in lowrank(started.template):
        assert not part.compute_low_rank().any()


@pytest.mark.parametrize("net", ["mlp", "digitsnet", net_with_batch_norm])
def test_without_own_epochs_it_is_fedavg_in_every_round(net):
    a, b = run(FedDecomp(own_epochs=0, changes=True), net), run("fedavg", net)
    assert same(plain(model(a)), model(b))
    counts = [[e["G"] for e in r.events if e["event"] == "evaluation"] for r in (a, b)]
    assert counts[0] == counts[1]
    assert all(e["P"] == e["G"] for e in a.events if e["event"] == "evaluation")
    for c in a.plan.federation.clients:
        assert not any(v.any() for v in memory(a, c)["net"].only("*.b").values())
    last = [e["measures"] for e in a.events if e["event"] == "round"][-1]
    assert [v for k, v in last.items() if k.startswith("delta_tau")] == [0.0] * 3
    assert last["delta_sigma"] > 0


def test_without_own_epochs_it_is_fedavg_with_steps_too():
    how = replace(HOW, steps=4)
    a, b = (run(x, training=how) for x in (FedDecomp(own_epochs=0), "fedavg"))
    assert same(plain(model(a)), model(b))


def test_the_first_step_of_the_own_part_moves_b_and_not_a():
    one_step = replace(HOW, epochs=1, batch=10_000)
    result = run(FedDecomp(own_epochs=1), rounds=1, training=one_step)
    start = hp.Tensors(result.plan.template.state_dict())
    kept = memory(result, "0")["net"]
    assert same(kept.only("*.a"), start.only(*FACTOR_PATTERNS).only("*.a"))
    assert all(v.any() for v in kept.only("*.b").values())


@pytest.mark.parametrize("mode", ["alternating", "reverse"])
def test_each_phase_moves_its_part_alone(mode):
    seen = []

    class Watched(FedDecomp):
        def local(self, client):
            fit = client.fit

            def watched(loss=None, train=None, how=None, phase="main"):
                before, statistics = (
                    hp.weights(client.net),
                    deepcopy(dict(client.net.named_buffers())),
                )
                fit(loss, train=train, how=how, phase=phase)
                after = hp.weights(client.net)
                moves_tau = (phase == "own") == (mode == "alternating")
                still = "without" if moves_tau else "only"
                assert same(
                    getattr(before, still)(*FACTOR_PATTERNS),
                    getattr(after, still)(*FACTOR_PATTERNS),
                )
                assert not same(before, after)
                now = dict(client.net.named_buffers())
                assert any(not torch.equal(v, now[k]) for k, v in statistics.items())
                seen.append((phase, how.epochs))

            client.fit = watched
            return super().local(client)

    run(Watched(mode=mode, own_epochs=1), net_with_batch_norm, rounds=1)
    assert seen == [("own", 1), ("main", 2)] * 6


def test_tau_first_is_the_other_order_of_reverse():
    orders = [FedDecomp(mode="reverse", reverse_order=o) for o in ("sigma_first", "tau_first")]
    a, b = (run(x, rounds=1) for x in orders)
    assert not same(model(a), model(b))


def test_without_general_epochs_the_shared_weights_are_constant():
    result = run(FedDecomp(own_epochs=3), net_with_batch_norm)
    start = result.plan.create_initial_server().model
    learned = [k for k in start if "running" not in k]
    assert same(model(result).only(*learned), start.only(*learned))
    assert not same(model(result), start)  # the running statistics are still averaged


@pytest.mark.parametrize(
    ("mode", "factors", "others"),
    [
        ("alternating", False, True),
        ("simultaneous", False, True),
        ("reverse", True, False),
        ("fedavg", True, True),
        ("local", False, False),
    ],
)
def test_what_goes_up(mode, factors, others, monkeypatch):
    kept = []
    monkeypatch.setattr(
        base, "Serial", lambda plan, place, *_: kept.append(Recorder(plan, place)) or kept[0]
    )
    result = run(FedDecomp(mode=mode), net_with_batch_norm, rounds=1)
    names = set(result.plan.template.state_dict())
    names = {k for k in names if not k.endswith("num_batches_tracked")}
    low = {k for k in names if ".weight.0." in k}
    want = (low if factors else set()) | (names - low if others else set())
    for job, reply in kept[0].log:
        if job.kind == "train":
            assert set(reply.tensors) == want


def test_reverse_with_one_client_does_not_know_of_the_average():
    alone = digits(clients=1, examples=80)
    a = played(FedDecomp(mode="reverse"), alone, training=HOW, model="digitsnet", **PAPER)
    b = played(Kept(mode="reverse"), alone, training=HOW, model="digitsnet", **PAPER)
    assert same(memory(a, "0")["net"] | model(a), memory(b, "0")["net"])


class Kept(FedDecomp):
    """Everything stays."""

    def stays(self, net):
        return ["*"]


def test_simultaneous_moves_both_at_once_and_fedavg_averages_the_factors():
    a = run(FedDecomp(mode="simultaneous"), rounds=1)
    b = run(FedDecomp(mode="fedavg"), rounds=1)
    assert same(model(a), model(b).without(*FACTOR_PATTERNS))
    clients = a.plan.federation.clients
    mean = hp.mix([memory(a, c)["net"] for c in clients], [1 / len(clients)] * len(clients))
    assert same(mean, model(b).only(*FACTOR_PATTERNS))


# Evaluation and cost ------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 3])
def test_g_is_the_shared_part_alone_and_p_has_the_own_one(clients):
    """With one client the own part equals its average: G must do without it all the same."""
    federation = digits(clients=clients, examples=200)
    how = {"rounds": 2, "training": replace(HOW, lr=0.3), "model": "digitsnet", **PAPER}
    result = played(FedDecomp(scale="none", own_epochs=2), federation, **how)
    sigma = get_model_builder("digitsnet")((1, 8, 8), 10, 1)
    sigma.load_state_dict(plain(model(result)))
    last = result.events[-2]
    for i, c in enumerate(federation.clients):
        x, y = federation.data(c).test.batch(torch.arange(len(federation.data(c).test)))
        with torch.no_grad():
            assert int((sigma(x).argmax(1) == y).sum()) == last["G"][i]
            net = result.personal(c).net
            assert int((net(x).argmax(1) == y).sum()) == last["P"][i]
            assert not torch.allclose(net(x), sigma(x))
            assert torch.allclose(result.generic()(x), sigma(x), atol=1e-5)


def test_the_product_is_computed_once_where_nobody_learns_it():
    part = LowRankParametrization(torch.empty(4, 6, 3, 3), 2, 0.5)
    part.requires_grad_(False)
    first = part.compute_low_rank()
    assert part.compute_low_rank() is first
    with torch.no_grad():
        part.b.add_(1)
    assert part.compute_low_rank() is not first
    assert torch.equal(part.compute_low_rank(), 0.5 * (part.b @ part.a))
    part.requires_grad_(True)
    assert part.compute_low_rank().requires_grad


def test_model_difference_leaves_out_statistics_and_factors(monkeypatch):
    kept = []
    monkeypatch.setattr(
        base, "Serial", lambda plan, place, *_: kept.append(Recorder(plan, place)) or kept[0]
    )
    for mode in ("alternating", "fedavg"):
        kept.clear()
        result = run(FedDecomp(mode=mode), net_with_batch_norm, rounds=1)
        learned = [k for k in model(result) if "running" not in k and ".weight.0." not in k]
        apart = [
            (r.tensors.only(*learned) - model(result)).square().sqrt()
            for j, r in kept[0].log
            if j.kind == "train"
        ]
        (event,) = [e for e in result.events if e["event"] == "round"]
        assert abs(event["measures"]["model_difference"] - float(sum(apart)) / 6) < 1e-6


def test_changes_count_from_the_initial_values():
    result = run(FedDecomp(changes=True), rounds=3)
    rounds = [e["measures"] for e in result.events if e["event"] == "round"]
    kinds = ["delta_sigma", *(f"delta_tau_{k}" for k in ("effective", "factors", "unscaled"))]
    assert all(0 < rounds[0][k] < rounds[1][k] < rounds[2][k] for k in kinds)
    assert rounds[2]["delta_tau_effective"] < rounds[2]["delta_tau_unscaled"]
    start = result.plan.create_initial_server().model
    moved = (plain(model(result)) - plain(start)).square().sqrt()
    assert rounds[2]["delta_sigma"] == pytest.approx(float(moved))
    clients = result.plan.federation.clients
    ours = [memory(result, c)["net"].only("*.a", "*.b") for c in clients]
    first = hp.Tensors(result.plan.template.state_dict()).only("*.weight.0.a", "*.weight.0.b")
    each = [float((net - first).square().sqrt()) for net in ours]
    assert rounds[2]["delta_tau_factors"] == pytest.approx(sum(each) / len(each))


# What a client spends (Section 3.5) -----------------------------------------------------------


def count_phase_flops(
    net: nn.Module, shape: tuple[int, ...], batch: int, steps: int, trained: Iterable[str] = ("*",)
) -> int:
    """Count the operations of a training phase of one or more steps on images.

    Nothing is computed. The count includes forward, backward and weights made out of others
    (parametrisations). ``trained`` are patterns of parameters; the others are frozen.
    """
    patterns, copy = tuple(trained), deepcopy(net).to("meta").train()
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(matches_any(name, patterns))
    counted: list[int] = []
    for _ in range(min(2, steps)):  # the first step may create things; all later steps are alike
        with FlopCounterMode(display=False) as counter:
            copy(torch.empty(batch, *shape, device="meta")).sum().backward()
        counted.append(counter.get_total_flops())
    return counted[0] + (steps - 1) * counted[-1]


@pytest.mark.parametrize(
    ("model", "classes", "side", "ranks", "values", "step", "of_round"),
    [
        ("resnet8", 10, 32, (0.6, 0.6), (1_827_470, 1_235_274), 1.346, 1.143),
        ("resnet10", 100, 32, (0.8, 0.4), (9_374_121, 4_957_092), 3.893, 2.196),
        ("resnet10", 200, 64, (0.8, 0.4), (9_406_601, 5_008_392), 1.725, 1.300),
    ],
)
def test_what_a_client_keeps_and_computes(model, classes, side, ranks, values, step, of_round):
    """More values than the model has, and more operations than FedAvg's: claims.toml says so."""
    shape = (3, side, side)
    algorithm = FedDecomp(conv_rank=ranks[0], linear_rank=ranks[1])
    count = partial(count_phase_flops, shape=shape, batch=100)
    with torch.device("meta"):  # shapes are enough
        listed = list_tensors(model, algorithm, shape=shape, classes=classes)
        net = get_model_builder(model)(shape, classes, 1)
        fedavg = count(net, steps=1)
        net = algorithm.build(net)
    found = {k: sum(prod(t.shape) for t in listed if t.kind == k) for k in ("personal", "shared")}
    assert (found["personal"], found["shared"]) == values
    sigma = [k for k, _ in net.named_parameters() if not matches_any(k, FACTOR_PATTERNS)]
    tau = count(net, steps=1, trained=FACTOR_PATTERNS)
    assert round(tau / fedavg, 3) == step
    both = 10 * tau + count(net, steps=15, trained=sigma)
    assert round(both / (25 * fedavg), 3) == of_round


def test_operations_of_a_plain_net_are_those_of_its_layers():
    net = get_model_builder("digitsnet")((1, 8, 8), 10, 1)
    for steps in (1, 3):
        expected = steps * 20 * count_training_flops(net, (1, 8, 8))
        assert count_phase_flops(net, (1, 8, 8), 20, steps) == expected


def test_a_client_sends_and_receives_as_much_as_with_fedavg():
    assert measure_relative_to_fedavg(FedDecomp()) == {"down": 1.0, "up": 1.0}
