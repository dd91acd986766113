"""Reproduced tables: numbers computed as in the paper, verdicts, claims, and the command."""

from __future__ import annotations

import csv
import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from math import log, sqrt
from pathlib import Path
from typing import Any

import psutil
import pytest
from scipy import stats
from typer.testing import CliRunner

from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.cli import app
from heterophony.config.checkpoint import read_checkpoint
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError, DataError, EngineError, FolderError
from heterophony.core.tensors import Tensors, state
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.evaluation import needs_personal_parameters
from heterophony.jobs.plan import Job
from heterophony.papers import scaling
from heterophony.papers import scaling as scale
from heterophony.papers.reproduce import (
    CellRun,
    TableSelection,
    build_result,
    create_run_folders,
    describe_number,
    list_unfinished,
    run_table,
)
from heterophony.papers.result_table import (
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    describe_diverged,
    describe_paper_table,
    list_number_cells,
)
from heterophony.papers.table import (
    TABLES,
    Cell,
    MeasurementRule,
    Ordering,
    PrintedNumber,
    TableScale,
    load_table,
    load_tables,
)
from heterophony.papers.verdicts import (
    AVERAGED_TO_MEASURE,
    ComparedNumber,
    check_claims,
    check_ordering,
    compare_numbers,
    compute_noise_band,
    describe_claim,
    judge_number,
    measure_run,
)
from heterophony.results.table import ResultTable, format_rows
from heterophony.runs.folder import RunFolder
from heterophony.studies.hooks import show_progress
from heterophony.studies.many import RunOptions, run_side_by_side
from heterophony.studies.spec import read_spec

SMALLEST = ["fedavg2rep-table4-hybrid", "--rows", "FedRep, N_C = ?", "--columns", "J = 16"]


def asked(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words])


def table(
    name: str,
    rows: str = "*",
    columns: str = "*",
    size: TableScale = TableScale.quick,
    seeds: Any = (0,),
) -> TableSelection:
    return TableSelection(load_table(name), size, rows, columns, tuple(seeds))


# A run's number -----------------------------------------------------------------------------

EVENTS = [
    {"event": "start", "test": [4, 6]},
    {"event": "evaluation", "t": 0, "G": [1, 1], "P": [1, 0]},
    {"event": "round", "t": 0, "P_local": []},
    {"event": "evaluation", "t": 1, "G": [4, 3], "P": [4, 6]},
    {"event": "round", "t": 1, "P_local": []},
    {"event": "evaluation", "t": 2, "G": [2, 3], "P": [4, 3]},
]


@pytest.mark.parametrize(
    ("rounds", "clients", "G", "P"),
    [
        ("best", "pooled", 70.0, 100.0),
        ("last", "pooled", 50.0, 70.0),
        ("last", "mean", 50.0, 75.0),
        ("best", "mean", 75.0, 100.0),
        ("last10", "pooled", 60.0, 85.0),
    ],
)
def test_a_number_is_made_as_the_paper_makes_it(rounds, clients, G, P):
    found = measure_run(EVENTS, MeasurementRule(rounds, clients))
    assert found["G"] == pytest.approx(G, abs=1e-12)
    assert found["P"] == pytest.approx(P, abs=1e-12)
    assert found["score"] == pytest.approx(log(G / 10) + log(P / 10), abs=1e-12)


def test_the_last_ten_stand_beside_every_number():
    found = measure_run(EVENTS, MeasurementRule("best"))
    late = measure_run(EVENTS, MeasurementRule("last10"))
    assert {k: found[f"{k} last10"] for k in ("G", "P", "score")} == {
        k: late[k] for k in ("G", "P", "score")
    }


def test_without_a_common_model_there_is_no_score():
    events = [{**e, "G": None} if e["event"] == "evaluation" else e for e in EVENTS]
    assert measure_run(events, MeasurementRule()).keys() == {"P", "P last10"}


