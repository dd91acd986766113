"""Tunes: equal budgets, proposals that depend on finished batches only, choice by validation alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import heterophony as hp
from helpers.commands import call
from helpers.forked import Forked
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError, FolderError
from heterophony.runs.run_index import STOPPED_FILE
from heterophony.studies.hooks import MedianRule, compute_median_limits, list_comparison_rounds
from heterophony.studies.search import (
    BATCH,
    STARTUP_TRIALS,
    TriedSettings,
    ValueRange,
    propose_batch,
)
from heterophony.studies.sweep import CallSpecMaker
from heterophony.studies.tune import (
    TuneRequest,
    build_tune,
    parse_own_settings,
    read_tune_request,
    write_tune_request,
)

SPACE = {"lr": ValueRange(0.001, 1.0, False), "n": ValueRange(1, 9, True), "w": ("a", "b")}
SMALL = ("rounds=4", "data.clients=3", "training.steps=2", "model.name=mlp", "engine.name=serial")
SEARCH = ("tune", "fedavg", "fedprox", "-s", "lr=0.01..0.5", "-s", "fedprox.mu=0.001..1.0")
LONG = (*SEARCH, "--trials", "9", "--sampler", "random")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def words(*settings: str) -> list[str]:
    return [word for s in settings for word in ("-c", s)]


def tune(*arguments: str, out: str = "t") -> dict:
    return json.loads(call(*arguments, *words(*SMALL), "--out", out, "--json").stdout)


# Proposals ---------------------------------------------------------------------------------------


def score(settings: dict) -> float:
    return 1 - abs(np.log10(settings["lr"]) + 1) / 3


def search(sampler: str, count: int, seed: int = 0) -> list[TriedSettings]:
    tried: list[TriedSettings] = []
    while len(tried) < count:
        batch = propose_batch(sampler, SPACE, tried, BATCH, seed)
        tried += [TriedSettings(s, score(s)) for s in batch]
    return tried


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_proposals_repeat_themselves_differ_by_seed_and_are_in_range(sampler):
    found = search(sampler, 16)
    assert found == search(sampler, 16)
    assert found != search(sampler, 16, seed=1)
    assert all(0.001 <= t.settings["lr"] <= 1 and 1 <= t.settings["n"] <= 9 for t in found)
    assert len({json.dumps(t.settings) for t in found}) == 16


def test_tpe_begins_at_random_and_then_learns_from_what_was_tried():
    drawn, learned = search("random", 40), search("tpe", 40)
    assert drawn[:STARTUP_TRIALS] == learned[:STARTUP_TRIALS]
    late = slice(20, None)
    mean = [np.mean([t.accuracy for t in found[late]]) for found in (drawn, learned)]
    assert mean[1] > mean[0] + 0.1


def test_trials_without_a_result_lead_tpe_away():
    bad = [TriedSettings({"lr": lr, "n": 1, "w": "a"}, None) for lr in (0.5, 0.6, 0.7, 0.8)]
    good = [TriedSettings({"lr": lr, "n": 1, "w": "a"}, 0.9) for lr in (0.002, 0.003, 0.004, 0.005)]
    assert all(s["lr"] < 0.5 for s in propose_batch("tpe", SPACE, bad + good, 4, 0))


def test_a_grid_is_gone_through_once_in_an_order_of_the_seed():
    space = {"a": (1, 2, 3), "b": ("x", "y")}
    first = propose_batch("grid", space, [], 4, 0)
    rest = propose_batch("grid", space, [TriedSettings(s, 0.5) for s in first], 4, 0)
    assert len(first) == 4
    assert len(rest) == 2
    assert propose_batch("grid", space, [], 6, 0) == first + rest
    assert propose_batch("grid", space, [], 6, 0) != propose_batch("grid", space, [], 6, 3)
    with pytest.raises(ConfigError, match=r"^lr: a range has no grid"):
        propose_batch("grid", SPACE, [], 4, 0)


# Early stops -------------------------------------------------------------------------------------


def make_events(*accuracies: int) -> list[dict]:
    start = {"event": "start", "validation": [60, 40]}
    return [
        start,
        *({"event": "evaluation", "t": t, "P_valid": [a, 0]} for t, a in enumerate(accuracies)),
    ]


def test_a_run_stops_below_the_median_of_earlier_ones_at_a_checkpoint():
    assert list_comparison_rounds(8) == [2, 4, 6]
    earlier = [make_events(0, 0, a, a, a) for a in (10, 20, 30, 40)]
    limits = compute_median_limits(8, earlier, "P")
    assert limits == {2: 0.25, 4: 0.25}
    assert compute_median_limits(8, earlier[:3], "P") == {}
    rule = MedianRule("P", limits)
    assert not any(map(rule, make_events(0, 26, 0, 0)))  # the best so far counts, not the last
    slow, (*before, last) = MedianRule("P", limits), make_events(0, 0, 24)
    assert not any(map(slow, before))
    assert slow(last) == hp.Stop("below the median of earlier trials", abandon=True)
    assert slow.stopped == {"round": 2, "accuracy": 0.24, "limit": 0.25}


# Whole tunes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    table = json.loads(call(*LONG, *words(*SMALL), "--out", str(folder / "t"), "--json").stdout)
    return folder / "t", table


def test_every_algorithm_has_the_same_number_of_trials_and_its_own_settings(reference):
    folder, table = reference
    fedavg, fedprox = table["algorithms"]
    assert fedavg["trials"] == fedprox["trials"] == 9
    assert list(fedavg["best"]) == ["training.lr"]
    assert list(fedprox["best"]) == ["training.lr", "algorithm.mu"]
    stopped = sum(a["stopped"] for a in table["algorithms"])
    assert stopped == len(list(folder.glob(f"*/*/{STOPPED_FILE}"))) > 0
    full = 2 * 9 * 4
    assert full - 4 * stopped < sum(a["rounds"] for a in table["algorithms"]) < full
    chosen = (folder / "chosen" / "fedprox.toml").read_text()
    assert f"mu = {fedprox['best']['algorithm.mu']}" in chosen
    assert read_config(folder / "chosen" / "fedprox.toml").data.validation_fraction == 0
    assert (folder / "tune.png").stat().st_size > 5000


def forget_trials(folder: Path, kept: int) -> None:
    """Take all but the first trials out of what the search has recorded."""
    content = json.loads((folder / "sweep.json").read_text())
    content["runs"] = dict(list(content["runs"].items())[:kept])
    (folder / "sweep.json").write_text(json.dumps(content))


def test_a_tune_that_loses_its_last_trials_ends_with_the_same_choice(reference, tmp_path):
    """As after kill -9 at several moments: a run without its end, a batch without its folders."""
    folder, table = reference
    again = tmp_path / "t"
    shutil.copytree(folder, again)
    shutil.rmtree(again / "chosen")
    forget_trials(again / "fedavg", 8)  # killed after the folders of the last batch were written
    content = json.loads((again / "fedprox" / "sweep.json").read_text())
    for name in list(content["runs"])[4:]:
        if (
            again / "fedprox" / name / STOPPED_FILE
        ).exists():  # killed before the stop was recorded
            (again / "fedprox" / name / STOPPED_FILE).unlink()
    forget_trials(again / "fedprox", 8)
    shutil.rmtree(again / "fedprox" / list(content["runs"])[8])  # killed before they were written
    found = json.loads(call("resume", str(again), "--json").stdout)
    assert found == table
    for path in folder.glob("*/*/result.json"):
        other = again / path.relative_to(folder)
        assert json.loads(path.read_text())["model_sha256"] in other.read_text()


def test_a_killed_tune_continues_to_the_same_choice(reference, tmp_path):
    _, table = reference
    out = tmp_path / "t"
    command = [*LONG, *words(*SMALL), "--out", str(out), "--json"]
    process = Forked(*command)
    while len(list(out.glob("*/*/result.json"))) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)  # polling, not waiting
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(children, timeout=60)
    assert json.loads(call(*command).stdout) == table


def test_test_labels_do_not_influence_the_choice(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.random((240, 8), dtype=np.float32), generator.integers(0, 3, 240)
    tables = []
    for poison in (False, True):
        clients = []
        for i in range(3):
            part = slice(80 * i, 80 * i + 60)
            rest = slice(80 * i + 60, 80 * i + 80)
            test = (y[rest] + 1) % 3 if poison else y[rest]
            clients.append((x[part], y[part], x[rest], test))
        federation = hp.federate(clients, validation_fraction=0.3)
        found = hp.tune(
            ["fedavg", "fedper"],
            federation,
            {"lr": "0.01..1.0"},
            trials=8,
            rounds=4,
            model="mlp",
            participation=1.0,
            out=tmp_path / str(poison),
            progress=False,
        )
        tables.append(found)
    plain, poisoned = tables
    assert plain.best == poisoned.best
    assert [t.settings for t in plain["fedavg"].rows] == [
        t.settings for t in poisoned["fedavg"].rows
    ]
    assert plain["fedavg"].rows[0].P.validation == poisoned["fedavg"].rows[0].P.validation
    assert plain["fedavg"].rows[0].P.test != poisoned["fedavg"].rows[0].P.test


def test_the_learning_rate_is_searched_for_all_algorithms_also_beside_the_one_called_local():
    searched = ["local.lr=0.1,0.2", 'local.clients="all","selected"']
    names, rates = ["local", "fedavg"], {"training.lr": (0.1, 0.2)}
    of_local = {**rates, "algorithm.clients": ("all", "selected")}
    request = TuneRequest(names, searched, [*SMALL], [0], sampler="random", trials=2)
    assert build_tune(request, None).search.spaces == {"local": of_local, "fedavg": rates}
    plain = {"local.lr": [0.1, 0.2], "local.clients": ["all", "selected"]}
    some = hp.federate("digits", clients=2)
    makers = {name: CallSpecMaker.from_call(name, some, {}) for name in names}
    found = {name: parse_own_settings(makers[name], plain, name, makers) for name in names}
    assert found == {"local": of_local, "fedavg": rates}


def test_keep_runs_a_grid_to_its_end_and_chooses_nothing():
    grid = ("tune", "fedavg", "-s", "lr=0.01,0.1,0.2,0.3,0.4,0.5", "--sampler", "grid", "--keep")
    table = tune(*grid)
    assert [row["state"] for row in table["algorithms"][0]["rows"]] == ["finished"] * 6
    assert not Path("t/chosen").exists()


def test_an_algorithm_can_be_added_to_a_tune_but_none_taken_away(tmp_path):
    def ask(*algorithms: str) -> TuneRequest:
        return TuneRequest(list(algorithms), ["lr=0.1,0.2"], [*SMALL], [0], sampler="grid")

    write_tune_request(tmp_path, ask("fedavg"), None)
    write_tune_request(tmp_path, ask("fedper", "fedavg"), None)
    assert read_tune_request(tmp_path) == ask("fedper", "fedavg")
    with pytest.raises(FolderError, match="holds a tune of fedper fedavg: name them too"):
        write_tune_request(tmp_path, ask("fedper"), None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "fedavg"], "-s"),
        (
            ["tune", "fedavg", "-s", "algorithm.mu=0.1,0.2"],
            "none of these algorithms|names no setting that can",
        ),
        (["tune", "fedavg", "-s", "fedavg.mu=1,2"], "fedavg has no such setting"),
        (["tune", "fedavg", "-s", "lr=-1,0.1"], "lr"),
        (["tune", "fedavg", "-s", "lr=0.1..1.0", "--sampler", "grid"], "a range has no grid"),
        (
            [
                "tune",
                "fedavg",
                "fedprox",
                "-s",
                "lr=0.1,0.2",
                "-s",
                "fedprox.mu=0,1",
                "--sampler",
                "grid",
            ],
            "different numbers of combinations",
        ),
        (["tune", "fedavg", "-s", "lr=0.1,0.2", "-c", "data.validation_fraction=0"], "above 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments, said):
    done = call(*arguments, "--out", "t")
    assert done.exit_code == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert any(word in line for word in said.split("|"))
    assert not Path("t").exists()
