"""What every algorithm owes: the same bits on every engine, and nothing personal on the wire."""

from __future__ import annotations

import dataclasses

import pytest

import heterophony as hp
from heterophony import engines
from heterophony.algorithms import CLASSES, algorithm
from heterophony.engines import serial
from heterophony.models.convnet import convnet
from heterophony.plan import Job
from heterophony.tensors import matches, raw
from support import (
    QUICK,
    Recorder,
    digits,
    identical,
    model,
    net_with_batch_norm,
    played,
    same,
)

ALGORITHMS = sorted(CLASSES)
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@every_algorithm
def test_the_pool_gives_the_serial_bits(name):
    assert identical(played(name), played(name, engine="pool", workers=2))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(workers):
    how = {"model": "digitsnet", "rounds": 2}
    assert identical(
        played("fedreg", **how), played("fedreg", engine="pool", workers=workers, **how)
    )


@every_algorithm
def test_it_resumes_to_the_same_bits(name, tmp_path):
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
            played(name, out=out, resume=True, on_event=stop_at(t))
    assert identical(played(name), played(name, out=out, resume=True))


@every_algorithm
def test_it_runs_with_one_client(name):
    result = played(name, digits(clients=1, examples=80))
    assert set(result.clients) == {"0"}


@every_algorithm
def test_it_runs_with_a_client_selected_late_and_one_never(name):
    class Late:
        def chosen(self, t, clients, seed):
            return [clients[0], clients[1]] if t < 2 else [clients[1], clients[2]]

    result = played(name, participation=Late())
    if not result.plan.algorithm.everybody:
        took_part = {c: r.participations for c, r in result.clients.items()}
        assert took_part == {"0": 2, "1": 3, "2": 1, "3": 0, "4": 0, "5": 0}


@every_algorithm
def test_it_runs_with_batch_norm_on_both_engines(name):
    how = {"model": net_with_batch_norm, "rounds": 2}
    assert identical(played(name, **how), played(name, engine="pool", workers=2, **how))


@every_algorithm
def test_it_learns(name):
    how = {"rounds": 12, "training": hp.Training(epochs=3, batch=10, lr=0.05), "participation": 1.0}
    result = played(name, digits(alpha=100.0), **how)
    best = result.P.best if result.G is None else min(result.P.best, result.G.best)
    assert best > 0.7


@every_algorithm
def test_nothing_personal_travels(name, monkeypatch):
    kept: list[Recorder] = []

    def record(plan, place, workers):
        kept.append(Recorder(plan, place))
        return kept[0]

    monkeypatch.setattr(serial, "Serial", record)
    result = played(name, model="digitsnet")
    personal = result.plan.algorithm.personal
    names = {k for k in result.plan.template.state_dict() if matches(k, personal)}
    places = result._run.place
    own = {
        raw(v)
        for c in result.plan.federation.clients
        for k, v in places.memory(c, before=99).get("net", hp.Tensors()).items()
        if v.numel() > 1
    }
    sent = [t for job, reply in kept[0].log for t in (job.tensors, reply.tensors)]
    assert not any(names & set(t) for t in sent)
    assert not any(raw(v) in own for t in sent for v in t.values())
    assert bool(names) == bool(personal)


@every_algorithm
def test_bytes_are_those_of_the_tensors_that_travelled(name, monkeypatch):
    kept: list[Recorder] = []
    monkeypatch.setattr(
        serial, "Serial", lambda plan, place, workers: kept.append(Recorder(plan, place)) or kept[0]
    )
    result = played(name)
    trained = [(job, reply) for job, reply in kept[0].log if job.kind == "train"]
    down = sum(v.numel() * v.element_size() for job, _ in trained for v in job.tensors.values())
    up = sum(v.numel() * v.element_size() for _, r in trained for v in r.tensors.values())
    assert result.summary.bytes == {"up": up, "down": down}


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
def test_what_travels_is_the_specs(name, depth, shared):
    """ConvNet on CIFAR-10 shapes."""
    how = algorithm(name)()
    net = how.build(convnet((3, 32, 32), 10, depth))
    assert sum(net.get_parameter(k).numel() for k in how.shared(net, 0)) == shared


@every_algorithm
def test_all_defaults_are_within_their_own_ranges_and_explained(name):
    for f in dataclasses.fields(algorithm(name)):
        assert f.metadata["doc"]


def test_the_same_seed_deals_and_selects_the_same_for_every_algorithm():
    runs = [played(name) for name in ALGORITHMS if not algorithm(name).everybody]
    cohorts = [[e["clients"] for e in r.events if e["event"] == "round"] for r in runs]
    assert all(c == cohorts[0] for c in cohorts)


def test_another_seed_is_another_run():
    assert not identical(played("fedavg"), played("fedavg", seed=1))


def test_evaluating_less_often_or_not_sharing_features_changes_no_bit(monkeypatch):
    often = played("fedreg", model="digitsnet")
    seldom = played("fedreg", model="digitsnet", evaluate_every=2)
    assert often.model_sha256 == seldom.model_sha256
    assert [e["t"] for e in seldom.events if e["event"] == "evaluation"] == [0, 2, 3]
    monkeypatch.setattr("heterophony.plan.one_base", lambda algorithm, client: False)
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
    assert same(model(result), result.plan.start().model)
    assert result.summary.seconds >= 0


def test_longest_client_first_and_evaluations_last():
    jobs = [
        Job("evaluate", 0, "a", hp.Tensors(), cost=9),
        Job("train", 0, "b", hp.Tensors(), cost=1),
        Job("train", 0, "c", hp.Tensors(), cost=5),
    ]
    assert [j.client for j in engines.in_order(jobs)] == ["c", "b", "a"]


def test_training_settings_do_not_leak_between_jobs():
    once, twice = (played("fedavg", rounds=2, training=QUICK) for _ in range(2))
    assert identical(once, twice)