@pytest.mark.parametrize(("rounds", "loss"), [("best", 1.2), ("last", 2.1), ("last10", 1.65)])
def test_the_test_loss_is_pooled_and_its_best_round_is_the_lowest(rounds, loss):
    losses = iter([[1.5, 2.5], [1.8, 0.8], [3.0, 1.5]])  # clients of 4 and 6 test examples
    events = [
        {**e, "loss": {"G": next(losses)}} if e["event"] == "evaluation" else e for e in EVENTS
    ]
    found = measure_run(events, MeasurementRule(rounds))
    assert (found["G_loss"], found["G_loss last10"]) == pytest.approx((loss, 1.65), abs=1e-12)


# Verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "runs", "ours", "verdict"),
    [
        (PrintedNumber(84.27), 5, [82.0, 82.2, 82.1], "worse"),  # ± 0.31
        (PrintedNumber(82.40), 5, [82.0, 82.2, 82.1], "within noise"),
        (PrintedNumber(97.32), 5, [98.0, 98.04], "better"),  # ± 0.30
        (PrintedNumber(97.32), 1, [97.0, 98.0], "within noise"),  # ± 11.0: two seeds, one run
        (PrintedNumber(50.0, 1.5), 3, [52.9, 53.1, 52.7], "within noise"),  # ± 3.64
        (PrintedNumber(50.0, 0.1), 3, [52.9, 53.1, 52.7], "better"),  # ± 0.41
        (PrintedNumber(84.27), 5, [84.27], "undecided"),
        (None, 5, [52.9], "no number printed"),
        (PrintedNumber(50.0), 5, [], "not comparable"),
    ],
)
def test_a_verdict_compares_with_the_noise_of_both_means(printed, runs, ours, verdict):
    assert judge_number("P", printed, ours, "", runs)[0] == verdict


def test_of_the_test_loss_less_is_better():
    printed, ours = PrintedNumber(2.28), [2.00, 2.02]
    assert judge_number("G_loss", printed, ours, "", 5)[0] == "better"
    assert judge_number("G", printed, ours, "", 5)[0] == "worse"


def test_a_verdict_says_its_band_and_what_is_assumed():
    ours = [82.0, 82.2, 82.1]
    assert judge_number("G", PrintedNumber(82.4), ours, "", 5)[1] == (
        "± 0.31 (95 %; deviations: ours 0.10, 3 seeds; the paper's not printed, assumed as ours, 5 runs)"
    )
    band, how = compute_noise_band(ours, PrintedNumber(82.4, 0.2), 5)
    # Welch: standard error and degrees of freedom of 0.1 over 3 and 0.2 over 5
    a, b = 0.01 / 3, 0.04 / 5
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 4)
    assert band == pytest.approx(stats.t.ppf(0.975, freedom) * sqrt(a + b), rel=1e-9)
    assert how.endswith("the paper's 0.20, 5 runs)")


def test_g_of_averaged_heads_is_marked():
    cells = [
        Cell(name, "c", {"data": {"name": "d"}, "algorithm": {"name": name}}, {}, None)
        for name in ("fedper", "fedbabu", "fedavg")
    ]
    numbers = compare_numbers(cells, {}, {})
    assert [n.measure_label for n in numbers] == ["G*", "P", "G", "P", "G", "P"]


@pytest.fixture(scope="module")
def digits():
    return resolve_config({"data": {"clients": 2}}).build_federation()


@pytest.mark.parametrize("name", sorted(ALGORITHM_CLASSES))
def test_the_mark_is_on_every_algorithm_whose_g_uses_personal_parameters(name, digits, tmp_path):
    model = {"name": "resnet8_small"} if name == "fedbn" else {}
    settings = {"data": {"clients": 2}, "model": model, "algorithm": {"name": name}}
    plan = resolve_config(settings).build_plan(digits)
    job = Job(kind="evaluate", t=1, client=plan.federation.clients[0], tensors=Tensors())
    store = FolderClientStore(tmp_path, tmp_path)
    client = plan.build_client(job, {"net": state(plan.template)}, store)
    uses = plan.algorithm.common and needs_personal_parameters(plan, client)
    marked = name in AVERAGED_TO_MEASURE or name == "fedbabu"  # whose heads are all the same
    assert marked == uses or (not marked and name not in list_published_algorithms())


