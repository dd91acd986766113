"""An algorithm at its limit is another algorithm, bit for bit."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import heterophony as hp
from helpers.support import (
    QUICK,
    blobs,
    client_after,
    counts,
    digits,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    watching,
    whole_base,
)
from heterophony.algorithms import fedetf, pefll, pfedhn
from heterophony.algorithms.apple import APPLE
from heterophony.algorithms.cfl import CFL
from heterophony.algorithms.fedas import FedAS
from heterophony.algorithms.fedavg import FedAvg
from heterophony.algorithms.feddbe import FedDBE
from heterophony.algorithms.feddistill import FedDistill
from heterophony.algorithms.feddyn import FedDyn
from heterophony.algorithms.fedem import FedEM
from heterophony.algorithms.fedetf import FedETF
from heterophony.algorithms.fedfomo import FedFomo
from heterophony.algorithms.fedgen import FedGen
from heterophony.algorithms.fedper import FedPer
from heterophony.algorithms.fedprox import FedProx
from heterophony.algorithms.fedreg import FedReG
from heterophony.algorithms.fedrod import FedRoD
from heterophony.algorithms.floco import Floco
from heterophony.algorithms.ifca import IFCA
from heterophony.algorithms.knnper import KNNPer
from heterophony.algorithms.local import Local
from heterophony.algorithms.parts import hypernetworks, rebalancing
from heterophony.algorithms.parts import mixing as core_models
from heterophony.algorithms.parts.layers import ScaledFeatures
from heterophony.algorithms.parts.rebalancing import compute_own_target
from heterophony.algorithms.pefll import PeFLL
from heterophony.algorithms.pfedfda import PFedFDA
from heterophony.algorithms.pfedhn import PFedHN
from heterophony.core.randomness import seeded

MOMENTUM = replace(QUICK, momentum=0.9, weight_decay=1e-3)


# FedAvg -------------------------------------------------------------------------------------


def test_fedavg_with_one_client_is_plain_sgd():
    federation = digits(clients=1, examples=100)
    how = replace(MOMENTUM, epochs=2)
    result = played("fedavg", federation, rounds=3, participation=1.0, training=how)
    net = deepcopy(result.plan.template)
    optimiser = torch.optim.SGD(
        dict(sorted(net.named_parameters())).values(),
        lr=how.lr,
        momentum=0.9,
        weight_decay=1e-3,
        fused=True,
    )
    data = federation.data("0").train
    for t in range(3):
        with seeded(0, "fit", t, "0", "main"):
            for _ in range(2):
                order = torch.randperm(len(data))[: len(data) // how.batch * how.batch]
                for at in order.split(how.batch):
                    x, y = data.batch(at)
                    optimiser.zero_grad()
                    cross_entropy(net(x), y).backward()
                    optimiser.step()
    assert same(model(result), hp.weights(net))


def test_fedavg_g_on_the_union_is_the_sum_of_p():
    for event in played("fedavg").events:
        if event["event"] == "evaluation":
            assert event["G"] == event["P"]


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper", "fedrod", "fedreg"])
def test_without_learning_rate_nothing_moves(name):
    result = played(name, training=replace(QUICK, lr=0.0))
    assert same(model(result), result.plan.create_initial_server().model)


def test_equal_clients_average_to_each_of_them():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(1, 5, generator=draw).numpy(), torch.tensor([1]).numpy()
    federation = hp.federate([(x, y, x, y)] * 7, classes=2)
    result = played("fedavg", federation, rounds=1, participation=1.0)
    alone = played("fedavg", hp.federate([(x, y, x, y)], classes=2), rounds=1, participation=1.0)
    assert same(model(result), model(alone))


# FedProx ------------------------------------------------------------------------------------


def test_fedprox_without_pull_is_fedavg():
    assert identical(played(FedProx(mu=0.0)), played("fedavg"))


def test_fedprox_first_step_is_fedavgs_for_any_pull():
    how = hp.Training(epochs=0, steps=1, batch=16, lr=0.05)
    a, b = (played(x, rounds=1, training=how) for x in (FedProx(mu=7.0), FedAvg()))
    assert same(model(a), model(b))


def test_fedprox_pulls():
    far, near = (played(FedProx(mu=mu), rounds=1) for mu in (0.0, 10.0))
    start = far.plan.create_initial_server().model
    assert (model(near) - start).square() < (model(far) - start).square()


# FedPer and Local ---------------------------------------------------------------------------


def test_fedper_without_head_is_fedavg():
    assert identical(played("fedper", model=whole_base), played("fedavg", model=whole_base))


def test_fedper_without_base_is_local():
    how = {"head_depth": 2, "participation": 1.0}  # both layers of the mlp are its head
    a, b = played("fedper", **how), played("local", **how)
    assert a.model_sha256 == b.model_sha256
    assert [e["P"] for e in a.events if e["event"] == "evaluation"] == [
        e["P"] for e in b.events if e["event"] == "evaluation"
    ]


def test_fedper_and_local_keep_what_is_theirs_through_a_broadcast():
    for name in ("fedper", "local"):
        result = played(name)
        for client in result.plan.federation.clients:
            kept = memory(result, client).get("net")
            if kept is not None:
                now = hp.Tensors(result.personal(client).net.state_dict())
                assert same(now.only(*kept), kept)


def test_local_trains_everybody_if_asked_and_sends_nothing():
    result = played(Local(clients="all"), participation=0.2)
    rounds = [e for e in result.events if e["event"] == "round"]
    assert all(e["clients"] == list(result.plan.federation.clients) for e in rounds)
    assert result.summary.bytes == {"up": 0, "down": 0}
    assert result.G is None


def test_local_does_not_depend_on_the_order_of_clients():
    there = digits()
    back = replace(
        there, train=dict(reversed(there.train.items())), test=dict(reversed(there.test.items()))
    )
    a, b = (played(Local(clients="all"), f) for f in (there, back))
    for client in there.clients:
        assert a._run_folder.client_store.digest_memory(
            client, 3
        ) == b._run_folder.client_store.digest_memory(client, 3)


# FedRoD -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnlyGeneric(FedRoD):
    """FedRoD with its personal head taken away."""

    def build(self, net):
        return net

    def local(self, client):
        prior = client.data.counts.log()
        client.fit(lambda x, y: cross_entropy(client.net(x) + prior, y))
        return client.shared()

    def predict(self, client, x):
        return self.generic(client, x)


@dataclass(frozen=True)
class FromZero(FedRoD):
    """FedRoD whose personal heads begin at zero."""

    def build(self, net):
        net = super().build(net)
        for p in net.own.parameters():
            nn.init.zeros_(p)
        return net


def test_fedrod_shared_part_does_not_know_the_personal_head():
    a, b = (played(x, training=MOMENTUM) for x in (FedRoD(), OnlyGeneric()))
    assert same(model(a), model(b))


def test_fedrod_with_zero_personal_heads_begins_with_p_equal_g():
    first = played(FromZero()).events[1]
    assert first["t"] == 0
    assert first["P"] == first["G"]


def test_fedrod_with_one_example_per_class_is_cross_entropy():
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).numpy()
    y = torch.arange(3).numpy()
    federation = hp.federate([(x, y, x, y)] * 2)
    a, b = played("fedrod", federation), played("fedavg", federation)
    assert same(model(a), model(b))


def test_fedrod_absent_class_gets_no_gradient():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    prior = torch.tensor([5, 0, 2]).log()
    cross_entropy(logits + prior, torch.tensor([0, 2, 0, 2])).backward()
    assert torch.equal(logits.grad[:, 1], torch.zeros(4))
    assert bool((logits.grad[:, [0, 2]] != 0).all())


# FedReG -------------------------------------------------------------------------------------


def test_fedreg_balanced_to_the_maximum_split_is_origin():
    split, origin = (
        FedReG(threshold="max", augment="copy", weights=w) for w in ("split", "origin")
    )
    assert identical(played(split), played(origin))
    assert not identical(
        played(FedReG(augment="copy")), played(FedReG(augment="copy", weights="origin"))
    )


def test_fedreg_without_split_weights_has_origin_weights():
    a, b = (
        played(FedReG(augment="copy", variant="no_split_weights")),
        played(FedReG(augment="copy", weights="origin")),
    )
    assert identical(a, b)


def test_fedreg_letters_are_the_variants_and_are_stored_as_written(tmp_path):
    """A run folder that has a letter resumes; one letter is enough, all are looked up alike."""
    letter, word = (
        FedReG(augment="copy", variant="b"),
        FedReG(augment="copy", variant="no_own_head"),
    )
    assert identical(played(letter, out=tmp_path / "run"), played(word))
    assert 'variant = "b"' in (tmp_path / "run" / "config.toml").read_text()
    assert identical(played(letter, out=tmp_path / "run", resume=True), played(word))
    assert [FedReG(variant=k).ablation for k in "acd"] == [
        "no_split_weights",
        "no_balancing",
        "no_own_phase",
    ]


@pytest.mark.parametrize("settings", [{"variant": "e"}, {"variant": "b", "augment": "none"}])
def test_fedreg_checks_its_settings_with_and_without_a_letter(settings):
    with pytest.raises(hp.HeterophonyError, match="must be one of"):
        FedReG(**settings)


@pytest.fixture
def unbalanced(monkeypatch):
    """Let FedReG's balanced set be the original set; to the maximum, every example is kept."""
    monkeypatch.setattr(rebalancing, "rebalance", lambda samples, *_: samples)
    return {"threshold": "max"}


