"""Published tables as files: complete, exact, and with valid configurations."""

from __future__ import annotations

import json
import math
from fnmatch import fnmatchcase
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from heterophony.cli import app
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError
from heterophony.papers.table import (
    PrintedNumber,
    list_table_names,
    load_table,
    load_tables,
    parse_table,
)

NAMES = [
    "centralised",
    "different-nets",
    "fedavg2rep-fig1-schedules",
    "fedavg2rep-fig2-rates",
    "fedavg2rep-fig6-labels",
    "fedavg2rep-fig7-curves",
    "fedavg2rep-figures",
    "fedavg2rep-table1-hpgrid",
    "fedavg2rep-table2-fl-baseline",
    "fedavg2rep-table3-heterogeneity",
    "fedavg2rep-table4-hybrid",
    "fedavg2rep-text-centralised",
    "feddecomp-baselines",
    "feddecomp-fig5",
    "feddecomp-fig6",
    "feddecomp-golden",
    "feddecomp-sec3-5-cost",
    "feddecomp-setup",
    "feddecomp-table1",
    "feddecomp-table2",
    "feddecomp-table3",
    "feddecomp-table4",
    "feddecomp-table5",
    "feddecomp-table6",
    "feddecomp-table7",
    "fedreb-sec6-2-testbed",
    "fedreb-table5-1-augment",
    "fedreb-table5-2-threshold",
    "fedreb-table5-3-head-depth",
    "fedreb-table5-4-weights",
    "fedreb-table5-5-cifar10",
    "fedreb-table5-6-fmnist",
    "fedreg-fig7-overall-metric",
    "fedreg-table1-augment-threshold",
    "fedreg-table2-sota",
    "fedreg-table3-scalability",
    "fedreg-table4-robustness",
    "fedreg-table5-ablation",
    "fedreg-table6-testbed",
    "fedreg-variants",
    "fine-tuning",
    "gausshead",
    "own-method",
    "pfakd-fig3-curves",
    "pfakd-grid-beta",
    "pfakd-grid-fedpac",
    "pfakd-grid-gpfl",
    "pfakd-table1-main",
    "pfakd-table2-at",
    "pfakd-table3-ablation",
]
CELLS = {  # as many as numbers are printed, or curves drawn
    "centralised": [10],
    "different-nets": [18],
    "fedavg2rep": [3, 4, 0, 24, 8, 12, 2, 15, 36, 3],
    "feddecomp": [0, 18, 4, 0, 0, 0, 99, 75, 6, 8, 6, 5, 4],
    "fedreb": [2, 8, 4, 6, 8, 36, 36],
    "fedreg": [50, 8, 40, 50, 40, 6, 10, 28],
    "fine": [16],
    "gausshead": [126],
    "own": [78],
    "pfakd": [42, 15, 15, 36, 57, 18, 9],
}
NOT_RUNNABLE = {
    "fedavg2rep-fig6-labels",
    "feddecomp-baselines",
    "feddecomp-golden",
    "feddecomp-sec3-5-cost",
    "feddecomp-setup",
    "feddecomp-table6",
    "feddecomp-table7",
    "fedreb-sec6-2-testbed",
    "fedreg-table6-testbed",
}
SMALL = """
paper = "P"
where = "Table 1"
what = "w"
[settings]
rounds = 3
data.clients = 4
[rows]
a = { algorithm.name = "fedprox", algorithm.mu = 0.1 }
b = { algorithm.name = "fedavg", needs = "luck" }
[columns]
few = { rounds = 2 }
many = { rounds = 9 }
[printed.G]
a = [1.5, "-"]
b = [2, 3]
[std.G]
b = [0.5, "-"]
"""


VARIANT = """[variants.v]
what = "w"
reason = "r"
source = "s"
changes = [{ rows = "z", set = {} }]
"""


def printed(table: str, row: str, column: str) -> dict[str, PrintedNumber]:
    (found,) = [c for c in load_table(table).cells if (c.row, c.column) == (row, column)]
    return found.printed


