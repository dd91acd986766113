"""Known defects of other platforms: that we do not have them, and that we would notice if we did.

Every defect is a *check* of what is right and a way to *put it back*. The check passes on the code
as it is, and the same check fails once the defect is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, gumbel_softmax

import heterophony as hp
from helpers.support import (
    QUICK,
    Turns,
    blobs,
    digits,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    watching,
)
from heterophony.algorithms import (
    apfl,
    cfl,
    feddbe,
    feddistill,
    fedfomo,
    fedgen,
    fednova,
    fedpac,
    floco,
    flora,
    ifca,
    knnper,
    pefll,
    pfedfda,
    pfedgate,
)
from heterophony.algorithms import fedcp as fedcp_file
from heterophony.algorithms.apfl import APFL
from heterophony.algorithms.apple import APPLE
from heterophony.algorithms.cfl import CFL
from heterophony.algorithms.ditto import Ditto
from heterophony.algorithms.fedadam import FedAdam
from heterophony.algorithms.fedala import FedALA
from heterophony.algorithms.fedamp import FedAMP
from heterophony.algorithms.fedas import FedAS
from heterophony.algorithms.fedavg import FedAvg
from heterophony.algorithms.fedavgm import FedAvgM
from heterophony.algorithms.fedbabu import FedBABU
from heterophony.algorithms.fedbn import FedBN
from heterophony.algorithms.fedcac import FedCAC
from heterophony.algorithms.fedcp import FedCP
from heterophony.algorithms.feddbe import FedDBE
from heterophony.algorithms.feddistill import FedDistill
from heterophony.algorithms.feddyn import FedDyn
from heterophony.algorithms.fedem import FedEM
from heterophony.algorithms.fedetf import FedETF
from heterophony.algorithms.fedfomo import FedFomo
from heterophony.algorithms.fedgen import FedGen
from heterophony.algorithms.fednova import FedNova
from heterophony.algorithms.fedpac import FedPAC
from heterophony.algorithms.fedproto import FedProto
from heterophony.algorithms.fedprox import FedProx
from heterophony.algorithms.fedreg import FedReG
from heterophony.algorithms.fedrep import FedRep
from heterophony.algorithms.fedrod import FedRoD
from heterophony.algorithms.fedyogi import FedYogi
from heterophony.algorithms.floco import Floco
from heterophony.algorithms.gpfl import GPFL
from heterophony.algorithms.ifca import IFCA
from heterophony.algorithms.knnper import KNNPer
from heterophony.algorithms.lgfedavg import LGFedAvg
from heterophony.algorithms.local import Local
from heterophony.algorithms.parts import clusters as held_out
from heterophony.algorithms.parts import hypernetworks, rebalancing
from heterophony.algorithms.parts.clusters import compute_loss
from heterophony.algorithms.parts.layers import forward_gated, pack_bits, split_into_blocks
from heterophony.algorithms.parts.mixing import CoreWeights, choose_downloads
from heterophony.algorithms.parts.rebalancing import compute_statistic
from heterophony.algorithms.pefll import PeFLL
from heterophony.algorithms.perfedavg import PerFedAvg
from heterophony.algorithms.pfedgate import PFedGate
from heterophony.algorithms.pfedhn import PFedHN
from heterophony.algorithms.pfedme import PFedMe
from heterophony.algorithms.pfedsd import PFedSD
from heterophony.algorithms.scaffold import Scaffold
from heterophony.config import checkpoint
from heterophony.core import algorithm as vocabulary
from heterophony.core import client as device
from heterophony.core.algorithm import Algorithm, Client, Reply, Server
from heterophony.core.client import TrainingPass
from heterophony.core.errors import ConfigError, DivergedError
from heterophony.core.randomness import seeded
from heterophony.core.samples import ClientData
from heterophony.core.tensors import Tensors
from heterophony.engines import base
from heterophony.engines.base import Serial, sort_jobs
from heterophony.jobs import evaluation, plan, work
from heterophony.jobs.plan import Job
from heterophony.models import get_model_builder
from heterophony.population.participation import Uniform
from heterophony.runs import loop, summary
from heterophony.runs.folder import RunFolder

Patch = pytest.MonkeyPatch
Putting = Callable[[Patch], None]
Batch = tuple[torch.Tensor, torch.Tensor]
PLAIN = hp.Training(epochs=2, batch=8, lr=0.1, momentum=0.0)


@dataclass(frozen=True)
class Defect:
    """What is wrong elsewhere, how it is noticed, how it is put back, and what notices it."""

    name: str
    check: Callable[[], None]
    put_back: Putting
    noticed: type[Exception] = AssertionError


# By hand ------------------------------------------------------------------------------------


def client_of(
    how: Algorithm,
    kept: Mapping[str, hp.Tensors] | None = None,
    extra: hp.Tensors | None = None,
    federation: hp.Federation | None = None,
    training: hp.Training = PLAIN,
    net: str | Callable[[], hp.Net] = "mlp",
) -> Client:
    """Client 0 before its round: what it kept, and, beside the model, what else it received."""
    made = played(how, federation, rounds=0, training=training, model=net).plan
    sent = how.send(made.create_initial_server(), "0") | (extra or {})
    return made.build_client(Job(kind="train", t=0, client="0", tensors=sent), kept or {}, None)


def trained(how: Algorithm, client: Client) -> tuple[hp.Tensors, list[list[Batch]]]:
    """What the client sends up, and the mini-batches of each ``fit``, update by update."""
    fit, fits = client.fit, list[list[Batch]]()

    def watched(loss=None, *args, **rest):
        fits.append(seen := [])
        told = loss or client.compute_net_loss
        fit(lambda x, y: (seen.append((x, y)), told(x, y))[1], *args, **rest)

    client.fit = watched
    return how.local(client), fits


def slope(net: nn.Module, w: hp.Tensors, x: torch.Tensor, y: torch.Tensor) -> hp.Tensors:
    """The gradient of the plain loss at ``w``."""
    live = w.map(lambda p: p.detach().clone().requires_grad_())
    cross_entropy(functional_call(net, dict(live), (x,)), y).backward()
    return live.map(lambda p: p.grad)


def close(a: hp.Tensors, b: hp.Tensors, within: float = 1e-6) -> bool:
    return a.keys() == b.keys() and all(
        torch.allclose(v, b[k], rtol=0, atol=within) for k, v in a.items()
    )


def one(name: str, *values: float) -> hp.Tensors:
    return hp.Tensors({name: torch.tensor(values)})


def reply(client: str, tensors: hp.Tensors, samples: int = 1) -> Reply:
    return Reply(client, "train", tensors, samples, samples)


def refused(error: type[Exception], act: Callable[[], object]) -> bool:
    """Is it an error? (pytest.raises would not say so by an AssertionError.)"""
    try:
        act()
    except error:
        return True
    return False


# What arrives is loaded whole or not at all -------------------------------------------------


def received(change: Callable[[hp.Tensors], hp.Tensors]) -> Client:
    made = played("fedavg", rounds=0).plan
    return made.build_client(
        Job(kind="train", t=0, client="0", tensors=change(made.create_initial_server().model)),
        {},
        None,
    )


def check_what_did_not_arrive_is_an_error():
    assert refused(KeyError, lambda: received(lambda w: w.without("head.0.bias")))


def check_what_nobody_knows_is_an_error():
    assert refused(KeyError, lambda: received(lambda w: w | one("head.9.bias", 0.0)))


def check_another_shape_is_an_error():
    assert refused(RuntimeError, lambda: received(lambda w: w | one("head.0.bias", 0.0)))


def nothing_is_missed(patch: Patch) -> None:
    """strict=False: a tensor that is missing keeps its random start, and nobody is told."""
    patch.setattr(device, "check_all_received", lambda names, given: None)


def what_fits_is_loaded(patch: Patch) -> None:
    """Only tensors of known name and shape are copied; whole layers stay untrained in silence."""
    patch.setattr(device, "load_into_net", fitting)


def fitting(net: nn.Module, tensors: hp.Tensors) -> None:
    own = net.state_dict()
    fits = {k: v for k, v in tensors.items() if k in own and v.shape == own[k].shape}
    net.load_state_dict(fits, strict=False)


def check_a_checkpoint_fits_or_is_refused():
    build = partial(get_model_builder("mlp"), (1, 8, 8), 10, 1)
    whole = hp.state(build())
    first = next(k for k in whole if k.startswith("base."))
    for change in (whole.without(first), whole | one("base.more", 0.0), whole | one(first, 0.0)):
        assert refused(
            ConfigError, partial(checkpoint.build_from_checkpoint, build, change, "x.safetensors")
        )
    assert same(hp.state(checkpoint.build_from_checkpoint(build, whole, "x.safetensors")), whole)


def a_checkpoint_is_loaded_where_it_fits(patch: Patch) -> None:
    """A warm start from another model's file: hardly anything is loaded, and it looks as if."""

    def started(build, checkpoint, path):
        net = build()
        fitting(net, checkpoint)
        return net

    patch.setattr(checkpoint, "build_from_checkpoint", started)


def check_replies_that_differ_are_not_averaged():
    start = hp.Tensors({"w": torch.zeros(2)})
    server = Server(0, {"a": 1, "b": 1}, start)
    full = reply("a", one("w", 1.0, 2.0))
    others = (one("v", 1.0, 2.0), one("w", 1.0, 2.0) | one("v", 1.0), one("w", 1.0))
    for other in others:
        both = [full, reply("b", other)]
        assert refused(ValueError, partial(FedAvg().merge, server, both))
    after = FedAvg().merge(server, [full, reply("b", one("w", 3.0, 4.0))])
    assert after.model["w"].tolist() == [2.0, 3.0]