def test_fedreg_without_balancing_is_fedreg_on_the_original_set(unbalanced):
    assert identical(played(FedReG(**unbalanced)), played(FedReG(variant="no_balancing")))


def test_fedreg_heads_count_by_the_balanced_examples():
    def merged(**settings):
        return model(played(FedReG(augment="copy", **settings), rounds=1))

    by_size = {"weights": "rebalanced"}
    # to the minimum, every balanced example is one of the client's own
    assert same(merged(**by_size, threshold="min"), merged(threshold="min"))
    # without balancing, the balanced set is the original one
    assert same(merged(**by_size, variant="c"), merged(weights="origin", variant="c"))
    assert not same(merged(**by_size), merged())


def test_fedreg_balanced_to_the_minimum_augments_nothing(monkeypatch):
    monkeypatch.setattr(
        "heterophony.algorithms.parts.rebalancing.augment_images",
        lambda *_: pytest.fail("augmented"),
    )
    assert played(FedReG(threshold="min"), rounds=1).summary.rounds == 1


def test_fedreg_phase_one_may_train_both_heads():
    """Line 11 of the thesis: equal at first, both heads have the same gradient of their sum."""
    both, moved = {"augment": "copy", "own_phase": "both_heads"}, []

    def check(client, fit, loss, **how):
        fit(loss, **how)
        if how["phase"] == "own":
            now = hp.weights(client.net)
            moved.append(same(now.below("head."), now.below("own.")))

    result = played(watching(FedReG, check, **both), rounds=1, training=MOMENTUM)
    assert moved == [True] * 3
    assert not identical(result, played(FedReG(augment="copy"), rounds=1, training=MOMENTUM))
    one = {"augment": "copy", "variant": "no_own_head"}
    same_head = (FedReG(**one, own_phase="both_heads"), FedReG(**one))
    assert identical(*(played(x, rounds=1) for x in same_head))


