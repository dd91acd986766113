"""Variants of published tables: their settings, their folders, and their names on all results."""

from __future__ import annotations

import csv
import json
import tomllib

import pytest

from helpers.commands import call, refused
from heterophony.config.reading import resolve_config
from heterophony.core.errors import ConfigError
from heterophony.papers import scaling as quick
from heterophony.papers.evidence import is_run_of_cell
from heterophony.papers.reproduce import CellRun
from heterophony.papers.table import Cell, PublishedTable, load_table, load_tables

TABLE2 = "fedreg-table2-sota"
WITH_VARIANTS = [t for t in load_tables() if t.variants]


def names(table: PublishedTable) -> dict[tuple[str, str], str]:
    return {(c.row, c.column): CellRun(c, 0).folder_name for c in table.cells}


def select(table: PublishedTable, row: str, column: str) -> list[Cell]:
    return [c for c in table.cells if (c.row, c.column) == (row, column)]


def changed(table: PublishedTable, *variants: str) -> set[str]:
    """The rows that these variants change."""
    return {c.row for c in table.choose_variants(variants).cells if c.variant}


def test_the_variants_of_fedregs_tables():
    assert [t.name for t in WITH_VARIANTS] == [
        t.name for t in load_tables() if t.name.startswith(("fedreb-", "fedreg-")) and t.printed
    ]
    for table in WITH_VARIANTS:
        readings = {"momentum-0", "interleaved", "both-heads", "weights-rebalanced"}
        assert readings <= table.variants.keys()
        assert ("ditto-lambda-0" in table.variants) == ("Ditto" in table.rows)
    # the others repeat numbers of the thesis, which has the rule of class counts
    assert {t.name for t in WITH_VARIANTS if "threshold-sizes" in t.variants} == {
        *("fedreg-fig7-overall-metric", "fedreg-table2-sota", "fedreg-table3-scalability"),
        *("fedreg-table5-ablation", "fedreg-table6-testbed"),
    }


@pytest.mark.parametrize("table", WITH_VARIANTS, ids=lambda t: t.name)
def test_every_variant_is_understood_and_changes_what_it_says(table):
    whole = {(c.row, c.column): c.config for c in table.cells}
    for name in table.variants:
        cells = [c for c in table.choose_variants([name]).cells if c.variant]
        assert cells
        for cell in cells:
            assert cell.config != whole[cell.row, cell.column]
            config = resolve_config(cell.config)
            found = {
                "momentum-0": lambda c: c.training.momentum == 0,
                "threshold-sizes": lambda c: c.algorithm.threshold_scope == "client_size",
                "interleaved": lambda c: c.algorithm.phases == "interleaved",
                "ditto-lambda-0": lambda c: c.algorithm.lam == 0,
                "equal-work": lambda c: c.training.epochs == 10,
                "both-heads": lambda c: c.algorithm.own_phase == "both_heads",
                "weights-rebalanced": lambda c: c.algorithm.weights == "rebalanced",
                "auto-imagenet": lambda c: c.algorithm.augment == "auto_imagenet",
                "auto-svhn": lambda c: c.algorithm.augment == "auto_svhn",
                "magnitude-half": lambda c: c.algorithm.magnitude == 0.5,
                "magnitude-double": lambda c: c.algorithm.magnitude == 2,
            }[name](config)
            assert found
            resolve_config(quick.shrink_to_quick(cell.config))


def test_a_variant_changes_only_its_rows():
    table = load_table(TABLE2)
    assert changed(table) == set()
    assert changed(table, "momentum-0") == set(table.rows)
    assert changed(table, "threshold-sizes") == changed(table, "interleaved") == {"FedReG"}
    assert changed(table, "ditto-lambda-0") == {"Ditto"}
    ablation = load_table("fedreg-table5-ablation")
    assert changed(ablation, "interleaved") == {*ablation.rows} - {"FedAvg"}
    # where there is one head, or heads count by other sizes, these readings are the same
    letters = {row[0] for row in changed(ablation, "both-heads") - {"FedReG"}}
    assert letters == {"a", "c"}
    assert {row[0] for row in changed(ablation, "weights-rebalanced") - {"FedReG"}} == {"b", "d"}