def test_the_names_are_those_of_the_contract():
    assert list(list_table_names()) == NAMES
    assert [e.name for e in load_tables()] == NAMES


def test_every_table_has_all_its_cells():
    counted = [len(e.cells) for e in load_tables()]
    assert counted == [n for numbers in CELLS.values() for n in numbers]


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_of_every_cell_is_understood(name):
    found = load_table(name)
    for cell in found.cells:
        config = resolve_config(cell.config)
        assert config.top.rounds == cell.config["rounds"]
        assert config.algorithm_name == cell.config["algorithm"]["name"]
        assert config.model.name or config.model.groups
    assert len({(c.row, c.column) for c in found.cells}) == len(found.cells)


def test_what_cannot_be_run_says_what_it_needs():
    found = {e.name for e in load_tables() if all(c.needs for c in e.cells)}
    assert found == NOT_RUNNABLE
    assert all(load_table(name).missing_requirements for name in NOT_RUNNABLE)
    hybrid = load_table("fedavg2rep-table4-hybrid")
    assert {c.row.split(",")[0] for c in hybrid.cells if c.needs} == {"pre-trained FedRep"}
    assert "checkpoint" in str(hybrid.missing_requirements)


@pytest.mark.parametrize(
    ("table", "row", "column", "numbers"),
    [
        ("fedreg-table2-sota", "FedReG", "CIFAR-100", {"G": 24.73, "P": 50.26}),
        ("fedreg-table2-sota", "GPFL", "EMNIST", {"G": 48.62, "P": 94.88}),
        ("fedreg-table3-scalability", "FedAvg", "200 clients", {"G": 53.97, "P": 52.87}),
        ("fedreg-table4-robustness", "Ditto", "Fashion-MNIST, alpha 0.5", {"G": 87.69, "P": 87.69}),
        ("fedreg-table5-ablation", "d: balanced data only", "CIFAR-10", {"G": 55.04}),
        ("fedreg-fig7-overall-metric", "FedReG", "500 clients", {"score": 3.8663}),
        ("fedreb-table5-3-head-depth", "depth 3", "origin", {"G": 59.72, "P": 90.19}),
        ("fedreb-table5-4-weights", "second min", "split", {"G": 54.66, "P": 90.58}),
        ("fedreb-table5-6-fmnist", "FedProx", "5 of 20, alpha 0.5", {"G": 90.5, "P": 94.21}),
        ("fedreb-sec6-2-testbed", "FedReb", "CIFAR-10", {"G": 39.72, "P": 55.98}),
        ("pfakd-table1-main", "PFAKD", "CIFAR-100, E = 20", {"P": 49.94}),
        ("pfakd-table1-main", "Local", "CIFAR-10, E = 10", {"P": 68.7}),
        ("pfakd-table2-at", "PFAKD + AT", "CIFAR-10, E = 20", {"P": 76.92}),
        ("fedavg2rep-table3-heterogeneity", "Shakespeare", "J = 8", {"G": 25.1}),
        ("fedavg2rep-table4-hybrid", "pre-trained FedRep, N_C = 10", "J = 8", {"G": 37.4}),
        ("fedavg2rep-text-centralised", "centralised", "Tiny ImageNet", {"G": 34.7}),
        ("feddecomp-table7", "FedPer", "CIFAR-10", {"psnr_mean": 12.43, "psnr_max": 19.52}),
    ],
)
def test_numbers_are_as_printed(table, row, column, numbers):
    assert printed(table, row, column) == {k: PrintedNumber(v) for k, v in numbers.items()}


def test_deviations_are_as_printed_and_missing_ones_are_none():
    assert printed("feddecomp-table1", "pFedGate", "CIFAR-10, alpha 0.1")["P"] == PrintedNumber(
        87.25, 1.91
    )
    last = printed("feddecomp-table1", "FedDecomp", "Tiny ImageNet, alpha 1.0")
    assert last["P"] == PrintedNumber(25.55, None)
    grid = printed("feddecomp-table2", "R_l = 1.0", "Tiny ImageNet, R_c = 0.2")
    assert grid["P"] == PrintedNumber(33.9, 0.91)
    moved = printed("feddecomp-table6", "E_lora = 0", "CIFAR-100")
    assert moved == {
        "P": PrintedNumber(39.35),
        "delta_sigma": PrintedNumber(37.99),
        "delta_tau": PrintedNumber(0.0),
    }