@cache
def list_published_algorithms() -> frozenset[str]:
    tables = "".join(p.read_text(encoding="utf-8") for p in TABLES.iterdir())
    return frozenset(name for name in ALGORITHM_CLASSES if f'"{name}"' in tables)


def test_a_reason_not_to_compare_is_shown_whatever_the_numbers_are():
    assert judge_number("G", PrintedNumber(50.0), [50.0], "quick scale") == (
        "not comparable",
        "quick scale",
    )


def line(
    row: str, values: dict[int, float], column: str = "c", last10: dict[int, float] | None = None
) -> ComparedNumber:
    seeds, ours, late = tuple(values), tuple(values.values()), tuple((last10 or values).values())
    return ComparedNumber(row, column, "digits", "P", None, seeds, ours, late, "no number printed")


@pytest.mark.parametrize(
    ("measure", "values", "ends"),
    [
        ("G", {0: 99.0, 1: 100.0}, (93.1469, 100.0)),
        ("P", {0: 0.0, 1: 1.0}, (0.0, 6.8531)),
        ("G_loss", {0: 0.0, 1: 1.0}, (0.0, 6.8531)),
        ("score", {0: 0.0, 1: 1.0}, (-5.8531, 6.8531)),
    ],
)
def test_an_interval_ends_at_what_is_possible(measure, values, ends):
    found = describe_number(replace(line("a", values), measure=measure))
    assert found["ci95"] == pytest.approx(ends, abs=1e-4)


FEW = "2 seeds, too few to tell it from chance"


@pytest.mark.parametrize(
    ("others", "holds", "why"),
    [
        ([line("b", {0: 1.0, 1: 4.0})], True, "by 0.50 over b"),
        ([line("b", {0: 1.0}), line("d", {1: 3.5})], False, "d is above it by 0.50"),
        ([line("b", {0: 3.5, 1: 2.5 + 1e-12})], False, "b equals it"),
        ([line("b", {})], None, "no numbers of b"),
        ([line("b", {7: 1.0})], None, "no numbers of b"),
        ([], None, "not all of its rows were selected"),
        ([line("b", {0: 9.0}, "other column")], None, "not all of its rows were selected"),
    ],
)
def test_a_claim_is_checked_seed_by_seed(others, holds, why):
    top = line("a", {0: 3.0, 1: 3.0})
    claim = check_ordering(Ordering("P", "a"), "c", [top, *others])
    assert (claim.holds, claim.why) == (claim.holds_last10, claim.why_last10) == (holds, why)
    assert claim.text == "c: P of a is above all others"


def test_a_claim_is_judged_by_the_papers_rule_and_by_the_last_ten():
    top = line("a", {0: 3.0, 1: 3.0}, last10={0: 1.0, 1: 1.0})
    other = line("b", {0: 2.0, 1: 2.0})
    claim = check_ordering(Ordering("P", "a"), "c", [top, other])
    assert (claim.holds, claim.holds_last10) == (True, False)
    assert describe_claim(claim, "best") == (
        "holds by best round, does not hold by last 10: c: P of a is above all others"
        f" (best round: by 1.00 over b; last 10: b is above it by 1.00; {FEW})"
    )
    same = check_ordering(Ordering("P", "a"), "c", [line("a", {0: 3.0, 1: 3.0}), other])
    assert describe_claim(same, "last").startswith("holds: c: P of a is above all others (last ")
    assert describe_claim(same, "last10").endswith(f"others (last 10: by 1.00 over b; {FEW})")


def test_one_seed_is_no_verdict_on_an_ordering():
    top, other = line("a", {0: 3.0}), line("b", {0: 2.0})
    for ordering, words in (("a", "seen with one seed: "), ("b", "not seen with one seed: ")):
        claim = check_ordering(Ordering("P", ordering), "c", [top, other])
        assert describe_claim(claim, "best").startswith(words)


def test_a_claim_has_a_p_where_the_seeds_suffice():
    top, other = (line(row, dict.fromkeys(range(6), v)) for row, v in (("a", 3.0), ("b", 2.0)))
    claim = check_ordering(Ordering("P", "a"), "c", [top, other])
    assert (claim.why, claim.seeds) == ("by 1.00 over b, p = 0.031", "6 seeds")