def in_shared_phase(algorithm: type[hp.Algorithm], **settings) -> hp.Algorithm:
    """The algorithm, with the draws and the momentum of FedReG's shared phase."""

    def fit_as_shared(client, fit, loss, **how):
        fit(loss, **how, phase="generic")

    return watching(algorithm, fit_as_shared, **settings)


ONE_PHASE = {"variant": "no_own_phase", "weights": "origin"}


def test_fedreg_with_a_proximal_term_has_fedprox_as_its_limit(unbalanced):
    how = {"training": MOMENTUM, "head_depth": 1}
    ours = played(FedReG(**unbalanced, variant="no_own_phase", proximal=0.5), **how)
    assert identical(ours, played(in_shared_phase(FedProx, mu=0.5), **how))
    assert not identical(ours, played(in_shared_phase(FedProx, mu=0.0), **how))


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_fedreg_with_a_dynamic_term_has_feddyn_as_its_limit(unbalanced, net):
    how = {"training": MOMENTUM, "model": net, "weights": "uniform"}
    how |= {"head_depth": 1} if net == "mlp" else {"buffers": "average"}
    ours = played(FedReG(**unbalanced, **ONE_PHASE, dynamic=0.5), **how)
    assert identical(ours, played(in_shared_phase(FedDyn, alpha=0.5), **how))
    assert any("g" in memory(ours, c) for c in ours.plan.federation.clients)


