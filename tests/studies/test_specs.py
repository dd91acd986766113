"""One way in: Python and the command line write the same runs, and hooks and settings end them."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch

import heterophony as hp
from helpers.commands import call, refused
from helpers.support import QUICK
from heterophony.config.reading import read_config
from heterophony.core.errors import ConfigError
from heterophony.runs.events import Event, find_kept_round
from heterophony.studies.hooks import Patience

HOW = {"rounds": 4, "model": "mlp", "participation": 1.0, "training": QUICK, "progress": False}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@cache
def named() -> hp.Federation:
    """Digits by name, so that settings describe the whole run; with validation examples."""
    return hp.federate(
        "digits", clients=4, partition=hp.Dirichlet(0.5), seed=2, validation_fraction=0.25
    )


class StopError(Exception):
    """Something happened in the middle."""


def fail_at_round_1(event: Event) -> None:
    if event["event"] == "round" and event["t"] == 1:
        raise StopError


def stop_at_round_1(event: Event) -> hp.Stop | None:
    return hp.Stop("enough") if event["event"] == "round" and event["t"] == 1 else None


def count_right(model: torch.nn.Module, client: str) -> int:
    test = named().data(client).test
    with torch.inference_mode():
        return int((model(test.get_all_stored()).argmax(1) == test.labels).sum())


# Folders ------------------------------------------------------------------------------------------


def test_the_command_line_resumes_a_run_of_python_with_named_parts():
    whole = hp.run("fedprox", named(), mu=0.3, seed=5, **HOW)
    with pytest.raises(StopError):
        hp.run("fedprox", named(), mu=0.3, seed=5, out="mine", on_event=fail_at_round_1, **HOW)
    assert json.loads(call("resume", "mine", "--json").stdout)["model_sha256"] == whole.model_sha256
    loaded = hp.load("mine")
    assert count_right(loaded.personal(3), "3") == whole.clients[3].correct
    assert count_right(loaded.generic(), "3") == whole.events[-2]["G"][3]


def test_python_writes_the_file_that_the_command_line_writes():
    hp.run("fedper", named(), seed=2, out="a", **HOW)
    pairs = ["rounds=4", "seed=2", "data.clients=4", "data.partition.alpha=0.5", "model.name=mlp"]
    pairs += ["data.validation_fraction=0.25", "participation.rate=1.0", "engine.name=serial"]
    pairs += ["training.epochs=1", "training.batch=16", "training.lr=0.05"]
    call("run", "fedper", *(w for p in pairs for w in ("-c", p)), "--out", "b")
    assert Path("a/config.toml").read_text() == Path("b/config.toml").read_text()
    results = [json.loads(Path(f"{d}/result.json").read_text())["model_sha256"] for d in "ab"]
    assert results[0] == results[1]


def test_a_seed_of_the_partition_is_kept_apart_from_that_of_the_run():
    hp.run("fedavg", named(), seed=7, out="a", **{**HOW, "rounds": 0})
    config = read_config(Path("a/config.toml"))
    assert (config.top.seed, config.data.seed) == (7, 2)
    assert config.build_federation().sha256 == named().sha256


def test_a_copy_that_was_changed_is_data_of_ones_own():
    changed = named().set_aside_new_clients(0.5, seed=1)
    hp.run("fedavg", changed, out="a", **{**HOW, "rounds": 0})
    assert tomllib.loads(Path("a/config.toml").read_text())["objects"] == {"data": "digits"}
    assert refused(3, "run", "a/config.toml").startswith("a/config.toml:")


def test_files_with_the_sections_of_before_are_read_and_written_with_those_of_today():
    Path("old.toml").write_text(
        "[local]\nlr = 0.3\n[devices]\nsample_seconds = 2.0\n[engine]\ndevice = 'cpu'\n"
    )
    config = read_config(Path("old.toml"), ["local.batch=7"])
    assert (config.training.lr, config.training.batch) == (0.3, 7)
    assert (config.speeds.sample_seconds, config.engine.accelerator) == (2.0, "cpu")
    text = config.to_toml()
    assert "[local]" not in text
    assert "[training]" in text
    Path("old.toml").write_text("[local]\nlr = -1\n")
    with pytest.raises(ConfigError, match=r"^old\.toml:2: training\.lr: must be at least 0"):
        read_config(Path("old.toml"))


@pytest.mark.parametrize(("old", "new"), [("device", "accelerator"), ("devices", "speeds")])
def test_a_keyword_of_before_is_answered_with_that_of_today(old, new):
    with pytest.raises(ConfigError, match=f"^{old}: was renamed to {new}; write {new}='cpu'$"):
        hp.run("fedavg", named(), **{old: "cpu"})


# Hooks --------------------------------------------------------------------------------------------


def test_a_hook_ends_a_run_after_its_round_and_the_result_is_complete():
    result = hp.run("fedper", named(), out="a", on_event=stop_at_round_1, **HOW)
    assert result.finished
    assert (result.summary.rounds, result.summary.stopped) == (2, "enough")
    assert [e["t"] for e in result.events if e["event"] == "evaluation"] == [0, 1, 2]
    short = hp.run("fedper", named(), **{**HOW, "rounds": 2})
    assert result.model_sha256 == short.model_sha256  # this schedule does not depend on the end
    assert hp.load("a").personal(1)(named().x[:3]).equal(result.personal(1)(named().x[:3]))


def test_a_resumed_run_tells_its_hooks_what_was_recorded():
    seen: list[str] = []
    with pytest.raises(StopError):
        hp.run("fedavg", named(), out="a", on_event=fail_at_round_1, **HOW)
    hp.run(
        "fedavg", named(), out="a", resume=True, on_event=lambda e: seen.append(e["event"]), **HOW
    )
    assert seen.count("start") == 1
    assert seen.count("round") == 4
    assert seen.count("evaluation") == 5


def make_evaluations(*scores: int) -> list[Event]:
    start = {"event": "start", "validation": [10]}
    return [start, *({"event": "evaluation", "t": t, "P_valid": [s]} for t, s in enumerate(scores))]


def test_patience_counts_evaluations_without_a_better_score():
    assert not any(map(Patience("P", 2), make_evaluations(1, 3, 3, 4, 2)))
    found = list(map(Patience("P", 2), make_evaluations(1, 3, 3, 2, 9)))
    assert [stop is not None for stop in found] == [False, False, False, False, True, False]


def test_patience_ends_a_run_and_an_interruption_changes_nothing():
    still = {**HOW, "rounds": 9, "training": hp.Training(epochs=1, lr=0.0), "patience": 2}
    whole = hp.run("fedavg", named(), **still)
    assert whole.summary.rounds == 3  # the third evaluation runs beside the third round
    assert whole.summary.stopped == (
        "no better P on validation examples in 2 evaluations (stop.patience)"
    )
    with pytest.raises(StopError):
        hp.run("fedavg", named(), out="a", on_event=fail_at_round_1, **still)
    assert json.loads(call("resume", "a", "--json").stdout)["model_sha256"] == whole.model_sha256


# The best round -----------------------------------------------------------------------------------


def test_the_first_round_with_the_best_validation_score_is_kept():
    start, *rest = make_evaluations(1, 5, 2, 5)
    assert find_kept_round([start, *rest]) is None
    assert find_kept_round([{**start, "keep_best": "P"}, *rest]) == 1


@pytest.mark.parametrize("name", ["fedper", "fedavg"])
def test_the_models_of_the_best_round_are_kept(name):
    """One client trains in a round, with large steps: the last round is not the best."""
    wild = hp.Training(epochs=1, batch=16, lr=0.2, momentum=0.9)
    how = {**HOW, "rounds": 8, "training": wild, "participation": 0.25}
    plain = hp.run(name, named(), **how)
    result = hp.run(name, named(), out="a", keep_best=True, **how)
    assert result.model_sha256 == plain.model_sha256  # the choice influences nothing
    kept = result.summary.kept_round
    assert kept == plain.P.chosen.round < 8
    (measured,) = [e for e in result.events if e["event"] == "evaluation" and e["t"] == kept]
    assert [c.correct for c in result.clients.values()] == measured["P"]
    for loaded in (result, hp.load("a")):
        own = [count_right(loaded.personal(c), c) for c in named().clients]
        assert own == measured["P"]
        generic = loaded.generic()
        assert [count_right(generic, c) for c in named().clients] == measured["G"]
    stored = [p for p in Path("a/commits/clients").glob("*/*") if p.is_file()]
    assert len(stored) <= 4 * len(named().clients)  # the best, and what a resume needs


@pytest.mark.parametrize("pair", ["evaluation.keep_best=true", "stop.patience=3"])
def test_a_choice_of_rounds_needs_validation_examples(pair):
    key = pair.partition("=")[0]
    assert refused(3, "run", "-c", pair) == (
        f"{key}: needs validation examples; hold out some with data.validation_fraction = 0.2"
    )


# Comparisons --------------------------------------------------------------------------------------


def test_a_comparison_has_the_bits_of_single_runs_and_a_folder_for_the_command_line():
    found = hp.compare(["fedavg", hp.FedProx(mu=0.5)], named(), seeds=(0, 1), out="c", **HOW)
    assert list(found) == ["fedavg-0", "fedprox-0", "fedavg-1", "fedprox-1"]
    single = hp.run(hp.FedProx(mu=0.5), named(), seed=1, **HOW)
    assert found["fedprox-1"].model_sha256 == single.model_sha256
    assert repr(found) == "<Comparison of fedavg-0, fedprox-0, fedavg-1, fedprox-1>"
    assert call("resume", "c").exit_code == 0
    again = hp.compare(["fedavg", hp.FedProx(mu=0.5)], named(), seeds=(0, 1), out="c", **HOW)
    assert again["fedavg-1"].model_sha256 == found["fedavg-1"].model_sha256


def test_without_a_folder_a_comparison_is_temporary():
    found = hp.compare(["fedavg"], named(), **{**HOW, "rounds": 1})
    folder = found.folder
    assert folder.is_dir()
    del found
    assert not folder.exists()


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ({"roundz": 3}, "roundz: not a keyword of hp.compare; did you mean 'rounds'?"),
        ({"seedz": (0, 1)}, "seedz: not a keyword of hp.compare; did you mean 'seeds'?"),
        ({"by": "P"}, "by: not a keyword of hp.compare; pass a setting of an algorithm"),
        ({"seed": 3}, "seed: write seeds=(3,)"),
        ({"device": "cpu"}, "device: was renamed to accelerator"),
    ],
)
def test_compare_refuses_an_unknown_keyword(keyword, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        hp.compare(["fedavg"], named(), **keyword)


def test_sweep_suggests_its_own_keywords():
    with pytest.raises(ConfigError, match="did you mean 'seeds'"):
        hp.sweep("fedavg", named(), {"lr": [0.1]}, seedz=(0, 1))