def test_tables_that_repeat_each_other_have_the_same_numbers():
    """The works themselves say so: the same runs are printed twice."""
    for row in load_table("fedreg-table2-sota").rows:
        fifty = printed("fedreg-table3-scalability", row, "50 clients")
        assert printed("fedreg-table2-sota", row, "CIFAR-10") == fifty
    for row in load_table("pfakd-table3-ablation").rows:
        for column in load_table("pfakd-table3-ablation").columns:
            again = printed("pfakd-table3-ablation", row, column)
            assert again == printed("pfakd-table1-main", row, column)
    one, other = (
        load_table("fedreg-table1-augment-threshold"),
        load_table("fedreb-table5-1-augment"),
    )
    assert one.printed == other.printed


def test_the_score_of_figure_7_follows_from_table_3():
    for cell in load_table("fedreg-fig7-overall-metric").cells:
        from_table = printed("fedreg-table3-scalability", cell.row, cell.column)
        score = sum(math.log(from_table[m].value / 10) for m in "GP")
        assert round(score, 4) == cell.printed["score"].value


def test_orderings_hold_in_the_printed_numbers():
    checked = 0
    for found in load_tables():
        values = {(c.row, c.column): c.printed for c in found.cells}
        for o in found.orderings:
            pairs = [
                (values[o.above, column][o.measure], numbers[o.measure])
                for (row, column), numbers in values.items()
                if row != o.above and fnmatchcase(row, o.below) and fnmatchcase(column, o.columns)
                if (o.above, column) in values
            ]
            assert pairs, f"{found.name}: {o}"
            assert all(a.value > b.value for a, b in pairs), f"{found.name}: {o}"
            checked += 1
    assert checked == 59


def test_exceptions_decide_last():
    cells = {(c.row, c.column): c.config for c in load_table("feddecomp-table1").cells}
    algorithm = cells["FedDecomp", "CIFAR-100, alpha 0.5"]["algorithm"]
    assert (algorithm["conv_rank"], algorithm["linear_rank"]) == (0.8, 0.4)
    algorithm = cells["FedDecomp", "CIFAR-10, alpha 0.5"]["algorithm"]
    assert (algorithm["conv_rank"], algorithm["linear_rank"]) == (0.6, 0.6)
    assert cells["pFedGate", "CIFAR-10, alpha 0.1"]["training"]["lr"] == 0.05
    assert cells["pFedSD", "CIFAR-10, alpha 0.1"]["training"]["lr"] == 0.01
    assert cells["FedAvg", "CIFAR-10, alpha 0.1"]["training"]["lr"] == 0.1
    hybrid = {(c.row, c.column): c.config for c in load_table("fedavg2rep-table4-hybrid").cells}
    asked = [(row, f"J = {j}") for row in ("FedRep", "FedAvg2Rep") for j in (4, 8, 16)]
    rounds = [hybrid[f"{row}, N_C = 5", column]["rounds"] for row, column in asked]
    assert rounds == [2000, 1000, 500, 2000, 1250, 875]


def select(name: str, rows: str = "*", columns: str = "*") -> list[dict]:
    """The configurations of some cells of a table."""
    return [
        c.config
        for c in load_table(name).cells
        if fnmatchcase(c.row, rows) and fnmatchcase(c.column, columns)
    ]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("pfakd")])
def test_every_row_of_pfakds_cifar100_tables_has_the_codes_decay(name):
    for config in select(name, columns="CIFAR-100,*"):
        training = resolve_config(config).training
        assert (training.schedule, training.decay_factor) == ("exponential", 0.9)
    for config in (*select(name, columns="CIFAR-10,*"), *select(name, columns="Fashion*")):
        assert "schedule" not in config["training"]


