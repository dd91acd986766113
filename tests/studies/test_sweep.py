"""Sweeps: values and ranges, grids and draws, run side by side, chosen by validation examples only."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from helpers.commands import call
from helpers.forked import Forked
from heterophony.core.errors import ConfigError
from heterophony.report.figures.search import draw_sweep
from heterophony.results.search_tables import (
    SweepMeasure,
    SweepRow,
    SweepTable,
    build_sweep_table,
    format_value,
    shorten_keys,
    sort_sweep_rows,
)
from heterophony.runs.curves import MeanStd
from heterophony.studies.search import ValueRange, list_combinations, make_trial_label, parse_values
from heterophony.studies.sweep import build_sweep

SMALL = ("rounds=2", "data.clients=3", "training.steps=2", "model.name=mlp")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def words(*settings: str) -> list[str]:
    return [word for s in settings for word in ("-c", s)]


# Values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.005,0.01,0.05", (0.005, 0.01, 0.05)),
        ("0, 0.1, 0.1", (0, 0.1)),
        ("fedavg,fedprox", ("fedavg", "fedprox")),
        ("true,false", (True, False)),
        (
            "{kind='iid'},{kind='dirichlet', alpha=1}",
            ({"kind": "iid"}, {"kind": "dirichlet", "alpha": 1}),
        ),
        ("0.001..0.1", ValueRange(0.001, 0.1, False)),
        ("1e-4..1e-1", ValueRange(1e-4, 1e-1, False)),
        ("1..10", ValueRange(1, 10, True)),
        ("0..1.5", ValueRange(0, 1.5, False)),
    ],
)
def test_values_are_lists_or_ranges(text, values):
    assert parse_values(text, "-s x") == values


@pytest.mark.parametrize("text", ["", "1,,2", "0.1..0.01"])
def test_values_that_are_none_are_one_line(text):
    with pytest.raises(ConfigError, match=r"^-s x: "):
        parse_values(text, "-s x")


@pytest.mark.parametrize("value", [1, 0.5, True, "a b", [1, "x"], {"kind": "iid", "seed": 2}])
def test_a_value_is_written_as_toml(value):
    assert parse_values(f"{format_value(value)},7", "") == (value, 7)


def test_a_grid_combines_all_with_all_in_order():
    grid = list_combinations({"a": (1, 2), "b": ("x", "y")}, None, 0)
    assert [tuple(c.values()) for c in grid] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    with pytest.raises(ConfigError, match=r"^a: a range needs random draws"):
        list_combinations({"a": ValueRange(0, 1, False)}, None, 0)


def test_draws_are_in_range_differ_by_seed_and_can_be_extended():
    swept = {
        "lr": ValueRange(0.001, 0.1, False),
        "n": ValueRange(1, 3, True),
        "d": ValueRange(-1.0, 1.0, False),
        "w": ("a", "b"),
    }
    drawn = list_combinations(swept, 30, seed=0)
    assert drawn[:10] == list_combinations(swept, 10, seed=0)
    assert drawn != list_combinations(swept, 30, seed=1)
    assert list(drawn[0]) == list(swept)
    assert all(0.001 <= c["lr"] <= 0.1 and -1 <= c["d"] <= 1 for c in drawn)
    assert {c["n"] for c in drawn} == {1, 2, 3}
    assert {c["w"] for c in drawn} == {"a", "b"}
    assert 8 <= sum(c["lr"] < 0.01 for c in drawn) <= 22  # half of a logarithmic range


def test_draws_from_few_values_end_when_all_were_drawn():
    assert len(list_combinations({"a": (1, 2), "b": (3, 4)}, 100, 0)) == 4


def test_labels_are_names_of_folders_and_differ():
    assert make_trial_label({"training.lr": 0.01, "algorithm.mu": 0}) == "lr=0.01_mu=0"
    assert make_trial_label({"training.lr": 0.01, "other.lr": 0}) == "training.lr=0.01_other.lr=0"
    a, b = (make_trial_label({"data.path": path}) for path in ("a/b", "a b"))
    assert a != b
    assert not {"/", " "} & set(a + b)
    assert len(make_trial_label({"data.path": "x" * 300})) < 100
    assert shorten_keys(["algorithm.name"]) == {"algorithm.name": "algorithm.name"}


# Configurations ----------------------------------------------------------------------------------


def held_out(overrides: list[str], file: Path | None = None) -> float:
    sweep = build_sweep(file, overrides, ["lr=0.1,0.2"])
    (fraction,) = {run.config.data.validation_fraction for run in sweep.list_specs()}
    return fraction


def test_a_sweep_holds_examples_out_unless_it_is_told_otherwise():
    assert held_out([]) == 0.2
    assert held_out(["data.validation_fraction=0.1"]) == 0.1
    assert held_out(["data.validation_fraction=0"]) == 0
    assert held_out(["data.partition.kind=file"]) == 0  # the file may list them
    Path("my.toml").write_text("[data]\nvalidation_fraction = 0.3\n")
    assert held_out([], Path("my.toml")) == 0.3


def test_every_combination_has_every_seed():
    notes: list[str] = []
    sweep = build_sweep(
        None,
        ["algorithm.name=fedprox", "data.name=fmnist"],
        ["lr=0.1,0.2", "mu=0,1"],
        [3, 4],
        note=notes.append,
    )
    found = [spec.config for spec in sweep.list_specs()]
    assert [(c.training.lr, c.algorithm.mu, c.top.seed) for c in found] == [
        (lr, mu, seed) for lr in (0.1, 0.2) for mu in (0, 1) for seed in (3, 4)
    ]
    assert notes == [
        "lr=0.1,0.2: read as training.lr=0.1,0.2",
        "mu=0,1: read as algorithm.mu=0,1",
        "20% of every client's training examples are held out to choose settings",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "-s: missing; name what to vary, as in -s training.lr=0.005,0.01,0.05"),
        (
            ["-s", "training.lr"],
            "-s training.lr: must be key=values, as in training.lr=0.005,0.01,0.05",
        ),
        (
            ["-s", "training.lr=1..2"],
            "training.lr: a range needs random draws: --random N, or random=N",
        ),
        (["-s", "seed=0,1"], "-s seed=0,1: set seeds with --seeds; results are"),
        (
            ["-s", "lr=1", "-s", "lr=2"],
            "-s training.lr=2: training.lr is given twice; list all its values",
        ),
        (["-s", "training.lrr=1,2"], "training.lrr: unknown key; did you mean 'lr'?"),
        (["-s", "training.lr=1,fast"], "training.lr: must be a number, not 'fast'"),
        (["-s", "algorithm.mu=0,1"], "algorithm.mu: unknown key"),
    ],
)
def test_a_mistake_begins_nothing(given, said):
    line = call("sweep", *given, *words(*SMALL)).stderr.splitlines()[-1]
    assert line.startswith(f"error: {said}")
    assert list(Path().iterdir()) == []


# The table ---------------------------------------------------------------------------------------


def row(value: float, valid: float | None, test: float, state: str = "finished") -> SweepRow:
    number = None if valid is None else MeanStd(valid, 0.0)
    measure = SweepMeasure(number, MeanStd(test, 0.0)) if state == "finished" else None
    return SweepRow({"training.lr": value}, [0], [f"lr={value}-0"], state, measure, None)


def table(*rows: SweepRow, examples: int = 100) -> SweepTable:
    return SweepTable(Path("s"), ["training.lr"], "P", sort_sweep_rows(rows, "P"), examples)


def test_rows_are_sorted_by_validation_and_not_by_test():
    found = table(row(1, 0.5, 0.9), row(2, None, 0, "diverged"), row(3, 0.6, 0.1), row(4, 0.2, 1.0))
    assert [r.settings["training.lr"] for r in found.rows] == [3, 1, 4, 2]
    assert found.best == {"training.lr": 3}


def test_without_validation_examples_nothing_is_sorted_or_chosen():
    found = table(row(1, None, 0.5), row(2, None, 0.9), row(3, None, 0.7))
    assert [r.settings["training.lr"] for r in found.rows] == [1, 2, 3]
    assert (found.best, found.chosen, found.standard_error, found.close) == (None, None, None, [])


def test_what_is_as_good_as_far_as_is_known_is_said():
    found = table(row(1, 0.5, 0), row(2, 0.46, 0), row(3, 0.44, 0), examples=100)
    assert found.standard_error == pytest.approx(0.05)
    assert [r.settings["training.lr"] for r in found.close] == [2]


@pytest.mark.parametrize(("keys", "count", "panels"), [(1, 4, 1), (2, 4, 1), (2, 3, 2), (3, 4, 3)])
def test_there_is_a_picture_of_any_number_of_settings(keys, count, panels):
    """Of two settings a heat map, unless they were drawn at random."""
    rows = []
    for i in range(count):
        settings = {"a": 10.0 ** (i // 2), "b": ["x", "y"][i % 2], "c": i}
        measure = SweepMeasure(MeanStd(0.1 * i, 0.01), MeanStd(0.2, 0))
        kept = dict(list(settings.items())[:keys])
        rows.append(SweepRow(kept, [0, 1], [], "finished", measure, None))
    found = SweepTable(Path("s"), list(rows[0].settings), "P", sort_sweep_rows(rows, "P"), 100)
    assert len(draw_sweep(found).axes) == panels


def test_there_is_a_picture_where_everything_diverged():
    assert len(draw_sweep(table(row(1, None, 0, "diverged"))).axes) == 1


# The command -------------------------------------------------------------------------------------


def sweep(*given: str) -> dict:
    done = call("sweep", *given, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def stamps(folder: str) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in Path(folder).glob("*/events.jsonl")}


def test_a_sweep_is_sorted_drawn_and_continued_where_it_ended():
    """And extended: with one value more, only that one runs."""
    fixed = [*words(*SMALL, "engine.name=serial"), "--out", "s"]
    found = sweep("fedprox", "-s", "lr=0.01,1e30,0.3", *fixed)
    *first, last = found["rows"]
    assert [r["state"] for r in found["rows"]] == ["finished", "finished", "diverged"]
    valid = [r["P"]["validation"]["mean"] for r in first]
    assert valid == sorted(valid, reverse=True)
    assert found["best"] == first[0]["settings"]
    assert last["settings"] == {"training.lr": 1e30}
    assert "lower training.lr" in last["reason"]
    result = json.loads((Path("s") / first[0]["folders"][0] / "result.json").read_text())
    assert first[0]["P"]["test"]["mean"] == result["P"]["chosen"]["test"]
    assert Path("s/sweep.png").read_bytes().startswith(b"\x89PNG")
    before = stamps("s")
    assert sweep("fedprox", "-s", "lr=0.01,1e30,0.3", *fixed) == found
    assert stamps("s") == before  # nothing was computed again, not even what diverges
    more = sweep("fedprox", "-s", "lr=0.01,1e30,0.3,0.1", *fixed)
    assert len(more["rows"]) == 4
    assert before.items() < stamps("s").items()
    done = call("resume", "s")
    assert done.stdout.splitlines()[0] == "accuracy in %, sorted by P on validation examples"
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert any(line.startswith("lr=1e+30: diverged: client ") for line in done.stderr.splitlines())
    other = call("sweep", "fedavg", "-s", "training.lr=0.01", *fixed)
    assert other.stderr.splitlines()[-1] == (
        "error: s/lr=0.01-0 holds a run with other settings; choose another --out"
    )


def test_without_validation_examples_the_table_keeps_its_order_and_says_how_to_have_them():
    unset = words(*SMALL, "engine.name=serial", "data.validation_fraction=0")
    done = call("sweep", "-s", "training.lr=0.001,0.3", *unset, "--out", "s", "-o", "p.svg")
    title, header, _, *lines = done.stdout.splitlines()
    assert title == "accuracy in %, not sorted"
    assert header.split("  ")[-1].strip() == "G last 10"
    assert [line.split()[0] for line in lines] == ["0.001", "0.3"]
    assert any("nothing is chosen on test data" in line for line in done.stderr.splitlines())
    assert Path("p.svg").exists()


def test_where_nothing_can_be_chosen_the_reason_is_said():
    assert "chosen: lr=1" in build_sweep_table(table(row(1, 0.5, 0.5))).notes
    without_g = replace(table(row(1, 0.5, 0.5), row(2, 0.6, 0.4)), by="G")
    shown = build_sweep_table(without_g)
    assert [column.title for column in shown.columns] == [
        "lr",
        *(f"{measure} {part}" for measure in "PG" for part in ("valid", "test")),
    ]
    assert "nothing is chosen: no run has G; leave out --by" in shown.notes
    none = build_sweep_table(table(row(1, None, 0, "diverged")))
    assert "nothing is chosen: no run has finished" in none.notes


def test_after_kill_9_the_same_command_continues_with_the_same_bits():
    """Side by side in processes of their own, as the pool does it."""
    given = ["-s", "training.lr=0.01,0.1", *words(*SMALL[1:], "rounds=12"), "--workers", "2"]
    process = Forked("sweep", *given, "--out", "s")
    begun = [Path("s") / f"lr={lr}-0" / "events.jsonl" for lr in (0.01, 0.1)]
    while not any(p.exists() and p.read_bytes().count(b"\n") > 3 for p in begun):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)  # polling, not waiting
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(children, timeout=60)
    assert not all((p.parent / "result.json").exists() for p in begun)
    found = sweep(*given, "--out", "s")
    assert {r["state"] for r in found["rows"]} == {"finished"}
    whole = begun[0].parent / "config.toml"
    done = call("run", str(whole), "-c", "engine.name=serial", "--out", "calm", "--json")
    expected = json.loads(done.stdout)["model_sha256"]
    assert json.loads((whole.parent / "result.json").read_text())["model_sha256"] == expected