def test_every_line_shows_the_last_ten_beside_the_number():
    config = {"data": {"name": "fmnist"}, "model": {"name": "convnet"}}
    cell = Cell("a", "c", config, {"G": PrintedNumber(84.27)}, None)
    values = {
        0: {"G": 83.0, "G last10": 80.0},
        1: {"G": 84.0, "G last10": 82.0},
    }
    (found,) = compare_numbers([cell], {("a", "c"): values}, {})
    columns = [*TEXT_COLUMNS.values(), *NUMBER_COLUMNS.values()]
    (shown,) = format_rows(ResultTable.build(columns, [list(list_number_cells(found).values())]))
    assert shown == [
        *("a", "c", "fmnist, convnet", "", "G, %", "84.27", "83.50 ± 0.71", "81.00 ± 1.41"),
        *("−0.77", "within noise"),
    ]


# The quick scale ----------------------------------------------------------------------------


@pytest.mark.parametrize("found", load_tables(), ids=lambda e: e.name)
def test_every_cell_has_a_quick_form_that_a_configuration_understands(found):
    for cell in found.cells:
        before = json.dumps(cell.config)
        small = resolve_config(scale.shrink_to_quick(cell.config))
        assert json.dumps(cell.config) == before
        assert small.data.name in ("digits", "shakespeare")
        assert 10 <= small.top.rounds <= 50
        assert small.data.clients <= 60
        assert small.algorithm_name == cell.config["algorithm"]["name"]


def test_what_a_table_varies_still_varies_at_quick_scale():
    counts = {
        c.column: c.config["data"]["clients"]
        for c in table("fedreg-table3-scalability").distinct_cells
    }
    assert list(counts.values()) == [6, 10, 20, 40, 60]
    shards = [
        c.config["data"]["partition"]["per_client"]
        for c in table("fedavg2rep-table4-hybrid", "FedRep*", "J = 4").distinct_cells
    ]
    assert shards == [1, 2, 3, 7]
    warm = table("fedavg2rep-table4-hybrid", "FedAvg2Rep, N_C = 1").distinct_cells
    assert [(c.config["rounds"], c.config["algorithm"]["warmup_rounds"]) for c in warm] == [
        (50, 12),
        (31, 12),
        (21, 12),
    ]


def test_columns_that_differ_only_in_their_data_are_one_at_quick_scale():
    small, full = table("fedreg-table2-sota"), table("fedreg-table2-sota", size=TableScale.full)
    assert {c.column for c in small.distinct_cells} == {"CIFAR-100"}
    assert {first.column for first in small.duplicates.values()} == {"CIFAR-100"}
    assert len(full.distinct_cells) == 40
    assert not full.duplicates


def test_the_quick_scale_names_what_was_run_and_judges_no_column_of_the_paper():
    small = table("fedreg-table2-sota", "Fed[AR]*")
    every = ("CIFAR-100", "Fashion-MNIST", "CIFAR-10", "EMNIST")
    assert small.stand_ins == dict.fromkeys(every, every)
    ours = {
        (c.row, c.column): {0: {f"{m}{k}": 90.0 for m in "GP" for k in ("", " last10")}}
        for c in small.selected_cells
    }
    numbers = compare_numbers(small.selected_cells, ours, {}, small.stand_ins)
    for number in numbers:
        assert (number.setup, number.printed) == ("digits, digitsnet", None)
        assert number.label == f"digits, digitsnet in place of {', '.join(every)}"
    *claims, other = check_claims(small.published, numbers)
    assert [claim.text for claim in claims] == [
        f"digits, digitsnet: {measure} of FedReG is above all others" for measure in "GP"
    ]
    assert (other.text, other.holds) == ("digits, digitsnet: P of GPFL is above all others", None)
    for claim in claims:
        words = describe_claim(claim, "best")
        assert words.startswith("not seen here: digits, digitsnet: ")
        assert "equals it" in words
        assert not any(f"{name}:" in words for name in every)


def test_columns_that_stay_different_are_named_beside_what_was_run():
    small = table("fedreg-table3-scalability", "FedReG")
    assert small.stand_ins["30 clients"] == ("30 clients",)
    assert table("fedreg-table2-sota", size=TableScale.full).stand_ins == {}