def list_nets_after_shared_phase(training: hp.Training, **settings) -> list[hp.Tensors]:
    """The nets of the first round's clients, as they are sent."""
    nets = []

    def check(client, fit, loss, **how):
        fit(loss, **how)
        if how["phase"] == "generic":
            nets.append(hp.weights(client.net))

    algorithm = watching(FedReG, check, augment="copy", **settings)
    played(algorithm, rounds=1, training=training)
    return nets


def test_fedregs_terms_pull_towards_the_received_model():
    proximal, dynamic, none = (
        list_nets_after_shared_phase(MOMENTUM, **term)
        for term in ({"proximal": 0.5}, {"dynamic": 0.5}, {})
    )
    assert all(map(same, proximal, dynamic)), "without a correction yet, they are equal"
    assert not any(map(same, proximal, none)), "phase one has moved the base"
    assert all(same(a.only("own.*"), b.only("own.*")) for a, b in zip(proximal, none, strict=True))
    step = hp.Training(epochs=0, steps=1, batch=16, lr=0.05)
    near, free = (
        list_nets_after_shared_phase(step, variant="no_own_phase", proximal=mu) for mu in (7.0, 0.0)
    )
    assert all(map(same, near, free)), "the first step begins where the term is 0"


@pytest.mark.parametrize("term", ["proximal", "dynamic"])
def test_fedreg_with_a_term_of_0_is_fedreg(term):
    ours = played(FedReG(augment="copy", **{term: 0.0}), rounds=1)
    assert identical(ours, played(FedReG(augment="copy"), rounds=1))
    assert not any("g" in memory(ours, c) for c in ours.plan.federation.clients)


def test_fedreg_refuses_both_terms_at_once():
    with pytest.raises(
        hp.HeterophonyError, match=r"^algorithm.proximal: 0.1 cannot be combined with algorithm.dyn"
    ):
        played(FedReG(proximal=0.1, dynamic=0.1))


@pytest.mark.parametrize("variant", ["no_own_head", "no_own_phase"])
def test_fedreg_variants_with_one_head_have_p_equal_g(variant):
    result = played(FedReG(augment="copy", variant=variant))
    assert all(e["P"] == e["G"] for e in result.events if e["event"] == "evaluation")
    assert not any(k.startswith("own") for k in model(result))


