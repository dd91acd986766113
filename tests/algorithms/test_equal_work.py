"""Equal work by default: what methods go through in a round, relative to FedAvg, and what they split."""

from __future__ import annotations

from dataclasses import asdict

import pytest

import heterophony as hp
from helpers.support import QUICK, identical, model, net_with_batch_norm, played, watching
from heterophony.algorithms.ditto import Ditto
from heterophony.algorithms.feddecomp import FedDecomp
from heterophony.algorithms.fedrep import FedRep
from heterophony.algorithms.local import Local
from heterophony.core.errors import ConfigError
from heterophony.runs.summary import summarise

FIVE = hp.Training(epochs=5, batch=16, lr=0.05)


def measure_work(algorithm: str | hp.Algorithm, **how) -> float | None:
    return played(algorithm, **{"rounds": 2, **how}).summary.relative_work


@pytest.mark.parametrize(
    ("name", "work"), [("fedrep", 1.0), ("feddecomp", 1.0), ("local", 1.0), ("ditto", 2.0)]
)
def test_by_default_methods_do_the_work_of_fedavg_or_say_how_much_more(name, work):
    for epochs in (1, 2):
        training = hp.Training(epochs=epochs, batch=16, lr=0.05)
        assert measure_work(name, training=training) == work
    assert measure_work(name, training=hp.Training(steps=3, batch=16, lr=0.05)) == work


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2, "drop_last": False},
        {"epochs": 2, "batch": 64},
        {"steps": 7},
        {"steps": 7, "drop_last": False},
        {"epochs": 0},
    ],
)
def test_fedavg_goes_through_the_examples_that_are_counted_for_it(settings):
    training = hp.Training(**{"batch": 13, "lr": 0.01, **settings})
    for net in ("mlp", net_with_batch_norm):
        result = played("fedavg", rounds=1, training=training, model=net)
        (event,) = [e for e in result.events if e["event"] == "round"]
        assert event["examples"] == event["fedavg_examples"]
        assert result.summary.relative_work == (None if settings == {"epochs": 0} else 1.0)
        assert result.summary.examples_per_round == event["examples"]


def test_work_is_in_the_result_and_missing_where_a_run_of_before_did_not_record_it():
    result = played("fedavg", rounds=1)
    assert result.summary.to_dict()["relative_work"] == 1.0
    older = [{k: v for k, v in e.items() if "examples" not in k} for e in result.events]
    assert not {"relative_work", "examples_per_round"} & summarise(older).to_dict().keys()


def test_local_trains_the_selected_clients_or_all():
    selected, everybody = (played(Local(clients=c), rounds=2) for c in ("selected", "all"))
    fedavg = played("fedavg", rounds=2)
    clients = [
        [e["clients"] for e in r.events if e["event"] == "round"]
        for r in (selected, fedavg, everybody)
    ]
    assert clients[0] == clients[1]
    assert clients[2] == [list(everybody.plan.federation.clients)] * 2
    sizes = everybody.plan.federation.sizes()
    used = {c: n // QUICK.batch * QUICK.batch or n for c, n in sizes.items()}
    usual = sum(used[c] for chosen in clients[1] for c in chosen)
    assert everybody.summary.relative_work == 2 * sum(used.values()) / usual


@pytest.mark.parametrize(
    ("default", "explicit"),
    [
        (FedRep(), FedRep(head_epochs=4, base_epochs=1)),
        (FedDecomp(), FedDecomp(own_epochs=2)),
        (Ditto(), Ditto(own_epochs=5)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_the_defaults_with_five_epochs(default, explicit):
    a, b = (played(x, rounds=2, training=FIVE) for x in (default, explicit))
    assert identical(a, b)
    assert None in asdict(default).values()


def test_a_single_epoch_is_split_by_mini_batches():
    steps = []

    def check(client, fit, loss, **how):
        before = client.examples
        fit(loss, **how)
        steps.append((how.get("phase", "main"), (client.examples - before) // 4))

    training = hp.Training(epochs=1, batch=4, lr=0.05)
    for algorithm in (FedRep, FedDecomp):
        steps.clear()
        played(watching(algorithm, check), rounds=1, participation=1 / 6, training=training)
        (first, early), (_, late) = steps
        share = {"head": 4, "own": 2}[first]
        assert early == (early + late) * share // 5 > 0


def test_feddecomp_trains_both_parts_whatever_the_epochs_are():
    result = played(FedDecomp(changes=True), rounds=1, training=hp.Training(epochs=2, lr=0.05))
    (event,) = [e for e in result.events if e["event"] == "round"]
    assert event["measures"]["delta_sigma"] > 0
    assert event["measures"]["delta_tau_factors"] > 0


def test_feddecomp_refuses_more_epochs_for_the_first_part_than_there_are():
    with pytest.raises(
        ConfigError, match=r"^algorithm.own_epochs: 3 is more than training.epochs = 2; lower"
    ):
        played(FedDecomp(own_epochs=3), training=hp.Training(epochs=2))
    kept = played(FedDecomp(own_epochs=1), rounds=1)  # all: as in the paper's Figure 5
    start = kept.plan.create_initial_server().model
    assert all((model(kept)[k] == start[k]).all() for k in start)