# What is asked for --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rows": "X*"}, "no row matches 'X\\*'; there is: FedAvg; FedProx"),
        ({"columns": "MNIST"}, "no column matches 'MNIST'; there is: CIFAR-100; Fashion-MNIST"),
    ],
)
def test_a_pattern_that_fits_nothing_is_said_with_what_there_is(words, message):
    with pytest.raises(ConfigError, match=message):
        table("fedreg-table2-sota", **words)


def test_data_that_are_not_here_are_named_with_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HETEROPHONY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = str(tmp_path / "out")
    found = asked("fedreg-table5-ablation", "--scale", "full", "--out", out)
    assert found.exit_code == DataError.exit_code
    assert "cifar10 is not on this machine: `heterophony data fetch cifar10`" in found.stderr
    assert not Path(out).exists()


def test_what_needs_something_that_is_not_there_says_so():
    found = asked("feddecomp-table7")
    assert found.exit_code == DataError.exit_code
    assert "`heterophony audit --preset paper`" in found.stderr


def test_a_folder_with_other_settings_is_refused(tmp_path):
    small = table("fedreg-table5-ablation", "FedAvg")
    create_run_folders(small, tmp_path)
    other = table("fedreg-table5-ablation", "FedAvg", seeds=(1,))
    (tmp_path / small.runs[0].folder_name).rename(tmp_path / other.runs[0].folder_name)
    with pytest.raises(FolderError, match="holds a run with other settings \\(seed is 0, not 1\\)"):
        create_run_folders(other, tmp_path)


def test_clients_with_different_nets_go_on_in_the_folder_that_names_them(tmp_path):
    small = table("different-nets", "HeteroFL")
    create_run_folders(small, tmp_path)
    create_run_folders(small, tmp_path)
    config = tmp_path / small.runs[0].folder_name / "config.toml"
    config.write_text(config.read_text().replace("digitsnet@0.5", "smallcnn"))
    with pytest.raises(FolderError, match=r"other settings \(model.group is"):
        create_run_folders(small, tmp_path)


def test_labels_are_names_of_folders_and_differ():
    for found in load_tables():
        full = [CellRun(c, 0).folder_name for c in found.cells]
        assert len(set(full)) == len(full)
        assert all(Path(name).name == name and "\0" not in name for name in full)


# What it costs ------------------------------------------------------------------------------


def test_costs_follow_the_arithmetic():
    full = {
        c.row: c
        for c in table(
            "fedreg-table2-sota", columns="CIFAR-10", size=TableScale.full
        ).distinct_cells
    }
    one = scaling.estimate_seconds(full["FedAvg"].config, 90e9, 1)
    work = one - scaling.SECONDS_TO_START
    assert scaling.estimate_seconds(
        full["FedAvg"].config, 90e9, 2
    ) - scaling.SECONDS_TO_START == pytest.approx(work / 2)
    longer = {**full["FedAvg"].config, "rounds": 300}
    assert scaling.estimate_seconds(longer, 90e9, 1) - scaling.SECONDS_TO_START == pytest.approx(
        3 * work
    )
    assert scaling.estimate_seconds(full["FedReG"].config, 90e9, 1) > 2.5 * one


def test_a_dry_run_tells_settings_and_costs_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked(*SMALLEST, "--dry-run", "--json")
    cells = json.loads(found.stdout)
    assert [c["row"] for c in cells] == [f"FedRep, N_C = {n}" for n in (1, 5)]
    assert all(c["seconds"] > 0 and c["config"]["data"]["name"] == "digits" for c in cells)
    assert list(tmp_path.iterdir()) == []


# One command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, Any]:
    """Two cells, run in parallel."""
    folder = tmp_path_factory.mktemp("tables") / "out"
    return folder, asked(*SMALLEST, "--out", str(folder), "--seeds", "0,1")