@dataclass(frozen=True)
class Watched(FedReG):
    """FedReG that checks, around each phase, which bits moved."""

    def local(self, client):
        fit = client.fit

        def watched(loss=None, train=None, data=None, pull=None, phase="main"):
            before = hp.weights(client.net)
            fit(loss, train=train, data=data, pull=pull, phase=phase)
            after = hp.weights(client.net)
            still = {"own": "head.*", "generic": "own.*"}[phase]
            moved = {"own": "own.*", "generic": "head.*"}[phase]
            assert same(before.only(still), after.only(still))
            assert not same(before.only(moved), after.only(moved))
            assert not same(before.only("base.*"), after.only("base.*"))

        client.fit = watched
        return super().local(client)


def test_fedreg_phase_one_leaves_the_shared_head_and_phase_two_the_own_head():
    how = replace(MOMENTUM, lr=0.05)
    assert (
        played(Watched(augment="copy"), training=how, model="digitsnet", rounds=2).summary.rounds
        == 2
    )


@pytest.mark.parametrize(
    ("threshold", "scope", "target"),
    [
        ("mean", "class_nonzero", 5),  # of 1, 2, 6, 12: 21 / 4 = 5.25
        ("median", "class_nonzero", 4),
        ("max", "class_nonzero", 12),
        ("second_min", "class_nonzero", 2),
        ("min", "class_nonzero", 1),
        ("mean", "client_size", 3),  # of 21, 3, 15: 13, over 4 classes 3.25
        ("median", "client_size", 3),
        ("max", "client_size", 5),
        ("second_min", "client_size", 3),
        ("min", "client_size", 1),  # 3, over 4 classes 0.75: one at least
    ],
)
def test_fedreg_targets_and_effective_samples(threshold, scope, target):
    algorithm = FedReG(threshold=threshold, threshold_scope=scope, augment="copy")
    counts = [[1, 2, 6, 12], [3, 0, 0, 0], [5, 5, 5, 0]]
    parts = []
    for row in counts:
        y = torch.repeat_interleave(torch.arange(4), torch.tensor(row))
        x = torch.rand(len(y), 5, generator=torch.Generator().manual_seed(0))
        parts.append((x.numpy(), y.numpy(), x[:4].numpy(), y[:4].numpy()))
    result = played(Told(**algorithm.__dict__), hp.federate(parts), rounds=1, participation=1.0)
    kept = memory(result, "0")["told"]
    assert int(kept["target"]) == target
    assert int(kept["effective"]) == sum(min(n, target) for n in counts[0])
    assert kept["balanced"].tolist() == [target] * 4


@dataclass(frozen=True)
class Told(FedReG):
    """FedReG that remembers what it balanced to."""

    def local(self, client):
        out = super().local(client)
        balanced = client.once(rebalanced)
        client.memory["told"] = hp.Tensors(
            {
                "target": torch.tensor(compute_own_target(client, self.threshold)),
                "effective": out["fedreg/effective"],
                "balanced": balanced.count_classes(client.data.classes),
            }
        )
        return out


def rebalanced(data):
    raise AssertionError("it was computed before, in local training")


# Clusters, mixtures, generators, distillation -------------------------------------------------


def kept(result: hp.Result) -> list[dict[str, hp.Tensors]]:
    """What every client keeps at the end."""
    return [memory(result, c) for c in result.plan.federation.clients]


def equal_memories(a: hp.Result, b: hp.Result, *groups: str) -> bool:
    """Whether all clients keep the same bits in these groups."""
    both = zip(kept(a), kept(b), strict=True)
    return all(same(x[g], y[g]) for x, y in both for g in groups)


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_ifca_with_one_cluster_is_fedavg(net):
    how = {"training": MOMENTUM, "model": net, "rounds": 2}
    assert identical(played(IFCA(clusters=1), **how), played("fedavg", **how))


def test_cfl_without_a_split_is_fedavg():
    a, b = (played(x, training=MOMENTUM) for x in (CFL(eps1=0.0), FedAvg()))
    assert same(model(a), model(b))
    assert [m.keys() for m in kept(a)] == [m.keys() for m in kept(b)]
    assert all(same(x[g], y[g]) for x, y in zip(kept(a), kept(b), strict=True) for g in y)
    assert (counts(a, "G"), counts(a, "P")) == (counts(b, "G"), counts(b, "P"))


