"""Tests that every algorithm must pass: same bits on every engine, nothing personal is sent, ..."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import heterophony as hp
from helpers.support import (
    CALM,
    QUICK,
    Recorder,
    calm,
    digits,
    identical,
    memory,
    model,
    net_with_batch_norm,
    played,
    same,
    untimed,
)
from heterophony.algorithms import ALGORITHM_CLASSES, get_algorithm_class
from heterophony.core.tensors import matches_any, state, tensor_to_bytes
from heterophony.engines import base
from heterophony.jobs.plan import Job
from heterophony.models.convnets import convnet

ALGORITHMS = sorted(ALGORITHM_CLASSES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@pytest.fixture
def recorder(monkeypatch) -> list[Recorder]:
    """The engines of the runs of a test; each one records its jobs and replies."""
    kept: list[Recorder] = []

    def record(plan, place, *_):
        kept.append(Recorder(plan, place))
        return kept[-1]

    monkeypatch.setattr(base, "Serial", record)
    return kept


@every_algorithm
def test_the_pool_gives_the_serial_bits(name):
    """One worker: starting it takes most of the time; other tests have more."""
    pooled = played(name, engine="pool", workers=1, **CALM)
    assert untimed(pooled) == untimed(calm(name))  # with the model's hash, at the end


@every_algorithm
def test_the_same_seed_selects_the_same_clients_for_every_algorithm(name):
    how = get_algorithm_class(name)
    if not (how.everybody or how.pooled):
        assert list_cohorts(name) == list_cohorts("fedavg")


def list_cohorts(name: str) -> list[list[str]]:
    return [e["clients"] for e in calm(name).events if e["event"] == "round"]


@pytest.mark.parametrize("name", ["fedamp", "fedavg", "fedreg", "scaffold"])
def test_the_number_of_workers_changes_nothing(name):
    """Own models, none, personal tensors, the server's memory."""
    assert identical(calm(name), played(name, engine="pool", workers=3, **CALM))


@pytest.mark.parametrize("name", ["fedamp", "fedavg", "feddecomp", "fedreg", "scaffold"])
def test_it_resumes_to_the_same_bits(name, tmp_path):
    """After an error; `test_crash.py` tests kill -9 at any moment, for every algorithm."""

    class StopError(Exception):
        pass

    def stop_at(t):
        def stop(event):
            if event["event"] == "round" and event["t"] == t:
                raise StopError

        return stop

    out = tmp_path / "run"
    for t in (0, 1):
        with pytest.raises(StopError):
            played(name, out=out, resume=True, on_event=stop_at(t), **CALM)
    assert identical(calm(name), played(name, out=out, resume=True, **CALM))


@every_algorithm
def test_it_runs_with_one_client(name):
    result = played(name, digits(clients=1, examples=80), rounds=2)
    assert set(result.clients) == {"0"}


@every_algorithm
def test_it_runs_with_a_client_selected_late_and_one_never(name):
    class Late:
        def chosen(self, t, clients, seed):
            return [clients[0], clients[1]] if t < 2 else [clients[1], clients[2]]

    result = played(name, participation=Late())
    how, turns = result.plan.algorithm, [2, 3, 1, 0, 0, 0]
    expected = [3] * 6 if how.everybody else [0] * 6 if how.pooled else turns
    assert [r.participations for r in result.clients.values()] == expected


# one algorithm for each way to treat BatchNorm, or to copy a net
NORMAL = ["ditto", "fedamp", "fedavg", "fedbn", "feddecomp", "fedper", "fedreg", "pfedgate",
          "scaffold"]  # fmt: skip


NORMED = {"model": net_with_batch_norm, "rounds": 2}


@every_algorithm
def test_it_runs_with_batch_norm(name):
    assert played(name, **NORMED).summary.rounds == 2


@pytest.mark.parametrize("name", NORMAL)
def test_batch_norm_gives_the_serial_bits_on_the_pool(name):
    assert identical(played(name, **NORMED), played(name, engine="pool", workers=1, **NORMED))