def test_a_table_is_shown_and_kept_as_files(done):
    folder, found = done
    assert found.exit_code == 0, found.output
    assert "FedAvg2Rep, Table 4" in found.stdout
    assert "\nquick scale, not as printed\n" in found.stdout
    assert max(map(len, found.stdout.splitlines()[2:])) <= 80
    assert "run here: digits, digitsnet in place of J = 16\n" in found.stderr
    kept = json.loads((folder / "table.json").read_text())
    assert [(line["row"], line["seeds"]) for line in kept["lines"]] == [
        ("FedRep, N_C = 1", [0, 1]),
        ("FedRep, N_C = 5", [0, 1]),
    ]
    for entry in kept["lines"]:
        assert len(entry["values"]) == len(entry["last10"]) == 2
        assert entry["column"] == "digits, digitsnet in place of J = 16"
        told = (entry["data"], entry["model"], entry["in_place_of"], entry["unit"])
        assert told == ("digits", "digitsnet", ["J = 16"], "%")
        assert (entry["printed"], entry["verdict"]) == (None, "not comparable")
    with open(folder / "table.csv") as file:
        assert [float(r["ours"]) for r in csv.DictReader(file)] == [
            line["mean"] for line in kept["lines"]
        ]
    text = (folder / "table.md").read_text()
    assert text.startswith("# FedAvg2Rep, Table 4: ")
    assert "\n| row | data, net |  | ours | last 10 |\n" in text
    assert "Run here: digits, digitsnet in place of J = 16." in text
    assert "\\toprule" in (folder / "table.tex").read_text()
    drawn = (folder / "figure.svg").read_text()  # its texts are paths, each with a comment
    assert all(f"<!-- {line['row']} -->" in drawn for line in kept["lines"])
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_its_numbers_are_those_of_its_runs(done):
    folder, _ = done
    kept = json.loads((folder / "table.json").read_text())
    for entry, name in zip(kept["lines"], ("1", "5"), strict=True):
        results = [
            json.loads((folder / f"fedrep-n_c-{name}--j-16--{s}" / "result.json").read_text())
            for s in (0, 1)
        ]
        assert entry["values"] == [pytest.approx(100 * r["G"]["last"]) for r in results]


def test_parallel_runs_have_the_bits_of_single_runs(done, tmp_path):
    folder, _ = done
    small = table("fedavg2rep-table4-hybrid", "FedRep, N_C = 1", "J = 16")
    alone = asked(*SMALLEST[:1], "--rows", "FedRep, N_C = 1", *SMALLEST[3:], "--out", str(tmp_path))
    assert alone.exit_code == 0
    label = small.runs[0].folder_name
    hashes = {
        json.loads((at / label / "result.json").read_text())["model_sha256"]
        for at in (folder, tmp_path)
    }
    assert len(hashes) == 1


def test_the_same_command_again_runs_nothing_and_shows_the_same_table(done):
    folder, _ = done
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*/events.jsonl")}
    kept = (folder / "table.json").read_text()
    again = asked(*SMALLEST, "--out", str(folder), "--seeds", "0,1", "--json")
    assert json.loads(again.stdout) == json.loads(kept)
    assert {p: p.stat().st_mtime_ns for p in folder.glob("*/events.jsonl")} == before


def test_a_table_trains_its_checkpoint_first_and_all_runs_begin_with_it(tmp_path):
    short = {"rounds": 1, "data": {"name": "digits", "clients": 2}, "model": {"name": "mlp"}}
    central = {"algorithm": {"name": "centralized"}}
    small = replace(load_table("fine-tuning"), settings=short, pretraining=short | central)
    chosen = TableSelection(small, TableScale.full, "L[io]*", "*0.5", (3,))
    with show_progress(False) as shown:
        progress = partial(nullcontext, shown)
        notes = []
        engine = ["engine.name=serial"]
        done = run_table(chosen, tmp_path, engine, 1, lambda folders: progress(), notes.append)
        again = run_table(chosen, tmp_path, engine, 1, lambda folders: progress(), notes.append)
    assert done.to_dict() == again.to_dict()
    file = tmp_path / "pretrained.safetensors"
    assert notes[0] == f"training {file} first, which all runs start from"
    assert done.to_dict()["pretrained_sha256"] == sha256(file.read_bytes()).hexdigest()
    given = read_checkpoint(str(file))
    for row in ("linear-probe", "local"):
        folder = RunFolder(tmp_path / f"{row}--cifar-10-alpha-0.5--3")
        net = read_spec(folder).build_plan().template
        assert Tensors(net.state_dict()).digest() == given.digest()
    assert len(notes) == 2  # the second time nothing is trained