def test_feddbe_without_shift_and_distance_is_fedavg():
    a, b = (played(x, training=MOMENTUM) for x in (FedDBE(kappa=0.0, shifts=False), FedAvg()))
    assert same(model(a), model(b))
    assert (counts(a, "G"), counts(a, "P")) == (counts(b, "G"), counts(b, "P"))


def test_fedgen_without_weight_is_fedavg():
    a, b = (played(x, training=MOMENTUM) for x in (FedGen(alpha=0.0), FedAvg()))
    assert same(model(a).without("generator.*"), model(b))
    assert (counts(a, "G"), counts(a, "P")) == (counts(b, "G"), counts(b, "P"))


def test_feddistill_without_distillation_is_local():
    a, b = (
        played(x, training=MOMENTUM, participation=1.0) for x in (FedDistill(gamma=0.0), Local())
    )
    assert equal_memories(a, b, "net", "momentum/main")
    assert counts(a, "P") == counts(b, "P")


def test_fedfomo_with_only_its_own_model_is_local():
    alone = FedFomo(downloads=0, held_out=0.0)
    a, b = (played(x, training=MOMENTUM, participation=1.0) for x in (alone, Local()))
    for c, theirs in zip(b.plan.federation.clients, kept(b), strict=True):
        assert same(a._server.memory[f"model/{c}"], theirs["net"])
    assert counts(a, "P") == counts(b, "P")


def test_apple_with_fixed_one_hot_weights_is_local(monkeypatch):
    shares, plain = core_models.compute_example_shares, APPLE(weight_lr=0.0, scale_lr=False)
    monkeypatch.setattr(
        core_models, "compute_example_shares", lambda c: torch.eye(len(shares(c)))[0]
    )
    a, b = (played(x, training=MOMENTUM, participation=1.0) for x in (plain, Local()))
    for c, theirs in zip(b.plan.federation.clients, kept(b), strict=True):
        assert same(a._server.memory[f"core/{c}"], theirs["net"])
    assert counts(a, "P") == counts(b, "P")


def test_apple_with_one_client_is_local_whatever_the_pull():
    alone, how = digits(clients=1, examples=80), {"training": MOMENTUM, "rounds": 2}
    a, b = (played(x, alone, **how) for x in (APPLE(weight_lr=0.0, mu=7.0), Local()))
    assert same(a._server.memory["core/0"], memory(b, "0")["net"])


def test_apple_whose_downloads_reach_all_others_is_apple():
    a, b = (played(APPLE(downloads=m), participation=1.0) for m in (5, None))
    assert identical(a, b)


def test_apples_scaled_gradient_is_its_own_with_one_client():
    alone = digits(clients=1, examples=80)
    a, b = (played(APPLE(scale_lr=scaled), alone, rounds=2) for scaled in (True, False))
    assert identical(a, b)


def test_apple_with_fixed_weights_makes_the_step_of_fedavg():
    """Equal clients: all core models move by the rate, their mean as far as FedAvg's model."""
    federation = hp.federate(blobs([40] * 5), seed=0)
    once = hp.Training(steps=1, batch=64, lr=0.05, momentum=0.0)
    how = {"rounds": 1, "participation": 1.0, "training": once}
    a, b = (played(x, federation, **how) for x in (APPLE(weight_lr=0.0), FedAvg()))
    cores = [a._server.memory[f"core/{c}"] for c in federation.clients]
    mean = hp.mix(cores, [1 / 5] * 5)
    assert all(torch.allclose(v, mean[k], atol=1e-6) for k, v in model(b).items())
    moved = model(b) - b.plan.create_initial_server().model
    assert max(float(v.abs().max()) for v in moved.values()) > 1e-4


# Methods of 2021 to 2024 ----------------------------------------------------------------------