def replies_are_averaged_as_far_as_they_go(patch: Patch) -> None:
    """Sums over the first reply's names, broadcasting: what does not fit is dropped or spread."""

    def mix(items, shares):
        pairs = list(zip(items, shares, strict=True))
        return hp.Tensors({k: sum(s * i.get(k, 0.0) for i, s in pairs) for k in items[0]})

    patch.setattr(vocabulary, "mix", mix)


# FedBN --------------------------------------------------------------------------------------


def check_every_batch_norm_stays():
    for name, number in (("resnet8", 9), ("resnet10", 12)):
        net = get_model_builder(name)((3, 32, 32), 10, 1)
        norms = {k for k, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
        travels = {k.rpartition(".")[0] for k in FedBN().shared(net, 0, buffers=True)}
        assert any(k.endswith("downsample.1") for k in norms)
        assert len(norms) == len(norms - travels) == number


def batch_norm_is_told_by_its_name(patch: Patch) -> None:
    """'bn' in name: the shortcut's norm is called downsample.1, and is averaged."""
    # our stem and shortcuts have numbers for names, blocks have bn1 and bn2
    patch.setattr(FedBN, "stays", lambda self, net: ["*bn*"])


# Terms of the loss --------------------------------------------------------------------------


def check_the_pull_is_in_the_gradient(how: Algorithm, strength: float, part: str = "") -> None:
    """Every update is w - lr (∇f(w) + strength (w - received))."""
    client = client_of(how)
    net = client.net.get_submodule(part)
    anchor = w = hp.weights(net)
    for x, y in trained(how, client)[1][0]:
        w = w - PLAIN.lr * (slope(net, w, x, y) + strength * (w - anchor))
    assert close(hp.weights(net), w)


PULLED = [
    (FedProx(mu=1.0), 1.0, ""),
    (FedAMP(lam=1.0, alpha=1.0), 1.0, ""),
    (Ditto(own_epochs=2), 1.0, "own"),
    (PFedMe(lam=3.0, own_lr=PLAIN.lr, local_lr=0.0), 3.0, ""),
]


def the_term_is_built_from_data(patch: Patch) -> None:
    """`.data` in the penalty: the printed loss has it, the gradient has not; FedAMP is Local."""
    patch.setattr(TrainingPass, "add_pull", lambda given: None)


def check_fedprox_without_pull_is_fedavg():
    assert QUICK.momentum > 0
    assert same(model(played(FedProx(mu=0.0), rounds=2)), model(played("fedavg", rounds=2)))


def fedprox_has_an_optimiser_of_its_own(patch: Patch) -> None:
    """An own optimiser without momentum: what is compared with FedAvg is not the pull."""
    train = FedProx.local

    def local(self, client):
        client.training = replace(client.training, momentum=0.0)
        return train(self, client)

    patch.setattr(FedProx, "local", local)


def check_feddyn_locally():
    """p.grad += α (p - received) - g, and g goes down by α times the whole move."""
    how = FedDyn(alpha=0.5)
    g = hp.weights(client_of(how).net).map(lambda v: 0.1 * torch.ones_like(v))
    client = client_of(how, {"g": g})
    start = w = hp.weights(client.net)
    for x, y in trained(how, client)[1][0]:
        w = w - PLAIN.lr * (slope(client.net, w, x, y) + 0.5 * (w - start) - g)
    assert close(hp.weights(client.net), w)
    assert close(client.memory["g"], g - 0.5 * (w - start))


def feddyn_does_not_square(patch: Patch) -> None:
    """The norm where its square belongs: a pull of constant size, however far away."""
    train = FedDyn.local
    patch.setattr(FedDyn, "local", lambda self, client: train(replace(self, norm="plain"), client))


def feddyn_has_the_other_sign(patch: Patch) -> None:
    """+⟨g, θ⟩: the correction doubles the drift that it should cancel."""
    train = FedDyn.local

    def local(self, client):
        client.memory["g"] = -1 * client.memory["g"]
        return train(self, client)

    patch.setattr(FedDyn, "local", local)


def check_the_state_is_a_mean_over_all_clients():
    """FedDyn's s and SCAFFOLD's c: two of four clients took part, so two shares of a quarter."""
    sizes = dict.fromkeys("abcd", 1)
    said = [reply("a", one("w", 2.0)), reply("b", one("w", 4.0))]
    after = FedDyn(alpha=0.5).merge(Server(0, sizes, one("w", 0.0)), said)
    assert after.memory["s"]["w"].tolist() == [-0.5 / 4 * 6.0]
    assert after.model["w"].tolist() == [3.0 + 6.0 / 4]
    shifted = [replace(r, tensors=r.tensors | one("control/w", 2.0)) for r in said]
    after = Scaffold().merge(Server(0, sizes, one("w", 0.0)), shifted)
    assert after.memory["control"]["w"].tolist() == [1.0]
    assert after.model["w"].tolist() == [3.0]


def the_state_is_divided_by_the_participants(cls: type[Algorithm]) -> Putting:
    """m instead of N: with few participants the state grows N / m times too fast."""

    merge = cls.merge

    def few(self, server, replies):
        return merge(self, replace(server, samples={r.client: 1 for r in replies}), replies)

    return lambda patch: patch.setattr(cls, "merge", few)


# Order --------------------------------------------------------------------------------------


class Backwards(Serial):
    """An engine whose last job is ready first."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in sort_jobs(jobs)[::-1]:
            yield from super().run([job])


def check_it_does_not_matter_who_is_ready_first(name: str = "fedpac") -> None:
    runs = []
    for engine in (Serial, Backwards):
        with Patch.context() as patch, torch.random.fork_rng(devices=[]):
            patch.setattr(base, "Serial", engine)
            torch.manual_seed(0)
            runs.append(played(name, rounds=2, participation=1.0))
    said = [[(e["clients"], e["P_local"]) for e in r.events if e["event"] == "round"] for r in runs]
    assert said[0] == said[1]
    assert said[0][0][0] == list(digits().clients)
    assert identical(*runs)


def replies_stay_in_the_order_of_arrival(patch: Patch) -> None:
    """Whoever is ready first is first in the sum: other bits in each run on a pool."""

    class Arrived(list):
        def sort(self, **how):
            pass

    patch.setattr(loop, "list", Arrived, raising=False)


def fedpac_reply(client: str, head: float, variance: float, centre: float, held: float) -> Reply:
    said = {"variance": variance, "weighted": [[0.0]], "centres": [[centre]], "held": [held]}
    extras = hp.Tensors({f"fedpac/{k}": torch.tensor(v) for k, v in said.items()})
    return reply(client, one("base.w", 0.0) | one("head.w", head) | extras, 10)


def check_fedpacs_heads_and_statistics_belong_together():
    """Shares are inverse to variances, 3 : 1; centres are means over examples, 1 and 3 of them."""
    start = one("base.w", 0.0) | one("head.w", 9.0)
    said = [fedpac_reply("3", 1.0, 0.1, 1.0, 1.0), fedpac_reply("6", 5.0, 0.3, 4.0, 3.0)]
    after = FedPAC().merge(Server(0, dict.fromkeys("0123456", 10), start), said)
    assert {k for k in after.memory if "/" in k} == {"head/3", "head/6"}
    for c in "36":
        assert float(after.memory[f"head/{c}"]["head.w"]) == pytest.approx(2.0)
    assert after.memory["centres"]["fedpac/centres"].tolist() == [[3.25]]


def check_fedpacs_shares_sum_to_one():
    """The third variance is so large that its share is cut off; all heads are 8, so 8 it stays."""
    start = one("base.w", 0.0) | one("head.w", 8.0)
    said = [fedpac_reply(c, 8.0, v, 0.0, 1.0) for c, v in zip("012", (1, 1, 2000), strict=True)]
    after = FedPAC().merge(Server(0, dict.fromkeys("012", 10), start), said)
    assert [after.memory[f"head/{c}"]["head.w"].tolist() for c in "012"] == [[8.0]] * 3


def cut_shares_are_not_renormalised(patch: Patch) -> None:
    """Small shares are set to zero and the rest is left as it is: every head shrinks a little."""

    def mixtures(variances, weighted):
        form = torch.stack(variances).double().diag()  # here all H are equal
        rows = [fedpac.minimise_on_simplex(form, start=i) for i in range(len(form))]
        return [torch.where(a < 1e-3, 0.0, a).tolist() for a in rows]

    patch.setattr(fedpac, "solve_head_mixtures", mixtures)


def statistics_are_in_another_order_than_heads(patch: Patch) -> None:
    """Statistics as they arrived, heads by client: everybody gets a mixture meant for others."""
    mixtures = fedpac.solve_head_mixtures
    patch.setattr(fedpac, "solve_head_mixtures", lambda v, h: mixtures(v[::-1], h[::-1]))


def centres_are_plain_means(patch: Patch) -> None:
    """A class's centre counts the same from one example as from a thousand."""
    merge = FedPAC.merge

    def equal(self, server, replies):
        said = [r.tensors | {"fedpac/held": r.tensors["fedpac/held"].sign()} for r in replies]
        both = zip(replies, said, strict=True)
        return merge(self, server, [replace(r, tensors=s) for r, s in both])

    patch.setattr(FedPAC, "merge", equal)


# What a client goes on from -----------------------------------------------------------------


def check_it_goes_on_from_what_was_sent_last(cls: type[Algorithm]) -> None:
    """Clients miss rounds: to train and to predict they take the newest, not their last."""

    def check(client, fit, loss, *args, **how):
        sent = client.received.without("*/*")
        if (client.t, client.id) not in begun:  # clients of a group take turns
            begun.append((client.t, client.id))
            assert same(hp.state(client.net).only(*sent), sent)
        fit(loss, *args, **how)

    begun: list[tuple[int, str]] = []
    result = played(watching(cls, check), participation=Turns([0, 1], [1, 2], [0, 2]))
    assert sorted(begun) == [(0, "0"), (0, "1"), (1, "1"), (1, "2"), (2, "0"), (2, "2")]
    for c in digits().clients:
        sent = result.plan.algorithm.send(result._server, c).without("*/*")
        assert same(hp.state(result.personal(c).net).only(*sent), sent)


def a_client_goes_on_from_its_own(cls: type[Algorithm], training: bool) -> Putting:
    """The client's own of its last round is trained, or else tuned and tested, not what was sent.

    FedBABU and FedRep then tune stale bodies, FedRoD and FedAMP never see the federation: Local.
    """
    train, adapt = cls.local, cls.adapt

    def go_back(client: Client) -> None:
        device.load_into_net(client.net, client.memory.get("body", hp.Tensors()))

    def local(self, client):
        if training:
            go_back(client)
        up = train(self, client)
        client.memory["body"] = client.shared()
        return up

    def tuned(self, client):
        if not training:
            go_back(client)
        adapt(self, client)

    def put_back(patch: Patch) -> None:
        patch.setattr(cls, "local", local)
        patch.setattr(cls, "adapt", tuned)

    return put_back


def fedbabu_freezes_the_wrong_part(patch: Patch) -> None:
    """Fine-tuning trains the base under the random head that it was to replace."""
    patch.setattr(FedBABU, "adapt", lambda self, c: c.fit(train=c.net.base, epochs=1, phase="tune"))


def check_what_is_frozen_does_not_move():
    """FedRep under weight decay and momentum: the base rests, then the head."""

    def check(client, fit, loss, train, **how):
        resting = "base.*" if train is client.net.head else "head.*"
        before = hp.weights(client.net)
        fit(loss, train=train, **how)
        assert same(hp.weights(client.net).only(resting), before.only(resting))
        assert not same(hp.weights(client.net), before)

    how = replace(QUICK, weight_decay=0.1)
    played(watching(FedRep, check, head_epochs=1), rounds=2, training=how)


def frozen_means_a_gradient_of_zero(patch: Patch) -> None:
    """With a gradient of zero, weight decay and old momentum still move the parameter."""
    fit = Client.fit

    def zeroing(self, loss=None, train=None, **how):
        learns = {id(p) for p in device.iterate_parameters(self.net if train is None else train)}

        def zero(w):
            named = self.net.named_parameters()
            return hp.Tensors({k: -p.grad for k, p in named if id(p) not in learns})

        fit(self, loss, pull=zero, **how)

    patch.setattr(Client, "fit", zeroing)


# Measuring ----------------------------------------------------------------------------------


def check_g_and_p_have_a_list_each():
    result = played("ditto")
    start, tests = result.events[0], sum(result.events[0]["test"])
    measured = [e for e in result.events if e["event"] == "evaluation"]
    lines = summary.compute_curves(result.events)
    for what in "GP":
        assert lines[what] == [(e["t"], sum(e[what]) / tests) for e in measured]
    assert lines["G"] != lines["P"]
    after = [(e["t"] + 1, e["P_local"]) for e in result.events if e["event"] == "round"]
    pooled = [(t, sum(r for r, _ in own) / sum(n for _, n in own)) for t, own in after]
    assert lines["P_local"] == pooled
    for what, accuracy in (("G", result.G), ("P", result.P)):
        assert accuracy.best == max(sum(e[what]) / tests for e in measured)
        assert accuracy.last == sum(measured[-1][what]) / tests
    assert start["rounds"] + 1 == len(lines["P"])


def metrics_share_a_list(other: str) -> Putting:
    """Two accuracies are appended to one list whose best is then 'P': the larger of the two."""
    curves = summary.compute_curves

    def mixed(events, *how):
        lines = curves(events, *how)
        return {**lines, "P": sorted(lines["P"] + lines[other])}

    return lambda patch: patch.setattr(summary, "compute_curves", mixed)


ODD = np.array([0, 1] * 8 + [2])  # class 2 once, as the last of 17; class 3 is the other client's


def odd_federation() -> hp.Federation:
    (x, _), (z, _) = blobs([17, 17])
    return hp.federate([(x, ODD, x, ODD), (z, np.full(17, 3), z, np.full(17, 3))])


def check_every_example_counts_and_no_loss_is_infinite():
    """FedRoD adds log counts: of a class that is held they are finite, also where it is rare."""
    federation, how = odd_federation(), hp.Training(epochs=8, batch=16, lr=0.05)
    result = played(FedRoD(), federation, rounds=1, participation=Turns([0]), training=how)
    assert all(isfinite(e["loss"]["main"]) for e in result.events if e["event"] == "round")
    assert federation.data("0").counts.tolist() == [8, 8, 1, 0]
    start, after = result.plan.create_initial_server().model, model(result)
    moved = (after["head.0.weight"] != start["head.0.weight"]).any(1)
    assert moved.tolist() == [True, True, True, False]  # an absent class has no gradient at all


def counted_through_the_loader(patch: Patch) -> None:
    """Labels counted through the loader that drops a short batch: log 0 for one that is there."""

    def counts(self):
        kept = len(self.train) // 16 * 16
        return torch.bincount(self.train.labels[:kept], minlength=self.classes)

    patch.setattr(ClientData, "counts", property(counts))


def check_fedregs_threshold_is_of_the_classes_that_are_held():
    client = client_of(FedReG(), federation=odd_federation())
    targets = {"mean": 5, "max": 8, "median": 8, "second_min": 8}
    assert {k: rebalancing.compute_own_target(client, k) for k in targets} == targets


def absent_classes_are_in_the_threshold(patch: Patch) -> None:
    """Zeros among the counts: most clients hold few classes, and nearly all data are cut away."""

    def compute_target(client, threshold):
        return max(1, int(compute_statistic(client.data.counts, threshold)))

    patch.setattr(rebalancing, "compute_own_target", compute_target)


def check_an_answer_does_not_depend_on_its_batch():
    result = played("pfedgate", digits(clients=2, examples=160), participation=1.0)
    own = result.personal("0")
    x, _ = result.plan.federation.data("0").test.batch(torch.arange(10))
    with torch.no_grad():
        together, alone = own(x), torch.cat([own(v[None]) for v in x])
        turned = own(x.flip(0)).flip(0)
    assert torch.allclose(alone, together, atol=1e-5)
    assert torch.allclose(turned, together, atol=1e-5)
    assert (together < 0).any()  # logits as they are


def gates_look_at_the_batch(patch: Patch) -> None:
    """The gate averages over the test batch: accuracy depends on its size and on the others."""

    def predict(self, client, x):
        cut = split_into_blocks(client.net, self.pieces)
        gates, _ = self.compute_gates(cut, *(v.mean(0) for v in client.net.gate(x)))
        return forward_gated(client.net, cut, gates, hp.weights(client.net), x)

    patch.setattr(PFedGate, "predict", predict)


def answers_are_cut_at_zero(patch: Patch) -> None:
    """ReLU after the last layer of the gated network: half of all logits have no gradient."""
    patch.setattr(pfedgate, "forward_gated", lambda *args: forward_gated(*args).relu())


def check_a_teacher_is_still():
    """pFedSD: what the teacher says of an example is the same in every batch and every time."""
    how = PFedSD()
    client = client_of(how, net=net_with_batch_norm)
    client.memory["own"] = hp.state(client.net)
    client.net.train()
    x, _ = client.data.train.batch(torch.arange(8))
    said = [how.run_teacher(client, v) for v in (x, x, x[:3])]
    assert torch.equal(said[0], said[1])
    assert torch.allclose(said[2], said[0][:3], atol=1e-6)
    assert same(client.memory["own"], hp.state(client.net))


def the_teacher_is_in_training_mode(patch: Patch) -> None:
    """Batch statistics in the teacher: what it teaches depends on the batch."""
    teacher = PFedSD.run_teacher
    patch.setattr(
        PFedSD,
        "run_teacher",
        lambda self, client, x: teacher(replace(self, teacher_bn="train"), client, x),
    )


# Means --------------------------------------------------------------------------------------


def check_the_mean_is_of_the_participants():
    server = Server(0, {"a": 10, "b": 30, "c": 60}, one("w", 8.0))
    said = [reply("a", one("w", 0.0), 10), reply("b", one("w", 4.0), 30)]
    assert FedAvg().merge(server, said).model["w"].tolist() == [3.0]
    alone = played("fedavg", rounds=1, participation=hp.Uniform(count=1))
    (who,) = (e["clients"][0] for e in alone.events if e["event"] == "round")
    assert same(model(alone), memory(played(Local(clients="all"), rounds=1), who)["net"])


def the_absent_answer_with_the_old_model(patch: Patch) -> None:
    """All clients are averaged, the absent with what they once received: every step is shorter."""

    def merge(self, server, replies):
        here = {r.client for r in replies}
        absent = [reply(c, server.model, n) for c, n in server.samples.items() if c not in here]
        return server.update(vocabulary.mean([*replies, *absent]))

    patch.setattr(Algorithm, "merge", merge)


def shares_are_of_everybodys_examples(patch: Patch) -> None:
    """Weights are shares of all clients' examples: with few participants the model shrinks."""

    def merge(self, server, replies):
        whole = sum(server.samples.values())
        return server.update(
            hp.mix([r.tensors for r in replies], [r.weight / whole for r in replies])
        )

    patch.setattr(Algorithm, "merge", merge)


def check_the_mean_of_equals_is_equal():
    w = hp.weights(played("fedavg", rounds=0).plan.template)
    said = [reply(str(i), w, i + 1) for i in range(40)]
    assert same(FedAvg().merge(Server(0, {}, w), said).model, w)


def sums_are_in_single_precision(patch: Patch) -> None:
    """float32 sums: a mean of equal models is not that model, so nothing can be compared."""

    def mix(items, shares):
        out = items[0].zeros()
        for item, share in zip(items, shares, strict=True):
            out = out + share * item
        return out

    patch.setattr(vocabulary, "mix", mix)


def check_statistics_are_averaged_and_not_stepped():
    start = one("bn.weight", 1.0) | one("bn.running_var", 1.0)
    told = one("bn.weight", 0.5) | one("bn.running_var", 0.25)
    server = Server(0, {"a": 1}, start, statistics=frozenset({"bn.running_var"}))
    for how in (FedAdam(server_lr=9.0), FedYogi(server_lr=9.0), FedAvgM(server_lr=9.0)):
        after = how.merge(server, [reply("a", told)])
        assert after.model["bn.running_var"].tolist() == [0.25]
        assert after.model["bn.weight"].tolist() != [0.5]


def the_server_steps_everything(patch: Patch) -> None:
    """Running statistics go through the server's optimiser: a variance turns negative, then NaN."""
    patch.setattr(Server, "learned", property(lambda self: self.model))


def check_a_prototype_is_of_those_who_hold_the_class():
    said = [reply("a", one("mean/0", 2.0)), reply("b", one("mean/0", 4.0) | one("mean/1", 6.0))]
    after = FedProto().merge(Server(0, {"a": 1, "b": 1}, hp.Tensors()), said)
    assert {k: v.tolist() for k, v in after.memory["prototypes"].items()} == {
        "mean/0": [3.0],
        "mean/1": [6.0],
    }


def absent_prototypes_are_zero(patch: Patch) -> None:
    """Zeros for classes that a client does not hold: prototypes shrink towards the origin."""
    merge = FedProto.merge
    zeros = hp.Tensors({f"mean/{c}": torch.zeros(1) for c in range(3)})

    def filled(self, server, replies):
        return merge(self, server, [replace(r, tensors=zeros | r.tensors) for r in replies])

    patch.setattr(FedProto, "merge", filled)


# Randomness ---------------------------------------------------------------------------------


def check_nobody_elses_randomness_is_used_or_changed():
    runs, states = [], []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            runs.append(played("fedavg", rounds=2))
            states.append(torch.equal(torch.get_rng_state(), before))
    assert identical(*runs)
    assert states == [True, True]


def batches_come_from_the_global_generator(patch: Patch) -> None:
    """One stream per process: the result depends on what ran before, and on how many workers."""
    for room in (device, plan, work, evaluation):
        patch.setattr(room, "seeded", lambda *key: nullcontext())


def check_who_takes_part_depends_on_seed_and_round_alone():
    rule, clients = Uniform(rate=0.2), [str(i) for i in range(50)]
    rounds = [[rule.chosen(t, clients, 7) for t in ts] for ts in (range(6), range(5, -1, -1))]
    assert rounds[0] == rounds[1][::-1]
    assert all(len(set(r)) == 10 and r == sorted(r, key=int) for r in rounds[0])


def cohorts_come_from_one_stream(patch: Patch) -> None:
    """Drawn from a global stream: algorithms under comparison see different clients."""
    draw = np.random.default_rng(0)
    patch.setattr(
        Uniform,
        "chosen",
        lambda self, t, clients, seed: sorted(draw.choice(clients, 10, replace=False), key=int),
    )


def check_a_resumed_run_is_the_same_run():
    def stop(event):
        if event["event"] == "round" and event["t"] == 1:
            raise InterruptedError

    with TemporaryDirectory() as folder:
        how = {"rounds": 3, "out": f"{folder}/run"}
        assert refused(InterruptedError, lambda: played("scaffold", on_event=stop, **how))
        assert identical(played("scaffold", resume=True, **how), played("scaffold", rounds=3))


def the_servers_memory_is_not_saved(patch: Patch) -> None:
    """State in attributes that no checkpoint holds: restored, SCAFFOLD has no control variate."""
    load = RunFolder._restore_commit
    patch.setattr(RunFolder, "_restore_commit", lambda *args: replace(load(*args), memory={}))


# One algorithm each -------------------------------------------------------------------------


def check_scaffolds_control_is_the_mean_slope():
    """y steps by g - c_i + c, without momentum; c_i becomes c_i - c + (x - y) / (K lr)."""
    how, momentum = Scaffold(), replace(PLAIN, momentum=0.9)
    start = hp.weights(client_of(how).net)
    c, own = (start.map(lambda v, by=by: by * torch.ones_like(v)) for by in (0.1, 0.3))
    client = client_of(how, {"control": own}, c.under("control/"), training=momentum)
    (batches,) = trained(how, client)[1]
    y = start
    for batch in batches:
        y = y - PLAIN.lr * (slope(client.net, y, *batch) - own + c)
    assert len(batches) > PLAIN.epochs
    assert close(hp.weights(client.net), y)
    mean_slope = (start - y) / (len(batches) * PLAIN.lr)
    assert close(client.memory["control"], own - c + mean_slope, 1e-5)


def epochs_are_taken_for_steps(patch: Patch) -> None:
    """K counts epochs instead of updates: the control is many times too large."""
    patch.setattr(Client, "steps", property(lambda self: self.training.epochs))


def the_common_optimiser_is_used(patch: Patch) -> None:
    """Momentum, also where a formula assumes plain SGD or a momentum that begins anew."""
    fit = Client.fit
    patch.setattr(Client, "fit", lambda self, loss=None, how=None, **rest: fit(self, loss, **rest))


def check_fednova_knows_the_work_of_momentum():
    """The j-th step along a constant slope is (1 - ρ^j) / (1 - ρ) plain ones; momentum is new."""
    how = FedNova()
    client = client_of(how, training=replace(PLAIN, momentum=0.5))
    sent, (batches,) = trained(how, client)
    work = sum((1 - 0.5**j) / (1 - 0.5) for j in range(1, len(batches) + 1))
    assert sent["fednova/work"].item() == pytest.approx(work, rel=1e-12)
    assert client.memory == {}


def work_is_the_number_of_steps(patch: Patch) -> None:
    """Plain step counts under momentum: who works longer still counts more."""
    patch.setattr(fednova, "count_effective_steps", lambda steps, momentum, pull=0.0: float(steps))


APFL_SHARE = 0.3


def check_apfls_own_model_steps_along_the_mixture():
    """w - lr ∇f(w), then v - lr α ∇f(α v + (1 - α) w), and v stays v."""
    how, once = APFL(alpha=APFL_SHARE, adaptive=False), replace(PLAIN, steps=1)
    w = hp.weights(client_of(how).net).without("own.*")
    v = 1.5 * w
    client = client_of(how, {"net": v.under("own.")}, training=once)
    (((x, y), again),) = trained(how, client)[1]
    assert torch.equal(x, again[0])
    w = w - PLAIN.lr * slope(client.net, w, x, y)
    mixed = APFL_SHARE * v + (1 - APFL_SHARE) * w
    v = v - PLAIN.lr * APFL_SHARE * slope(client.net.own, mixed, x, y)
    now = hp.weights(client.net)
    assert close(now.without("own.*"), w)
    assert close(now.below("own."), v)


def apfl_keeps_the_mixture(patch: Patch) -> None:
    """v is overwritten by the mixture in every round, and forgets what is its own."""
    train, mixture = APFL.local, apfl.mix_models

    def local(self, client):
        up = train(self, client)
        own, common = hp.weights(client.net.own), hp.weights(client.net)
        device.load_into_net(
            client.net, mixture(self.get_own_share(client), own, common).under("own.")
        )
        return up

    patch.setattr(APFL, "local", local)


def apfl_trains_the_own_model_alone(patch: Patch) -> None:
    """v is trained by its own loss instead of the mixture's, which is what predicts."""
    patch.setattr(apfl, "mix_models", lambda share, own, common: own)


def check_pfedmes_server_moves_and_its_clients_are_tested():
    result = played("pfedme", rounds=1, participation=1.0)
    net, x = result.plan.model().eval(), result.plan.federation.scale(result.plan.federation.x[:5])
    assert not same(model(result), result.plan.create_initial_server().model)
    for c in result.plan.federation.clients:
        kept = memory(result, c)
        assert torch.equal(result.personal(c)(x), functional_call(net, dict(kept["own"]), (x,)))


def pfedmes_beta_is_zero(patch: Patch) -> None:
    """A default of 0 for how far the server moves: it never does."""
    merge = PFedMe.merge
    patch.setattr(
        PFedMe,
        "merge",
        lambda self, server, replies: merge(replace(self, beta=0.0), server, replies),
    )


def pfedmes_own_model_is_not_tested(patch: Patch) -> None:
    """The own model is trained and never used: what is tested is the received one."""
    patch.setattr(PFedMe, "predict", lambda self, client, x: client.net(x))


def check_lgfedavg_shares_the_head():
    client = client_of(LGFedAvg())
    assert set(client.shared()) == {"head.0.weight", "head.0.bias"}
    assert client.stays().keys() == client.shared().keys() ^ hp.state(client.net).keys()


def lgfedavg_shares_the_first_layers(patch: Patch) -> None:
    """The wrong end of the list of layers: it is FedPer under another name."""
    patch.setattr(LGFedAvg, "personal", ("head.*",))


def check_fedala_mixes_the_last_tensors_and_with_zero_all():
    names = [k for k, _ in get_model_builder("mlp")((1, 8, 8), 10, 1).named_parameters()]
    for top in range(len(names) + 1):
        how = FedALA(top=top)
        net = how.build(get_model_builder("mlp")((1, 8, 8), 10, 1))
        assert set(how.get_mixed_parameters(net)) == set(
            names[len(names) - top :] if top else names
        )
        assert len(list(net.mixing.parameters())) == (top or len(names))


def zero_from_the_end_is_the_beginning(patch: Patch) -> None:
    """params[:-0] is empty: asked to mix all tensors, it mixes none."""

    def get_mixed_parameters(self, net):
        whole = [(k, p) for k, p in net.named_parameters() if not k.startswith("mixing.")]
        return hp.Tensors(whole[-self.top :] if self.top else whole[: -self.top])

    patch.setattr(FedALA, "get_mixed_parameters", get_mixed_parameters)


def check_perfedavg_trains_once_at_its_own_rate():
    """w - β ∇f(w - α ∇f(w; B1); B2), once for every mini-batch of a round."""
    how = PerFedAvg(alpha=0.3, beta=0.05)
    client = client_of(how)
    w, ahead = hp.weights(client.net), client.draws("first")
    _, fits = trained(how, client)
    for x, y in fits[0]:
        there = w - 0.3 * slope(client.net, w, *next(ahead))
        w = w - 0.05 * slope(client.net, there, x, y)
    assert [len(f) for f in fits] == [client.steps]
    assert close(hp.weights(client.net), w)


def perfedavg_trains_twice(patch: Patch) -> None:
    """Training is called twice in a round: twice the work of whatever it is compared with."""
    train = PerFedAvg.local
    patch.setattr(
        PerFedAvg, "local", lambda self, client: (train(self, client), train(self, client))[1]
    )


def perfedavgs_beta_is_the_learning_rate(patch: Patch) -> None:
    """The outer step takes the common learning rate, whatever β says."""
    train = PerFedAvg.local
    patch.setattr(
        PerFedAvg,
        "local",
        lambda self, client: train(replace(self, beta=client.training.lr), client),
    )


def check_fedrods_own_head_adds_and_does_not_reach_the_base():
    how, sent = FedRoD(), []
    for scale in (1.0, -2.0):
        head = hp.weights(client_of(how).net.own)
        client = client_of(how, {"net": (scale * head).under("own.")})
        z = client.net.base(x := client.data.test.batch(torch.arange(5))[0])
        assert torch.equal(how.predict(client, x), client.net.head(z) + client.net.own(z))
        sent.append(trained(how, client)[0])
    assert same(*sent)


def fedrods_own_loss_reaches_the_base(patch: Patch) -> None:
    """No stopped gradient: the generic model is bent by every client's own head."""

    def local(self, client):
        prior = client.data.counts.log()

        def loss(x, y):
            z = client.net.base(x)
            generic, own = client.net.head(z), client.net.own(z)
            return cross_entropy(generic + prior, y) + cross_entropy(generic + own, y)

        client.fit(loss)
        return client.shared()

    patch.setattr(FedRoD, "local", local)


def fedrod_predicts_with_the_own_head_alone(patch: Patch) -> None:
    """P without the generic head, which the own one was trained to correct."""
    patch.setattr(FedRoD, "predict", lambda self, c, x: c.net.own(c.net.base(x)))


def check_fedcac_merges_what_clients_learned():
    """a and b agree on what is critical, c is alone; the rest is everybody's mean, (4, 5)."""
    learned = {"a": ((1.0, 1.0), (1, 0)), "b": ((3.0, 5.0), (1, 0)), "c": ((8.0, 9.0), (0, 1))}
    said = [
        reply(c, one("w", *w) | {"critical/bits": pack_bits(torch.tensor(bits))})
        for c, (w, bits) in learned.items()
    ]
    how = FedCAC()
    after = how.merge(Server(0, dict.fromkeys("abc", 1), one("w", 0.0, 0.0)), said)
    assert {c: how.send(after, c)["w"].tolist() for c in "abc"} == {
        "a": [2.0, 5.0],
        "b": [2.0, 5.0],
        "c": [4.0, 9.0],
    }


def fedcac_merges_with_the_first_model(patch: Patch) -> None:
    """No customised models in the first round: critical positions fall back to the random start."""
    merge = FedCAC.merge

    def first(self, server, replies):
        start = {f"custom/{r.client}": server.model for r in replies}
        return merge(self, server, replies).update(**start)

    patch.setattr(FedCAC, "merge", first)


def check_gpfl_is_steered_by_what_it_received():
    kept = {"embed": one("trained", 7.0)}
    client = client_of(GPFL(), kept)
    assert torch.equal(GPFL().get_condition_embeddings(client), client.received["embed.weight"])


def gpfl_is_steered_by_its_last_round(patch: Patch) -> None:
    """Conditions are computed before the received embeddings are loaded; at first they are zero."""
    get_embeddings = GPFL.get_condition_embeddings
    patch.setattr(
        GPFL,
        "get_condition_embeddings",
        lambda self, client: get_embeddings(replace(self, conditions="stale"), client),
    )


def check_local_trains_everybody():
    result = played(Local(clients="all"), participation=0.5)
    assert [r.participations for r in result.clients.values()] == [3] * 6


def local_trains_the_chosen(patch: Patch) -> None:
    """Asked to train all clients, the baseline trains a sample of them, and looks worse than it is."""
    patch.setattr(Local, "everybody", False)


# Splits, mixtures, generators, distillation ---------------------------------------------------


def check_fedcps_answers_are_not_drawn():
    client = client_of(FedCP())
    x, _ = client.data.test.batch(torch.arange(5))
    client.net.eval()
    with torch.no_grad():
        said = [FedCP().predict(client, v) for v in (x, x)]
    assert torch.equal(*said)


def fedcp_draws_gumbel_noise(patch: Patch) -> None:
    """gumbel_softmax in the forward pass, also in tests: every evaluation has other numbers."""

    def drawn(net, z, context):
        both = gumbel_softmax(net.policy(z * context).unflatten(-1, (2, -1)), dim=-2)
        return both.select(-2, 0), both.select(-2, 1)

    patch.setattr(fedcp_file, "compute_policy", drawn)


def check_feddbes_consensus_is_a_mean_of_features():
    client = client_of(FedDBE())
    sent = FedDBE().local(client)
    assert torch.allclose(sent["dbe/mean"], client.features().mean(0))


def feddbes_mean_begins_at_zero(patch: Patch) -> None:
    """A moving average (momentum 0.1) from zero over a client's few batches: features are halved."""
    mean = feddbe.compute_mean
    patch.setattr(feddbe, "compute_mean", lambda z: (1 - 0.9**6) * mean(z))


def apple_server() -> Server:
    sizes = {"a": 10, "b": 10, "c": 20}
    cores = {"core/a": one("w", 1.0), "core/c": one("w", 3.0)}
    return Server(1, sizes, one("w", 0.0), memory=cores)


def check_apples_core_models_have_their_owners():
    """b never took part: the weight of c is still c's, for a and for b."""
    sent = {c: APPLE().send(apple_server(), c).only("core/*") for c in "abc"}
    assert {c: {k: v.item() for k, v in t.items()} for c, t in sent.items()} == {
        "a": {"core/1/w": 3.0},
        "b": {"core/0/w": 1.0, "core/1/w": 3.0},
        "c": {"core/0/w": 1.0},
    }


def apple_counts_the_participants(patch: Patch) -> None:
    """Core models in the order of those who took part: p weighs other clients' models."""
    send = APPLE.send

    def shifted(self, server, client):
        known = {c: n for c, n in server.samples.items() if f"core/{c}" in server.memory}
        return send(self, replace(server, samples=known), client)

    patch.setattr(APPLE, "send", shifted)


APPLE_RATE = 0.5


def check_apples_core_model_and_weights_step_along_the_sum():
    """w - lr N p ∇f(p w + q v), p - η ⟨∇f, w⟩, q - η ⟨∇f, v⟩; what is sent is w, and N is 2."""
    how, once = APPLE(weight_lr=APPLE_RATE, mu=0.0), replace(PLAIN, steps=1)
    w = hp.weights(client_of(how).net)
    v = 1.5 * w
    client = client_of(how, extra=v.under("core/0/"), federation=digits(clients=2), training=once)
    w = hp.weights(client.net)
    p, q = CoreWeights(client).p.tolist()
    up, ((batch,),) = trained(how, client)
    g = slope(client.net, p * w + q * v, *batch)
    assert close(up, w - PLAIN.lr * 2 * p * g)
    stepped = torch.tensor([p - APPLE_RATE * g.dot(w), q - APPLE_RATE * g.dot(v)])
    assert torch.allclose(client.memory["weights"]["p"], stepped, atol=1e-5)


def apple_sends_the_sum(patch: Patch) -> None:
    """The personal model is uploaded as the core model, which is never kept: p means nothing."""
    train = APPLE.local

    def local(self, client):
        up, p = train(self, client), client.memory["weights"]["p"]
        others = client.received.below("core/0/")
        return up.map(lambda w, v: p[0] * w + p[1] * v, others)

    patch.setattr(APPLE, "local", local)


def apples_slope_is_a_mean(patch: Patch) -> None:
    """The inner product is divided by the number of parameters: p never moves."""
    train = APPLE.local

    def local(self, client):
        count = sum(p.numel() for p in client.net.parameters())
        return train(replace(self, weight_lr=self.weight_lr / count), client)

    patch.setattr(APPLE, "local", local)


def check_fedfomo_explores():
    liking = torch.arange(36.0).view(6, 6)
    with seeded("explores"):
        rows = [fedfomo.choose_downloads(liking, [True] * 6, 1, 1.0)[0, 0] for _ in range(60)]
    assert {int(r) for r in rows} == {1, 2, 3, 4, 5}


def fedfomo_takes_the_first(patch: Patch) -> None:
    """Always the best liked: whoever is first at the beginning is sent for ever."""
    patch.setattr(
        fedfomo, "choose_downloads", lambda p, known, m, _: choose_downloads(p, known, m, 0)
    )


def check_fedfomo_weighs_models_as_they_predict():
    client = client_of(FedFomo(), net=net_with_batch_norm)
    before = hp.state(client.net)
    client.net.train()
    samples = client.data.train
    losses = [held_out.compute_loss(client, hp.Tensors(), s) for s in (samples, samples)]
    assert torch.equal(*losses)
    assert same(hp.state(client.net), before)


def fedfomo_weighs_models_in_training_mode(patch: Patch) -> None:
    """Received models keep their training mode: BatchNorm answers by the batch, and learns from it."""

    def loss(client, tensors, samples):
        client.net.train()
        x, y = samples.batch(torch.arange(len(samples)))
        return client.loss(functional_call(client.net, dict(tensors), (x,)), y)

    patch.setattr(held_out, "compute_loss", loss)


def check_fedgens_generator_is_trained_on_the_heads_that_were_sent():
    made = played("fedgen", rounds=0).plan.create_initial_server()
    counts = torch.ones(10)
    heads = [made.model.map(lambda v, by=by: by * torch.ones_like(v)) for by in (1.0, 3.0)]
    said = [
        reply(str(i), w.without("generator.*") | {"fedgen/counts": counts})
        for i, w in enumerate(heads)
    ]
    seen = []
    with Patch.context() as patch:
        real = fedgen.train_generator
        patch.setattr(fedgen, "train_generator", lambda w, h, *a, **k: (seen.append(h), real(w, h, *a, **k))[1])  # fmt: skip
        FedGen(generator_steps=1).merge(made, said)
    assert all(torch.equal(v, 2 * torch.ones_like(v)) for v in seen[0].values())


def fedgens_teacher_is_the_servers(patch: Patch) -> None:
    """The clients' models are loaded into a teacher that is never asked: the old model answers."""
    merge, mean = FedGen.merge, fedgen.mean

    def stale(self, server, replies):
        old = server.model.only("head.*")
        with Patch.context() as inner:
            inner.setattr(
                fedgen, "mean", lambda r, *n, **k: old if n == ("head.*",) else mean(r, *n, **k)
            )
            return merge(self, server, replies)

    patch.setattr(FedGen, "merge", stale)


def check_fedgens_noise_is_gaussian():
    seen, how = [], FedGen()
    extra = hp.Tensors({"fedgen/labels": torch.full((10,), 0.1)})
    client = client_of(how, extra=extra)
    with Patch.context() as patch:
        real = fedgen.generate_features
        patch.setattr(
            fedgen, "generate_features", lambda w, y, eps: (seen.append(eps), real(w, y, eps))[1]
        )
        how.local(client)
    assert (torch.cat(seen) < 0).float().mean().sub(0.5).abs() < 0.1


def fedgens_noise_is_uniform(patch: Patch) -> None:
    """torch.rand, under the comment that it is Gaussian."""
    patch.setattr(torch.Tensor, "normal_", torch.Tensor.uniform_)


def feddistill_server() -> Server:
    told = {f"outputs/{c}": one("mean/0", p, 1 - p) for c, p in (("a", 0.25), ("b", 0.75))}
    return Server(1, dict.fromkeys("abc", 1), hp.Tensors(), memory=told)


def check_feddistills_teacher_is_the_others():
    sent = {c: FedDistill().send(feddistill_server(), c)["mean/0"][0].item() for c in "abc"}
    assert sent == {"a": 0.75, "b": 0.25, "c": 0.5}


def feddistills_teacher_knows_the_student(patch: Patch) -> None:
    """The mean over all: a client learns from itself, and alone from nobody else."""
    send = FedDistill.send
    patch.setattr(FedDistill, "send", lambda self, server, client: send(self, server, ""))


def check_feddistill_remembers_who_is_absent():
    after = FedDistill().merge(feddistill_server(), [reply("c", one("mean/0", 0.5, 0.5))])
    assert FedDistill().send(after, "c")["mean/0"].tolist() == [0.5, 0.5]


def feddistill_forgets_who_is_absent(patch: Patch) -> None:
    """Outputs of the round's participants alone: with few of them, labels have no teacher."""
    merge = FedDistill.merge
    patch.setattr(FedDistill, "merge", lambda self, server, replies: merge(self, replace(server, memory={}), replies))  # fmt: skip


def check_feddistills_term_is_a_cross_entropy():
    teacher = torch.full((10,), 0.1)
    how, extra = FedDistill(gamma=2.0), hp.Tensors({f"mean/{c}": teacher for c in range(10)})
    client = client_of(how, extra=extra)
    values = []

    def fit(loss):
        x, y = client.data.train.batch(torch.arange(8))
        out = client.net(x)
        soft = -(teacher * out.log_softmax(1)).sum(1).mean()
        values.append(float((loss(x, y) - cross_entropy(out, y) - 2.0 * soft).detach()))

    client.fit = fit
    how.local(client)
    assert abs(values[0]) < 1e-5


def feddistills_term_is_a_squared_error(patch: Patch) -> None:
    """MSE between raw logits: a confident model is pulled back to the size of others' logits."""
    patch.setattr(
        feddistill, "cross_entropy", lambda out, goal, reduction: (out - goal).square().mean(1)
    )


def check_ifcas_models_begin_apart():
    model = played(IFCA(), rounds=0).plan.create_initial_server().model
    assert not same(model.without("clusters.*"), model.below("clusters.0."))


def ifcas_models_begin_alike(patch: Patch) -> None:
    """Copies of one model: all losses are equal, and everybody is in the first cluster for ever."""
    patch.setattr(ifca, "reset_layers", lambda module: module)


def check_ifcas_cluster_is_chosen_by_training_examples():
    """Test labels that are all wrong change nothing but the score."""
    parts = []
    for test in (0, 1):
        client = client_of(IFCA())
        labels = torch.full_like(client.data.test.y, 9 * test)
        client.data = replace(client.data, test=replace(client.data.test, y=labels))
        device.load_into_net(client.net, hp.Tensors({"clusters.0.head.0.bias": 50.0 * torch.eye(10)[9]}))  # fmt: skip
        parts.append(IFCA().estimate_cluster(client))
    assert parts == [0, 0]


def ifcas_cluster_is_chosen_by_test_examples(patch: Patch) -> None:
    """The smallest loss on the test set, labels included, decides which model is tested."""
    patch.setattr(ifca, "compute_loss", lambda c, w, _: compute_loss(c, w, c.data.test))


def cfl_server() -> Server:
    """a and e were split from b, c and d before."""
    base = Server(3, dict.fromkeys("abcde", 1), one("w", 0.0, 0.0))
    of = hp.Tensors({"of": torch.tensor([0, 1, 1, 1, 0])})
    return base.update(**{"clusters": of, "cluster/0": base.model, "cluster/1": base.model})


def check_cfls_parts_are_of_clients():
    moves = {"b": (0.0, 1.0), "c": (0.0, -1.0), "d": (0.1, 1.0)}
    after = CFL(eps1=10.0, eps2=0.0).merge(
        cfl_server(), [reply(c, one("w", *w)) for c, w in moves.items()]
    )
    assert after.memory["clusters"]["of"].tolist() == [0, 1, 2, 1, 0]


def cfl_takes_positions_for_clients(patch: Patch) -> None:
    """Positions within the cluster are taken for clients: the second split moves strangers."""
    split = CFL.split_cluster

    def wrong(self, server, of, cluster):
        at, after = (of == cluster).nonzero().flatten().tolist(), split(self, server, of, cluster)
        moved = [at.index(i) for i in (after != of).nonzero().flatten().tolist()]
        return of.index_fill(0, torch.tensor(moved, dtype=torch.int64), int(after.max()))

    patch.setattr(CFL, "split_cluster", wrong)


def check_cfls_split_separates_what_is_least_alike():
    """A chain a-b-c-d: its weakest link is the last, 0.5."""
    cosines = torch.tensor(
        [[1.0, 0.9, 0.2, 0.1], [0.9, 1.0, 0.7, 0.3], [0.2, 0.7, 1.0, 0.5], [0.1, 0.3, 0.5, 1.0]]
    )
    assert cfl.bisect_clients(cosines) == ([3], 0.5)


def cfl_has_complete_linkage(patch: Patch) -> None:
    """Agglomerative clustering by the farthest pair: the largest cosine across is not the smallest."""

    def complete(cosines):
        parts = [[i] for i in range(len(cosines))]
        while len(parts) > 2:
            likeness = {
                (a, b): min(float(cosines[i, j]) for i in parts[a] for j in parts[b])
                for a in range(len(parts))
                for b in range(a + 1, len(parts))
            }
            a, b = max(likeness, key=likeness.get)
            parts[a] += parts.pop(b)
        first, second = sorted(parts, key=lambda p: 0 not in p)
        across = max(float(cosines[i, j]) for i in first for j in second)
        return sorted(second), round(across, 6)

    patch.setattr(cfl, "bisect_clients", complete)


# The table ----------------------------------------------------------------------------------

SENT_LAST = check_it_goes_on_from_what_was_sent_last
SHARED_STATE = check_the_state_is_a_mean_over_all_clients

# fmt: off
# Methods of 2021 to 2024 ----------------------------------------------------------------------


def check_knnpers_kernel_takes_squares():
    store = hp.Tensors({"features": torch.tensor([[1.0], [3.0]]), "classes": torch.eye(2)})
    got = KNNPer(neighbours=2).ask_neighbours(torch.zeros(1, 1), store)
    assert torch.allclose(got, torch.tensor([-1.0, -9.0]).softmax(0))


def knnpers_kernel_takes_distances(patch: Patch) -> None:
    """The square root of what the search returns: far neighbours count too much."""
    patch.setattr(knnper, "square_distances", torch.cdist)


def check_fedems_shares_know_the_weights():
    kept = {"fedem": hp.Tensors({"weights": torch.tensor([1.0, 0.0, 0.0])})}
    assert torch.equal(FedEM().estimate_shares(client_of(FedEM(), kept))[:, 0].unique(), torch.ones(1))


def fedem_forgets_the_weights(patch: Patch) -> None:
    """Shares by the likelihoods alone: the weights of the last round have no effect on the next."""
    patch.setattr(FedEM, "get_weights", lambda *_: torch.full((3,), 1 / 3))


def check_fedas_does_not_align_with_an_untrained_net():
    plain = FedAS(align_epochs=0, weight="agreed")
    a, b = (played(x, rounds=1) for x in (FedAS(weight="agreed"), plain))
    assert same(model(a), model(b))


def fedas_aligns_with_its_untrained_net(patch: Patch) -> None:
    """The authors' clients compute class means with the initial net in their first round."""
    align = FedAS.adapt

    def adapt(self, client):
        client.memory.setdefault("base", hp.state(client.net.base))
        align(self, client)

    patch.setattr(FedAS, "adapt", adapt)


def check_fedetfs_loss_knows_the_counts():
    client, values = client_of(FedETF()), []
    x, y = client.data.train.batch(torch.arange(16))
    client.fit = lambda loss, **_: values.append(loss(x, y))
    FedETF().local(client)
    raised = client.data.counts * client.net(x).exp()
    assert torch.allclose(values[0], -(raised / raised.sum(1, keepdim=True)).log()[range(16), y].mean())


def fedetf_has_the_plain_loss(patch: Patch) -> None:
    """Fixed directions alone: the base learns the skew of the client's classes."""

    def fit_balanced(self, client, phase):
        client.fit(client.compute_net_loss, phase=phase)

    patch.setattr(FedETF, "fit_balanced", fit_balanced)


def check_pfedfdas_covariance_is_around_the_class_means():
    z, labels = torch.tensor([[0.0], [2.0], [10.0], [12.0]]), torch.tensor([0, 0, 1, 1])
    _, covariance = pfedfda.estimate_gaussian(z, labels, torch.zeros(2, 1), 0.0, 1)
    assert covariance.item() == 4 / 3


def pfedfdas_covariance_is_around_the_common_mean(patch: Patch) -> None:
    """The covariance of all features, as `cov` of a library gives it: it holds the distances of classes."""
    estimate = pfedfda.estimate_gaussian

    def mistaken(z, labels, common, ridge, at_least):
        means, _ = estimate(z, labels, common, ridge, at_least)
        return means, torch.cov(z.double().T).reshape(z.shape[1], -1)

    patch.setattr(pfedfda, "estimate_gaussian", mistaken)


def check_pfedhn_steps_towards_what_clients_trained():
    server = played(PFedHN(), rounds=1, participation=1.0)._server
    sent = PFedHN().send(server, "0")
    trained = sent.map(lambda v: v + 1.0)
    after = PFedHN(server_momentum=0.0).merge(server, [Reply("0", "train", trained, 10, 10.0)])
    moved = PFedHN().send(after, "0") - sent
    assert float(moved.sum()) > 0


def pfedhn_steps_away(patch: Patch) -> None:
    """The trained model less the received one taken for a gradient: its sign is the other way round."""
    slopes = hypernetworks.compute_hypernetwork_gradient
    patch.setattr(hypernetworks, "compute_hypernetwork_gradient", lambda *of: -1.0 * slopes(*of))


def check_floco_draws_points_of_the_simplex():
    centre = hp.Tensors({"floco/centre": torch.tensor([1.0, 0.0, 0.0])})
    how = Floco(vertices=3, rho=0.5)
    client = client_of(how, extra=centre)
    with seeded("points"):
        points = torch.tensor([how.draw_point(client) for _ in range(100)])
    assert torch.allclose(points.sum(1), torch.ones(100), atol=1e-6)
    assert bool((points >= 0).all())
    assert 0.1 < float((points - centre["floco/centre"]).abs().sum(1).max()) <= 1.0


def floco_draws_points_beside_the_simplex(patch: Patch) -> None:
    """The authors' ball around a client's point is not cut where the simplex ends."""
    patch.setattr(floco, "project_onto_simplex", lambda point, _: point)


def check_peflls_embedding_is_trained():
    first, last = (
        played(PeFLL(), rounds=t, participation=1.0)._server.memory["hypernetwork"] for t in (1, 3)
    )
    assert not torch.equal(first["embed.weight"], last["embed.weight"])


def peflls_embedding_is_detached(patch: Patch) -> None:
    """The embedding arrives as a message, and no gradient goes back to what made it."""
    compute = pefll.embed_client
    patch.setattr(pefll, "embed_client", lambda w, p: compute(w, p).detach())


def check_floras_net_moves_by_the_mean_of_the_products():
    """The layer is as wide as the rank, so that the first axis of A and B has one length."""
    draw = torch.Generator().manual_seed(1)
    shapes = {"flora/A/w": (6, 5), "flora/B/w": (6, 6), "bias": (2,)}
    sent = [
        Tensors({k: torch.randn(shape, generator=draw) for k, shape in shapes.items()})
        for _ in range(2)
    ]
    replies = [Reply(str(i), "train", w, n, n) for i, (w, n) in enumerate(zip(sent, (1, 3), strict=True))]
    before = Tensors({"w": torch.ones(6, 5), "bias": torch.ones(2)})
    after = flora.FLoRA().merge(Server(0, {"0": 1, "1": 3}, before), replies).model
    products = [w["flora/B/w"] @ w["flora/A/w"] for w in sent]
    torch.testing.assert_close(after["w"], 1 + products[0] / 4 + products[1] * 3 / 4)
    torch.testing.assert_close(after["bias"], sent[0]["bias"] / 4 + sent[1]["bias"] * 3 / 4)


def flora_tells_a_from_b_by_its_length(patch: Patch) -> None:
    """What has as many rows as the rank is A: weighted, and stacked along its first axis."""

    def stack(replies, name):
        total, parts = sum(r.weight for r in replies), []
        for prefix in (flora.A, flora.B):
            found = [r.tensors[prefix + name] for r in replies]
            is_a = len(found[0]) == len(replies[0].tensors[flora.A + name])
            shares = [r.weight / total if is_a else 1.0 for r in replies]
            weighted = [w * share for w, share in zip(found, shares, strict=True)]
            parts.append(torch.cat(weighted, 0 if is_a else 1))
        a, b = parts
        return b @ a

    patch.setattr(flora, "sum_adapter_products", stack)


DEFECTS = [
    Defect("missing tensors are passed over",
           check_what_did_not_arrive_is_an_error, nothing_is_missed),
    Defect("unknown tensors are passed over",
           check_what_nobody_knows_is_an_error, what_fits_is_loaded),
    Defect("tensors of another shape are passed over",
           check_another_shape_is_an_error, what_fits_is_loaded),
    Defect("a checkpoint is loaded where it fits",
           check_a_checkpoint_fits_or_is_refused, a_checkpoint_is_loaded_where_it_fits),
    Defect("replies are averaged as far as they go",
           check_replies_that_differ_are_not_averaged, replies_are_averaged_as_far_as_they_go),
    Defect("BatchNorm is told by its name",
           check_every_batch_norm_stays, batch_norm_is_told_by_its_name),
    *[Defect(f"{type(how).__name__}'s pull has no gradient",
             partial(check_the_pull_is_in_the_gradient, how, strength, part),
             the_term_is_built_from_data) for how, strength, part in PULLED],
    Defect("FedProx has an optimiser of its own",
           check_fedprox_without_pull_is_fedavg, fedprox_has_an_optimiser_of_its_own),
    Defect("FedDyn does not square", check_feddyn_locally, feddyn_does_not_square),
    Defect("FedDyn has the other sign", check_feddyn_locally, feddyn_has_the_other_sign),
    *[Defect(f"{cls.__name__}'s state is divided by the participants",
             SHARED_STATE, the_state_is_divided_by_the_participants(cls))
      for cls in (FedDyn, Scaffold)],
    Defect("replies are summed as they arrive",
           check_it_does_not_matter_who_is_ready_first, replies_stay_in_the_order_of_arrival),
    Defect("one stream of randomness per worker",
           check_it_does_not_matter_who_is_ready_first, batches_come_from_the_global_generator),
    Defect("batches come from the global generator",
           check_nobody_elses_randomness_is_used_or_changed,
           batches_come_from_the_global_generator),
    Defect("cohorts come from one stream",
           check_who_takes_part_depends_on_seed_and_round_alone, cohorts_come_from_one_stream),
    Defect("the server's memory is not saved",
           check_a_resumed_run_is_the_same_run, the_servers_memory_is_not_saved),
    Defect("FedPAC's statistics and heads are in different orders",
           check_fedpacs_heads_and_statistics_belong_together,
           statistics_are_in_another_order_than_heads),
    Defect("FedPAC's shares are cut and not renormalised",
           check_fedpacs_shares_sum_to_one, cut_shares_are_not_renormalised),
    Defect("FedPAC's centres are plain means",
           check_fedpacs_heads_and_statistics_belong_together, centres_are_plain_means),
    *[Defect(f"{cls.__name__} is used with a stale body",
             partial(SENT_LAST, cls), a_client_goes_on_from_its_own(cls, training=False))
      for cls in (FedBABU, FedRep, FedRoD)],
    *[Defect(f"{cls.__name__} never trains what it was sent",
             partial(SENT_LAST, cls), a_client_goes_on_from_its_own(cls, training=True))
      for cls in (FedRoD, FedAMP, FedCP)],
    Defect("FedBABU freezes the wrong part",
           partial(SENT_LAST, FedBABU), fedbabu_freezes_the_wrong_part),
    Defect("frozen means a gradient of zero",
           check_what_is_frozen_does_not_move, frozen_means_a_gradient_of_zero),
    *[Defect(f"P and {other} share a list",
             check_g_and_p_have_a_list_each, metrics_share_a_list(other))
      for other in ("G", "P_local")],
    Defect("labels are counted through a loader that drops",
           check_every_example_counts_and_no_loss_is_infinite, counted_through_the_loader,
           DivergedError),
    Defect("FedReG's threshold has absent classes in it",
           check_fedregs_threshold_is_of_the_classes_that_are_held,
           absent_classes_are_in_the_threshold),
    Defect("pFedGate's gates look at the batch",
           check_an_answer_does_not_depend_on_its_batch, gates_look_at_the_batch),
    Defect("pFedGate's logits are cut at zero",
           check_an_answer_does_not_depend_on_its_batch, answers_are_cut_at_zero),
    Defect("pFedSD's teacher is in training mode",
           check_a_teacher_is_still, the_teacher_is_in_training_mode),
    Defect("the absent answer with the old model",
           check_the_mean_is_of_the_participants, the_absent_answer_with_the_old_model),
    Defect("shares do not sum to one",
           check_the_mean_is_of_the_participants, shares_are_of_everybodys_examples),
    Defect("sums are in single precision",
           check_the_mean_of_equals_is_equal, sums_are_in_single_precision),
    Defect("the server steps running statistics",
           check_statistics_are_averaged_and_not_stepped, the_server_steps_everything),
    Defect("FedProto's absent prototypes are zero",
           check_a_prototype_is_of_those_who_hold_the_class, absent_prototypes_are_zero),
    Defect("SCAFFOLD takes epochs for steps",
           check_scaffolds_control_is_the_mean_slope, epochs_are_taken_for_steps),
    Defect("SCAFFOLD has momentum",
           check_scaffolds_control_is_the_mean_slope, the_common_optimiser_is_used),
    Defect("FedNova's work is the number of steps",
           check_fednova_knows_the_work_of_momentum, work_is_the_number_of_steps),
    Defect("FedNova's momentum outlives the round",
           check_fednova_knows_the_work_of_momentum, the_common_optimiser_is_used),
    Defect("APFL keeps the mixture",
           check_apfls_own_model_steps_along_the_mixture, apfl_keeps_the_mixture),
    Defect("APFL trains the own model alone",
           check_apfls_own_model_steps_along_the_mixture, apfl_trains_the_own_model_alone),
    Defect("pFedMe's server is frozen",
           check_pfedmes_server_moves_and_its_clients_are_tested, pfedmes_beta_is_zero),
    Defect("pFedMe's own model is not tested",
           check_pfedmes_server_moves_and_its_clients_are_tested, pfedmes_own_model_is_not_tested),
    Defect("LG-FedAvg shares the first layers",
           check_lgfedavg_shares_the_head, lgfedavg_shares_the_first_layers),
    Defect("FedALA's params[:-0]",
           check_fedala_mixes_the_last_tensors_and_with_zero_all,
           zero_from_the_end_is_the_beginning),
    Defect("Per-FedAvg trains twice",
           check_perfedavg_trains_once_at_its_own_rate, perfedavg_trains_twice),
    Defect("Per-FedAvg's beta is the learning rate",
           check_perfedavg_trains_once_at_its_own_rate, perfedavgs_beta_is_the_learning_rate),
    Defect("FedRoD's own loss reaches the base",
           check_fedrods_own_head_adds_and_does_not_reach_the_base,
           fedrods_own_loss_reaches_the_base),
    Defect("FedRoD predicts with the own head alone",
           check_fedrods_own_head_adds_and_does_not_reach_the_base,
           fedrod_predicts_with_the_own_head_alone),
    Defect("FedCAC merges with the first model",
           check_fedcac_merges_what_clients_learned, fedcac_merges_with_the_first_model),
    Defect("GPFL is steered by its last round",
           check_gpfl_is_steered_by_what_it_received, gpfl_is_steered_by_its_last_round),
    Defect("FedCP draws Gumbel noise in tests",
           check_fedcps_answers_are_not_drawn, fedcp_draws_gumbel_noise),
    Defect("FedDBE's mean begins at zero",
           check_feddbes_consensus_is_a_mean_of_features, feddbes_mean_begins_at_zero),
    Defect("APPLE's core models are in the order of the participants",
           check_apples_core_models_have_their_owners, apple_counts_the_participants),
    Defect("APPLE sends the personal model",
           check_apples_core_model_and_weights_step_along_the_sum, apple_sends_the_sum),
    Defect("APPLE's slope is a mean over parameters",
           check_apples_core_model_and_weights_step_along_the_sum, apples_slope_is_a_mean),
    Defect("FedFomo never explores", check_fedfomo_explores, fedfomo_takes_the_first),
    Defect("FedFomo weighs models in training mode",
           check_fedfomo_weighs_models_as_they_predict, fedfomo_weighs_models_in_training_mode),
    Defect("FedGen's teacher is the server's old model",
           check_fedgens_generator_is_trained_on_the_heads_that_were_sent,
           fedgens_teacher_is_the_servers),
    Defect("FedGen's noise is uniform",
           check_fedgens_noise_is_gaussian, fedgens_noise_is_uniform),
    Defect("FedDistill's teacher knows the student",
           check_feddistills_teacher_is_the_others, feddistills_teacher_knows_the_student),
    Defect("FedDistill forgets who is absent",
           check_feddistill_remembers_who_is_absent, feddistill_forgets_who_is_absent,
           KeyError),
    Defect("FedDistill's term is a squared error",
           check_feddistills_term_is_a_cross_entropy, feddistills_term_is_a_squared_error),
    Defect("IFCA's models begin alike",
           check_ifcas_models_begin_apart, ifcas_models_begin_alike),
    Defect("IFCA's cluster is chosen by test examples",
           check_ifcas_cluster_is_chosen_by_training_examples,
           ifcas_cluster_is_chosen_by_test_examples),
    Defect("CFL takes positions for clients",
           check_cfls_parts_are_of_clients, cfl_takes_positions_for_clients),
    Defect("CFL has complete linkage",
           check_cfls_split_separates_what_is_least_alike, cfl_has_complete_linkage),
    Defect("kNN-Per's kernel takes distances",
           check_knnpers_kernel_takes_squares, knnpers_kernel_takes_distances),
    Defect("FedEM forgets the weights",
           check_fedems_shares_know_the_weights, fedem_forgets_the_weights),
    Defect("FedAS aligns with its untrained net",
           check_fedas_does_not_align_with_an_untrained_net, fedas_aligns_with_its_untrained_net),
    Defect("FedETF has the plain loss",
           check_fedetfs_loss_knows_the_counts, fedetf_has_the_plain_loss),
    Defect("pFedFDA's covariance is around the common mean",
           check_pfedfdas_covariance_is_around_the_class_means,
           pfedfdas_covariance_is_around_the_common_mean),
    Defect("pFedHN steps away from what clients trained",
           check_pfedhn_steps_towards_what_clients_trained, pfedhn_steps_away),
    Defect("Floco draws points beside the simplex",
           check_floco_draws_points_of_the_simplex, floco_draws_points_beside_the_simplex),
    Defect("PeFLL's embedding is detached",
           check_peflls_embedding_is_trained, peflls_embedding_is_detached),
    Defect("FLoRA tells A from B by its length",
           check_floras_net_moves_by_the_mean_of_the_products, flora_tells_a_from_b_by_its_length,
           RuntimeError),
    Defect("Local trains a sample", check_local_trains_everybody, local_trains_the_chosen),
]
# fmt: on
every_defect = pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.name)


@every_defect
def test_we_do_not_have_it(defect):
    defect.check()


@every_defect
def test_the_check_sees_it_when_put_back(defect, monkeypatch):
    defect.put_back(monkeypatch)
    with pytest.raises(defect.noticed):
        defect.check()