@cache
def coloured() -> hp.Federation:
    """Two clients with a few images of CIFAR-10's shape."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, size=(24, 32, 32, 3), dtype=np.uint8)
    return hp.federate((x, np.arange(24) % 4), clients=2, partition=hp.IID())


@every_algorithm
def test_it_moves_what_it_trains_and_measures_every_client(name):
    result = calm(name)
    start, sizes = state(result.plan.template), result.plan.federation.sizes("test")
    assert {c: r.total for c, r in result.clients.items()} == sizes
    trained = [c for c, r in result.clients.items() if r.participations] or ["0"]  # or pooled data
    after = result.personal(trained[0]).net.state_dict()
    assert any(not torch.equal(start[k], after[k]) for k in start)


@pytest.mark.parametrize("name", NORMAL)
def test_it_runs_with_convnet_on_colours(name):
    how = {"model": "convnet", "rounds": 1, "participation": 1.0, "evaluate_every": 9}
    training = hp.Training(steps=2, batch=4, lr=0.01)
    result = played(name, coloured(), training=training, **how)
    assert [c.total for c in result.clients.values()] == [3, 3]


LEARNS = {  # settings for a few rounds, where the defaults are for hundreds
    "fedavg2rep": {"warmup_rounds": 3},
    "perfedavg": {"beta": 0.05},
    "pfedgate": {"sparsity": 0.75},  # with 1 nothing would be left out
}


@every_algorithm
def test_it_learns(name):
    rounds = 12 if name == "pfedme" else 6
    steps = (
        {"lr": 0.02, "momentum": 0.0} if name == "apple" else {"lr": 0.05}
    )  # it adds up its steps
    how = {"training": hp.Training(epochs=3, batch=10, **steps), "participation": 1.0}
    how |= {"rounds": rounds, "evaluate_every": 3}
    result = played(get_algorithm_class(name)(**LEARNS.get(name, {})), digits(alpha=100.0), **how)
    assert (result.G is not None) == get_algorithm_class(name).common
    best = result.P.best if result.G is None else min(result.P.best, result.G.best)
    assert best > 0.7


@every_algorithm
def test_nothing_personal_travels_and_bytes_are_those_of_what_did(name, recorder):
    """Neither under its own name nor, as the very same values, under another one."""
    result = played(name, model="digitsnet")
    plan, store = result.plan, result._run_folder.client_store
    stay = list(plan.algorithm.stays(plan.template))
    names = {k for k in plan.template.state_dict() if matches_any(k, stay)}
    assert bool(names) == bool(stay)
    kept = [
        store.load_memory(c, before=99).get("net", hp.Tensors()) for c in plan.federation.clients
    ]
    own = {
        tensor_to_bytes(v) for net in kept for k, v in net.items() if k in names and is_learned(v)
    }
    assert bool(own) == bool(names)
    sent = [t for job, reply in recorder[0].log for t in (job.tensors, reply.tensors)]
    assert not any(names & set(t) for t in sent)
    assert not any(tensor_to_bytes(v) in own for t in sent for v in t.values())
    trained = [(job, reply) for job, reply in recorder[0].log if job.kind == "train"]
    down = sum(v.numel() * v.element_size() for job, _ in trained for v in job.tensors.values())
    up = sum(v.numel() * v.element_size() for _, r in trained for v in r.tensors.values())
    if plan.algorithm.pooled:  # data were moved before the run; no model is sent
        up = down = 0
    assert result.summary.bytes == {"up": up, "down": down}


def frozen_at(*parts: str) -> hp.Net:
    """A net with frozen parts, one of them with running statistics."""
    base = [nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8)]
    net = hp.Net(nn.Sequential(*base, nn.ReLU()), nn.Linear(8, 10))
    for part in parts:
        net.get_submodule(part).requires_grad_(False)
    return net


# nothing of the base is shared or trained: passes without parameters, empty messages
WHOLE_BASE = ["fedbabu", "fedfomo", "fedpac", "fedper", "fedrep", "fixhead", "pfedgate", "scaffold"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [(n, ("base.1", "base.2")) for n in ALGORITHMS] + [(n, ("base",)) for n in WHOLE_BASE],
)
def test_frozen_parameters_stay_what_they_are_and_are_neither_sent_nor_stored(
    name, parts, recorder
):
    net = frozen_at(*parts)
    how = {"training": hp.Training(steps=2, batch=8), "rounds": 2, "evaluate_every": 2}
    how |= {"fedala": {"passes": 1}, "fedbabu": {"tune_epochs": 1}}.get(name, {})
    result = played(name, digits(clients=2, examples=60), model=net, participation=1.0, **how)
    plan = result.plan
    initial = {f"base.{k}": p for k, p in net.base.named_parameters() if not p.requires_grad}
    given = {k: k.replace(".common.", ".") for k in plan.given}  # FedDPA wraps adapted layers
    assert set(initial) <= set(given.values())
    for client in plan.federation.clients:
        after = result.personal(client).net.state_dict()
        for key, plain in given.items():  # copies too: own.base.1.weight
            before = initial.get(f"base.{plain.rpartition('base.')[2]}")
            assert before is None or torch.equal(after[key], before), key
    values = {tensor_to_bytes(v) for v in initial.values() if is_learned(v)}
    memories = [memory(result, c) for c in plan.federation.clients]
    seen = [t for job, r in recorder[0].log for t in (job.tensors, r.tensors, r.aside)]
    seen += [t for groups in (*memories, result._server.memory) for t in groups.values()]
    assert not any(set(plan.given) & set(t) for t in seen)
    assert not any(tensor_to_bytes(v) in values for t in seen for v in t.values())


def is_learned(v: torch.Tensor) -> bool:
    """Could a client have learned it? A tensor that repeats one number was not."""
    return len(v.unique()) > 1


@pytest.mark.parametrize(
    ("name", "depth", "shared"),
    [
        ("fedavg", 1, 797_962),
        ("fedprox", 1, 797_962),
        ("fedrod", 1, 797_962),
        ("fedreg", 2, 797_962),
        ("fedper", 1, 796_032),  # 0.9976 of FedAvg's
        ("fedper", 2, 722_112),  # 0.9050
        ("fedper", 3, 107_328),  # 0.1345
        ("local", 1, 0),
    ],
)
def test_what_travels_is_the_papers(name, depth, shared):
    """ConvNet on CIFAR-10 shapes."""
    how = get_algorithm_class(name)()
    net = how.build(convnet((3, 32, 32), 10, depth))
    assert sum(net.get_parameter(k).numel() for k in how.shared(net, 0)) == shared


@every_algorithm
def test_all_defaults_are_within_their_own_ranges_and_explained(name):
    for f in dataclasses.fields(get_algorithm_class(name)):
        assert f.metadata["doc"]


def test_another_seed_is_another_run():
    assert not identical(played("fedavg"), played("fedavg", seed=1))


def test_evaluating_less_often_or_not_sharing_features_changes_no_bit(monkeypatch):
    often = played("fedreg", model="digitsnet")
    seldom = played("fedreg", model="digitsnet", evaluate_every=2)
    assert often.model_sha256 == seldom.model_sha256
    assert [e["t"] for e in seldom.events if e["event"] == "evaluation"] == [0, 2, 3]
    monkeypatch.setattr("heterophony.jobs.evaluation.has_same_base", lambda *_: False)
    assert identical(often, played("fedreg", model="digitsnet"))


def test_evaluation_has_r_plus_one_points_and_p_local_counts_the_participants():
    result = played("fedavg")
    times = [e["t"] for e in result.events if e["event"] == "evaluation"]
    assert times == [0, 1, 2, 3]
    tests = result.plan.federation.sizes("test")
    for e in result.events:
        if e["event"] == "round":
            assert [total for _, total in e["P_local"]] == [tests[c] for c in e["clients"]]


def test_a_run_without_rounds_measures_the_untrained_model():
    result = played("fedavg", rounds=0)
    assert same(model(result), result.plan.create_initial_server().model)
    assert result.summary.seconds >= 0


def test_longest_client_first_and_evaluations_last():
    jobs = [
        Job(kind="evaluate", t=0, client="a", tensors=hp.Tensors(), cost=9),
        Job(kind="train", t=0, client="b", tensors=hp.Tensors(), cost=1),
        Job(kind="train", t=0, client="c", tensors=hp.Tensors(), cost=5),
    ]
    assert [j.client for j in base.sort_jobs(jobs)] == ["c", "b", "a"]


def test_training_settings_do_not_leak_between_jobs():
    once, twice = (played("fedavg", rounds=2, training=QUICK) for _ in range(2))
    assert identical(once, twice)