def run_in_process(path: Path, on_event: Any) -> dict[Path, str]:
    """Run what a folder holds in a process of its own."""
    folder = RunFolder(path)
    with show_progress(False) as shown:
        return run_side_by_side(
            {folder: read_spec(folder)}, RunOptions(shown, on_event=on_event), 1
        )


def test_a_killed_run_process_is_replaced_and_the_bits_are_the_same(done, tmp_path):
    folder, _ = done
    small = table("fedavg2rep-table4-hybrid", "FedRep, N_C = 1", "J = 16")
    create_run_folders(small, tmp_path)
    label = small.runs[0].folder_name
    killed = []

    def kill_once(event: dict[str, Any]) -> None:
        if event["event"] == "round" and event["t"] == 3 and not killed:
            runner = next(
                p
                for p in psutil.Process().children(recursive=True)
                if any(f.path == str(tmp_path / label / "lock") for f in p.open_files())
            )
            killed.append(runner.pid)
            os.kill(runner.pid, signal.SIGKILL)

    assert run_in_process(tmp_path / label, kill_once) == {}
    assert killed
    assert list_unfinished(small, tmp_path) == []
    hashes = {
        list(RunFolder(at / label).iterate_events())[-1]["model_sha256"]
        for at in (folder, tmp_path)
    }
    assert len(hashes) == 1


def test_a_run_that_kills_every_process_ends_the_table_with_a_clear_line(tmp_path):
    small = table("fedavg2rep-table4-hybrid", "FedRep, N_C = 1", "J = 16")
    create_run_folders(small, tmp_path)

    path = tmp_path / small.runs[0].folder_name

    def kill(event: dict[str, Any]) -> None:
        for p in psutil.Process().children(recursive=True):
            if any(f.path == str(path / "lock") for f in p.open_files()):
                os.kill(p.pid, signal.SIGKILL)

    with pytest.raises(EngineError, match="3 processes died on this run"):
        run_in_process(path, kill)


def test_a_run_that_diverges_is_a_cell_that_cannot_be_compared(tmp_path):
    small = table("fedavg2rep-table4-hybrid", "FedRep, N_C = 1", "J = 16")
    found = build_result(small, tmp_path, {small.runs[0].folder_name: "client 3, round 2: NaN"})
    assert [(x.verdict, x.why) for x in found.numbers] == [
        ("not comparable", "client 3, round 2: NaN")
    ]
    assert describe_diverged(found) == [
        "Diverged and left out of the numbers: FedRep, N_C = 1, J = 16, seed 0: client 3, round 2: NaN."
    ]
    assert describe_diverged(found)[0] in describe_paper_table(found)
    assert found.to_dict()["diverged"] == found.diverged
    assert describe_diverged(build_result(small, tmp_path, {})) == []


@pytest.mark.parametrize(
    ("name", "row", "column"),
    [
        ("fedreg-table5-ablation", "c*", "*"),
        ("fedreb-table5-3-head-depth", "depth 1", "split"),
        ("pfakd-table2-at", "PFAKD + AT", "CIFAR-10, E = 5"),
        ("feddecomp-table5", "FedDecomp", "alpha 0.1"),
        ("fedavg2rep-figures", "gamma = 0.1", "CIFAR-100"),
        ("fedavg2rep-fig1-schedules", "cosine", "CIFAR-100"),  # with its test loss
    ],
)
def test_a_cell_of_each_work_runs_at_quick_scale(name, row, column, tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "ROUND_BOUNDS", (2, 3))  # its own take minutes
    words = [name, "--rows", row, "--columns", column, "--out", str(tmp_path), "--json"]
    found = asked(*words)
    assert found.exit_code == 0, found.output
    for entry in json.loads(found.stdout)["lines"]:
        assert entry["verdict"] == "not comparable"
        assert 0 <= entry["mean"] <= 100