def test_knnper_without_neighbours_is_fedavg():
    assert identical(
        played(KNNPer(lam=0.0), training=MOMENTUM), played("fedavg", training=MOMENTUM)
    )


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_fedem_with_one_component_is_fedavg(net):
    how = {"training": MOMENTUM, "model": net, "rounds": 2}
    assert identical(played(FedEM(components=1), **how), played("fedavg", **how))


def test_fedas_without_alignment_is_fedper():
    plain = FedAS(align_epochs=0, weight="agreed")
    assert identical(played(plain, training=MOMENTUM), played("fedper", training=MOMENTUM))


def test_fedetf_without_personalisation_has_p_equal_g():
    result = played(FedETF(tune_turns=0, tune_every=1), training=MOMENTUM)
    assert counts(result, "P") == counts(result, "G")


def test_fedetf_without_projection_trains_the_base_of_fixhead(monkeypatch):
    """Both have the balanced loss under fixed directions; FixHead's personal head is beside it."""
    monkeypatch.setattr(fedetf, "ProjectedFeatures", lambda *_: ScaledFeatures(4.0))
    a, b = (played(x, training=MOMENTUM) for x in (FedETF(tune_turns=0), "fixhead"))
    assert same(model(a), model(b))
    assert counts(a, "G") == counts(b, "G")


def test_pfedfda_without_sharing_is_a_local_gaussian_head():
    """With β = 1, P is of the posterior of Gaussians fitted to the client's own features: its closed form."""
    result = played(PFedFDA(beta=1.0, ridge=0.1), digits(alpha=100.0), participation=1.0)
    client, how = client_after(result), result.plan.algorithm
    z, y = client.features().double().numpy(), client.data.train.labels.numpy()
    means = np.stack([z[y == c].mean(0) for c in range(10)])
    within = sum(np.outer(v - means[c], v - means[c]) for v, c in zip(z, y, strict=True))
    covariance = within / (len(z) - 1) + 0.1 * np.eye(z.shape[1])
    covariance = (1 - 1e-4) * covariance + 1e-4 * np.trace(covariance) / len(covariance) * np.eye(
        len(covariance)
    )
    prior = np.bincount(y, minlength=10) / len(y) + 1e-4
    x, _ = client.data.test.batch(torch.arange(len(client.data.test)))
    with torch.inference_mode():
        features = client.net.base(x).double().numpy()
        how.adapt(client)
        found = how.predict(client, x).double().log_softmax(1)
    away = features[:, None] - means
    squares = np.einsum("ncd,de,nce->nc", away, np.linalg.inv(covariance), away)
    expected = torch.from_numpy(-0.5 * squares + np.log(prior)).log_softmax(1)
    assert torch.allclose(found, expected, atol=1e-3)
    assert min(np.bincount(y, minlength=10)) >= 3


def test_pfedfda_with_the_common_estimates_alone_keeps_them():
    """With β = 0 nobody's estimates are sent, so that the initial ones stay."""
    result = played(PFedFDA(beta=0.0), participation=1.0)
    start = result.plan.create_initial_server().model
    after = model(result)
    assert same(after.only("head.*"), start.only("head.*"))
    assert not same(after.only("base.*"), start.only("base.*"))


@pytest.mark.parametrize("algorithm", [PFedHN, PeFLL], ids=["pfedhn", "pefll"])
def test_without_features_a_hypernetwork_moves_as_fedavg(algorithm, monkeypatch):
    """Then only its biases are trained: FedAvg's step, by equal weights and a rate of 1."""
    compute = hypernetworks.compute_features
    monkeypatch.setattr(hypernetworks, "compute_features", lambda w, v: 0 * compute(w, v))
    plain = algorithm(server_lr=1.0, server_momentum=0.0)
    a, b = played(plain, training=MOMENTUM), played("fedavg", training=MOMENTUM, weights="uniform")
    assert all(torch.allclose(v, model(b)[k], atol=1e-5) for k, v in model(a).items())