def test_fedreps_base_trains_as_long_as_pfakds_code_says():
    for name in ("pfakd-table1-main", "pfakd-fig3-curves"):
        for config in select(name, "FedRep"):
            epochs = config["training"]["epochs"]
            found = {k: v for k, v in config["algorithm"].items() if k != "name"}
            assert found == {"head_epochs": epochs, "base_epochs": epochs}


def test_the_guesses_about_augmentation_are_named():
    """Wherever a row balances data: the magnitudes of simple, and AutoAugment's policy."""
    for found in load_tables():
        used = {c.config["algorithm"].get("augment") for c in found.cells}
        said = " ".join(found.unsaid)
        assert ("magnitudes of simple augmentation: flips of half" in said) == ("simple" in used)
        assert ("policy of AutoAugment: that for CIFAR-10" in said) == ("auto" in used)


def test_the_curves_of_figure_7_are_the_runs_of_table_4():
    curves, table = (
        {(c.row, c.column): c.config for c in load_table(name).cells}
        for name in ("fedavg2rep-fig7-curves", "fedavg2rep-table4-hybrid")
    )
    assert curves == {k: v for k, v in table.items() if not k[0].startswith("FedRep,")}


def test_the_grids_of_pfakd_hold_the_settings_of_its_tables():
    main = {(c.row, c.column): c.config for c in load_table("pfakd-table1-main").cells}
    chosen = {
        "CIFAR-100": ("beta = 1", "lambda = 0.001", "lambda = 0.0001"),
        "CIFAR-10": ("beta = 1", "lambda = 1", "lambda = 0.01"),
        "Fashion-MNIST": ("beta = 1", "lambda = 1", "lambda = 0.01"),
    }
    for column, rows in chosen.items():
        for row, method in zip(rows, ("PFAKD", "FedPAC", "GPFL"), strict=True):
            name = {"PFAKD": "beta", "FedPAC": "fedpac", "GPFL": "gpfl"}[method]
            at = f"{column}, mu = 0.1" if method == "GPFL" else column
            (config,) = select(f"pfakd-grid-{name}", row, at)
            assert config == main[method, f"{column}, E = 10"]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("fedavg2rep")])
def test_fedavg2rep_keeps_short_batches_as_its_code_does(name):
    assert {config["training"]["drop_last"] for config in select(name)} <= {False}


def test_the_alpha_of_testbeds_is_not_said():
    for name in ("fedreg-table6-testbed", "fedreb-sec6-2-testbed"):
        assert any(line.startswith("alpha of the partition") for line in load_table(name).unsaid)


@pytest.mark.parametrize("name", ["fedreg-table3-scalability", "fedreg-fig7-overall-metric"])
def test_batches_of_1_have_no_momentum_and_the_table_says_why(name):
    found = {(c["training"]["batch"], c["training"]["momentum"]) for c in select(name)}
    assert found == {(20, 0.9), (10, 0.9), (1, 0.0)}
    assert any("it cannot have been 0.9" in remark for remark in load_table(name).remarks)


def test_no_file_mentions_a_path_of_a_machine():
    for name in NAMES:
        text = (files("heterophony.papers") / "tables" / f"{name}.toml").read_text(encoding="utf-8")
        assert not [
            word for word in ("/work", "/home", "/tmp", "/root", ".md", "\\") if word in text
        ]


