"""The list of claims, the runs that are shipped with it, the command, and the page in the documents."""

from __future__ import annotations

import json
from pathlib import Path
from runpy import run_path

import pytest
from typer.testing import CliRunner

from heterophony.analysis.runs import load_runs
from heterophony.cli import app
from heterophony.core.errors import DataError
from heterophony.papers import medium
from heterophony.papers.claim_cost import estimate_core_hours
from heterophony.papers.claim_data import describe_cost
from heterophony.papers.claim_list import PaperClaim, list_claims
from heterophony.papers.claim_verdicts import decide_claims
from heterophony.papers.evidence import (
    STAND_IN,
    StoredRun,
    digest_settings,
    list_cells_at_scales,
    match_runs,
    parse_runs,
    read_stored_runs,
    write_stored_runs,
)
from heterophony.papers.table import load_table, load_tables
from heterophony.privacy.evidence import digest_audit

ROOT = Path(__file__).parents[2]
FULL_RUNS = ROOT / "results" / "fedreg-table2-sota"
CLAIMS = list_claims()


def asked(*words: str):
    return CliRunner().invoke(app, ["reproduce", *words])


# The list -----------------------------------------------------------------------------------


def test_every_ordering_and_every_claim_in_words_is_listed_once():
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    listed = {(c.table.name, c.says) for c in CLAIMS}
    for table in load_tables():
        assert {(table.name, words) for words in table.claims} <= listed
    assert sum(c.how.startswith("every difference, paired by seed") for c in CLAIMS) >= 96


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.comparisons], ids=lambda c: c.id)
def test_the_printed_numbers_are_as_claimed(claim: PaperClaim):
    cells = {(c.row, c.column): c.printed for c in claim.table.cells}
    for first, second in claim.comparisons:
        a, b = (cells[key].get(claim.measure) for key in (first, second))
        if a is None or b is None:  # a figure
            continue
        gap = round(a.value - b.value, 9)
        if claim.within is not None:
            assert abs(gap) <= claim.within
        else:
            assert gap >= (claim.least if claim.least is not None else 0)


def test_every_claim_has_a_verdict_or_a_cost_or_what_it_needs():
    for found in decide_claims(CLAIMS, read_stored_runs()):
        assert found.verdict != "undecided" or describe_cost(found) != "–"
        hours = estimate_core_hours(found.claim)
        if hours["full"] and hours["medium"]:
            assert hours["medium"] < hours["full"]


# Stored runs --------------------------------------------------------------------------------


def test_runs_are_found_by_their_settings_and_stored_as_they_are(tmp_path):
    cells = list_cells_at_scales(
        [load_table("fedreg-table2-sota"), load_table("pfakd-table1-main")]
    )
    found = list(match_runs(load_runs([FULL_RUNS]), cells))
    assert [(r.table, r.scale, r.row, r.column, r.variant, r.seed) for r in found] == [
        ("fedreg-table2-sota", "full", row, "Fashion-MNIST", "", 0) for row in ("FedAvg", "FedReG")
    ]
    result = json.loads((FULL_RUNS / "fedreg--fashion-mnist--0" / "result.json").read_text())
    numbers = found[1].measure(found_rule())
    assert numbers["G"] == pytest.approx(100 * result["G"]["best"], abs=1e-3)
    assert numbers["P last10"] == pytest.approx(100 * result["P"]["last10"]["mean"], abs=1e-3)
    (file,) = write_stored_runs(tmp_path, reversed(found))
    assert parse_runs(file.read_text(), file.name) == found
    shipped = {r.key: r for r in read_stored_runs()}
    assert all(shipped[r.key] == r for r in found)


def found_rule():
    return load_table("fedreg-table2-sota").measured


def test_other_data_stand_in_unless_they_are_another_column_of_the_table():
    hybrid, wide = load_table("fedavg2rep-table4-hybrid"), load_table("fedreg-table2-sota")
    cells = list_cells_at_scales([hybrid, wide])
    standing = [
        (at.table.name, at.cell.row, at.cell.column) for at in cells if at.scale == STAND_IN
    ]
    assert (hybrid.name, "FedRep, N_C = 5", "J = 4") in standing
    assert (wide.name, "FedAvg", "EMNIST") not in standing  # it is the one on Fashion-MNIST
    assert {
        c.config["data"]["name"] for c in (at.cell for at in cells if at.scale == STAND_IN)
    } == {"cifar10-small"}


def test_a_damaged_file_of_runs_is_named():
    with pytest.raises(DataError, match=r"x\.json is damaged, or was written by another version"):
        parse_runs('{"runs":[{"row":1}]}', "x.json")


def test_shipped_runs_have_the_settings_of_their_cells():
    tables = {name: load_table(name) for name in {r.table for r in read_stored_runs()}}
    for run in read_stored_runs():
        digest = digest_audit if run.numbers else digest_settings
        assert run.settings_sha256 == digest(find_settings(tables[run.table], run))


def find_settings(table, run: StoredRun):
    named = [run.variant] if run.variant and not run.numbers else []  # of audits: the attacker
    chosen = table.choose_variants(named)
    config = next(c.config for c in chosen.cells if (c.row, c.column) == (run.row, run.column))
    used = {"medium": "never", STAND_IN: "always"}
    return medium.shrink_config(config, used[run.scale]) if run.scale in used else config


# The command and the page -------------------------------------------------------------------


def test_the_command_lists_all_claims_for_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked("--claims", "--json")
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert [c["id"] for c in content] == [c.id for c in CLAIMS]
    words = ("holds", "does not hold", "undecided")
    assert all(c["verdict"].startswith(words) and c["core_hours"].keys() for c in content)


def test_the_claims_of_a_table_are_shown_with_what_was_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked("feddecomp-table5", "--claims")
    assert found.exit_code == 0
    shown = " ".join(found.output.split())
    assert "alpha 0.1: P of FedDecomp is above FedDecomp_Reverse: every difference, paired" in shown
    assert "Reverse is close to Local (47.61 / 22.65 / 18.76): the differences to Local" in shown


def test_a_table_without_claims_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked("own-method", "--claims")
    assert found.exit_code == 3
    assert "reproduce own-method --claims: this table has no claims" in found.output


def test_a_page_is_written_and_other_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("claims.md", "claims.html"):
        assert asked("feddecomp-table5", "--claims", "-o", name).exit_code == 0
        assert "Reverse is close to Local" in (tmp_path / name).read_text()
    assert asked("feddecomp-table5", "--claims", "-o", "claims.pdf").exit_code == 3
    assert asked("feddecomp-table5", "-o", "claims.md").exit_code == 3


@pytest.mark.parametrize("name", ["claims.md", "claims.html"])
def test_a_page_begins_with_what_is_decided_and_lists_all_runs_of_a_claim(tmp_path, name):
    page = tmp_path / name
    assert asked("fedreg-table2-sota", "--claims", "-o", str(page)).exit_code == 0
    text = page.read_text()
    decided = text.index("What is decided")
    assert decided < text.index("personal models are better than FedAvg") < text.index("All runs:")
    assert text.count("medium scale, momentum 0 and equal work") >= 4  # two rules of two claims


def test_the_page_in_the_documents_is_current():
    script = run_path(str(ROOT / "scripts" / "claims"))
    assert (ROOT / "docs" / "explanation" / "claims.md").read_text() == script["write_page"]()