def test_runs_of_variants_have_folders_of_their_own_and_others_are_shared():
    table = load_table(TABLE2)
    before, sizes = names(table), names(table.choose_variants(["threshold-sizes"]))
    assert sizes["FedReG", "EMNIST"] == "fedreg--emnist--threshold-sizes--0"
    assert {k: v for k, v in sizes.items() if k[0] != "FedReG"} == {
        k: v for k, v in before.items() if k[0] != "FedReG"
    }
    both = names(table.choose_variants(["threshold-sizes", "momentum-0"]))
    assert both["FedReG", "EMNIST"] == "fedreg--emnist--momentum-0+threshold-sizes--0"
    assert both["FedAvg", "EMNIST"] == "fedavg--emnist--momentum-0--0"
    assert not {*both.values()} & {*before.values()}
    # where the table has momentum 0 already, the variant is no other run
    scaled = load_table("fedreg-table3-scalability").choose_variants(["momentum-0"])
    assert names(scaled)["FedAvg", "500 clients"] == "fedavg--500-clients--0"


def test_a_run_of_a_variant_is_no_run_of_the_table_as_printed():
    """Also if the table does not name the setting that the variant changes."""
    table = load_table(TABLE2)
    for names in ([], ["interleaved"], ["both-heads"], ["weights-rebalanced"]):
        (cell,) = select(table.choose_variants(names), "FedReG", "Fashion-MNIST")
        (plain,) = select(table, "FedReG", "Fashion-MNIST")
        run = tomllib.loads(resolve_config(cell.config).to_toml())
        assert is_run_of_cell(cell.config, run)
        assert is_run_of_cell(plain.config, run) == (names == [])


def test_variants_are_combined_in_the_order_of_the_file():
    table = load_table(TABLE2)
    for asked in (["interleaved", "momentum-0"], ["momentum-0+interleaved"]):
        assert table.choose_variants(asked).variant == "momentum-0+interleaved"


def test_a_wrong_variant_is_said_in_one_line():
    with pytest.raises(
        ConfigError, match="--variant: no 'momentum' here; did you mean 'momentum-0'"
    ):
        load_table(TABLE2).choose_variants(["momentum"])
    assert refused(3, "reproduce", "pfakd-table2-at", "--variant", "momentum-0") == (
        "--variant momentum-0: pfakd-table2-at has no variants"
    )


def test_variants_are_listed_with_reason_and_source():
    found = json.loads(call("reproduce", TABLE2, "--variants", "--json").stdout)
    assert [v["name"] for v in found] == [*load_table(TABLE2).variants]
    assert all(v["what"] and v["reason"] and v["source"] for v in found)
    shown = call("reproduce", TABLE2, "--variants").stdout
    assert all(v["name"] in shown for v in found)
    assert "has no variants" in call("reproduce", "pfakd-table2-at", "--variants").stderr


def test_results_name_their_variant_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(quick, "ROUND_BOUNDS", (1, 1))
    words = [TABLE2, "--rows", "FedAvg", "--out", tmp_path, "--variant", "momentum-0"]
    words += ["-c", "engine.name=serial"]
    done = call("reproduce", *words)
    assert done.exit_code == 0, done.output
    assert "variant momentum-0" in done.stdout
    assert "Variant momentum-0: momentum 0 instead of 0.9; " in done.stderr
    (run,) = [p.name for p in tmp_path.iterdir() if p.is_dir()]
    assert run == "fedavg--cifar-100--momentum-0--0"
    assert "momentum = 0.0" in (tmp_path / run / "config.toml").read_text()
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        *(f"table--momentum-0.{kind}" for kind in ("json", "csv", "md", "tex")),
        *(f"figure--momentum-0.{kind}" for kind in ("svg", "png")),
    }
    kept = json.loads((tmp_path / "table--momentum-0.json").read_text())
    assert (kept["variant"], kept["variants"][0]["name"]) == ("momentum-0", "momentum-0")
    with open(tmp_path / "table--momentum-0.csv") as file:
        assert {row["variant"] for row in csv.DictReader(file)} == {"momentum-0"}
    for kind in ("md", "tex"):
        assert "Variant momentum-0: " in (tmp_path / f"table--momentum-0.{kind}").read_text()
    assert "Variant momentum-0" in (tmp_path / "figure--momentum-0.svg").read_text()