def test_cells_are_where_numbers_are():
    first, second, third = parse_table("small", SMALL).cells
    assert (first.row, first.column, first.needs) == ("a", "few", None)
    assert first.config == {
        "rounds": 2,
        "data": {"clients": 4},
        "algorithm": {"name": "fedprox", "mu": 0.1},
    }
    assert first.printed == {"G": PrintedNumber(1.5)}
    assert (second.printed, second.needs) == ({"G": PrintedNumber(2, 0.5)}, "luck")
    assert second.config["algorithm"] == {"name": "fedavg"}
    assert (third.column, third.printed) == ("many", {"G": PrintedNumber(3)})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('what = "w"', 'what = "w"\nclaim = []', "table.claim: unknown key; did you mean"),
        ('what = "w"', "what = 1", "table.what: must be a string, not 1"),
        ('what = "w"\n', "", "table.what: missing"),
        ("a = [1.5", "c = [1.5", "table.printed.G: unknown name 'c'; choose from: a, b"),
        ("[1.5, ", "[", "table.printed.G.a: must have 2 numbers"),
        ("[1.5, ", "['?', ", "table.printed.G.a: must be numbers, or '-' for none"),
        ("[printed.G]", "[printed.H]", "table.printed.H: unknown name 'H'"),
        ("[settings]", "[measured]\nround = 'best'\n[settings]", "measured.round: unknown key"),
        ("[settings]", "[[exceptions]]\nrows = 'z'\nset = {}\n[settings]", "no cell is in 'z'"),
        ("[settings]", "[[orderings]]\nmeasure = 'P'\nabove = 'a'\n[settings]", "unknown name 'P'"),
        ("[settings]", "[settings", "Expected ']'"),
        ("[printed.G]", "[variants.v]\nwhat = 'w'\n[printed.G]", "variants.v.reason: missing"),
        ("[printed.G]", f"{VARIANT.replace('.v]', '.V]')}[printed.G]", "variants.V: must be lower"),
        ("[printed.G]", f"{VARIANT}[printed.G]", "variants.v: no cell is in 'z' and '*'"),
    ],
)
def test_a_file_with_a_mistake_is_refused(old, new, message):
    with pytest.raises(ConfigError) as error:
        parse_table("small", SMALL.replace(old, new, 1))
    assert str(error.value).startswith("small.toml: ")
    assert message in str(error.value)


def test_a_wrong_name_gets_the_nearest_right_one():
    with pytest.raises(ConfigError) as error:
        load_table("fedreg-table2")
    assert str(error.value) == (
        "reproduce: unknown name 'fedreg-table2'; did you mean 'fedreg-table2-sota'?"
    )


def test_list_papers():
    result = CliRunner().invoke(app, ["list", "papers", "--json"])
    assert result.exit_code == 0
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert list(found) == NAMES
    assert found["fedreg-table2-sota"] == {
        "name": "fedreg-table2-sota",
        "paper": "FedReG, Table 2",
        "what": "ten algorithms on four data sets",
        "cells": 40,
        "runnable": 40,
        "needs": None,
        "variants": [
            *("momentum-0", "threshold-sizes", "interleaved", "ditto-lambda-0", "equal-work"),
            *("both-heads", "weights-rebalanced"),
        ],
    }
    assert found["fedavg2rep-table4-hybrid"]["runnable"] == 24
    lines = CliRunner().invoke(app, ["list", "papers"]).stdout.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in NAMES)
    assert not any("[" in line for line in lines)


def test_a_dry_run_shows_what_is_different_in_each_cell():
    asked = ["reproduce", "pfakd-table1-main", "--scale", "full", "--dry-run", "--rows", "GPFL"]
    result = CliRunner().invoke(app, [*asked, "--json"])
    found = json.loads(result.stdout)
    assert len(found) == 9
    assert found[-1]["column"] == "CIFAR-100, E = 20"
    assert found[-1]["printed"] == {"P": {"value": 35.61, "std": None}}
    assert found[-1]["config"]["algorithm"] == {"name": "gpfl", "lam": 0.0001, "mu": 0.1}
    assert found[-1]["seeds"] == [42]
    result = CliRunner().invoke(app, asked)
    assert "algorithm.lam=0.0001" in result.stdout
    assert "training.batch" not in result.stdout
    assert "training.batch = 128" in result.stderr


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["fedreg-table9", "--dry-run"], "did you mean 'fedreg-table"),
        (["pfakd-table2-at", "--dry-run", "--rows", "X*"], "no row matches 'X*'; there is: PFAKD;"),
        (["feddecomp-setup", "--dry-run"], "nothing to run: each table holds these settings"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(asked, message):
    result = CliRunner().invoke(app, ["reproduce", *asked])
    assert result.exit_code == 3
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