@pytest.mark.parametrize("net", ["mlp", net_with_batch_norm])
def test_floco_with_one_corner_is_fedavg(net):
    how = {"training": MOMENTUM, "model": net, "rounds": 2}
    assert identical(played(Floco(vertices=1, tau=1), **how), played("fedavg", **how))


def test_pefll_of_one_embedding_is_pfedhn_of_one_embedding(monkeypatch):
    """If every client has the same embedding, which is not trained, both rules are the same step."""
    one = torch.tensor([0.5, -1.0])
    for module, name in ((pefll, "embed_client"), (pfedhn, "get_embedding")):
        monkeypatch.setattr(module, name, lambda *_: one)
    draws = hypernetworks.create_hypernetwork

    def create(*of):
        with seeded("equal"):
            return draws(*of)

    monkeypatch.setattr(hypernetworks, "create_hypernetwork", create)
    a, b = (played(x(embedding=2), training=MOMENTUM) for x in (PeFLL, PFedHN))
    assert same(model(a), model(b))
    assert counts(a, "P") == counts(b, "P")


# The loop -----------------------------------------------------------------------------------


def test_what_is_not_trained_cannot_move_even_with_decay_and_momentum():
    @dataclass(frozen=True)
    class BaseOnly(hp.Algorithm):
        def local(self, client):
            client.fit(lambda x, y: cross_entropy(client.net(x), y))  # fills the momentum
            before = hp.weights(client.net)
            client.fit(lambda x, y: cross_entropy(client.net(x), y), train=client.net.base)
            assert same(before.only("head.*"), hp.weights(client.net).only("head.*"))
            assert not same(before.only("base.*"), hp.weights(client.net).only("base.*"))
            return client.shared()

    assert played(BaseOnly(), training=replace(MOMENTUM, weight_decay=0.1)).summary.rounds == 3


def test_momentum_persists_or_is_reset():
    persist = played("fedavg", training=MOMENTUM)
    reset = played("fedavg", training=replace(MOMENTUM, momentum_state="reset"))
    assert set(memory(persist, persist.events[-3]["clients"][0])) == {"momentum/main"}
    assert all(memory(reset, c) == {} for c in reset.plan.federation.clients)
    assert not identical(persist, reset)


def test_a_small_client_trains_on_its_one_short_batch_and_others_drop_the_last():
    seen: dict[str, list[int]] = {}

    @dataclass(frozen=True)
    class Counting(hp.Algorithm):
        def local(self, client):
            def loss(x, y):
                seen.setdefault(client.id, []).append(len(y))
                return cross_entropy(client.net(x), y)

            client.fit(loss)
            return client.shared()

    x = torch.rand(60, 5).numpy()
    y = (torch.arange(60) % 3).numpy()
    parts = [(x[:n], y[:n], x[:3], y[:3]) for n in (7, 16, 40)]
    played(Counting(), hp.federate(parts), rounds=1, participation=1.0)
    assert seen == {"0": [7], "1": [16], "2": [16, 16]}
    seen.clear()
    how = replace(QUICK, drop_last=False, epochs=2)
    played(Counting(), hp.federate(parts), rounds=1, participation=1.0, training=how)
    assert seen == {"0": [7, 7], "1": [16, 16], "2": [16, 16, 8] * 2}


def test_batch_norm_skips_a_batch_of_one_and_learns_from_the_rest():
    federation = digits()
    small = {c: federation.train[c][:17] for c in federation.clients}  # 16 + 1
    how = replace(QUICK, drop_last=False)
    result = played(
        "fedavg", replace(federation, train=small), model=net_with_batch_norm, training=how
    )
    assert not same(model(result), result.plan.create_initial_server().model)


def test_local_and_fedper_have_no_copied_defaults():
    assert Local(clients="all").everybody
    assert not Local().everybody
    assert not FedPer().everybody
