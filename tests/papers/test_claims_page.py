"""The list of claims, the runs that are shipped with it, the command, and the page in the documents."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from runpy import run_path

import pytest
from typer.testing import CliRunner

from heterophony.cli import app
from heterophony.core.errors import ConfigError, DataError
from heterophony.papers import scaling as medium
from heterophony.papers.claim_data import (
    VERDICTS,
    classify_verdict,
    describe_cost,
    judge_all_claims,
    list_verdicts,
    summarise_findings,
)
from heterophony.papers.claim_list import (
    PaperClaim,
    WrittenClaim,
    expand_claim,
    group_claims,
    list_claims,
)
from heterophony.papers.evidence import (
    STAND_IN,
    ReferenceRuns,
    StoredRun,
    digest_settings,
    list_cells_at_scales,
    match_runs_to_cells,
    parse_stored_runs,
    read_stored_runs,
    write_stored_runs,
)
from heterophony.papers.scaling import estimate_core_hours
from heterophony.papers.table import load_table, load_tables
from heterophony.privacy.run_audit import digest_audit
from heterophony.results.runs import load_runs

ROOT = Path(__file__).parents[2]
FULL_RUNS = ROOT / "results" / "fedreg-table2-sota"
CLAIMS = list_claims()
FOUND = judge_all_claims(read_stored_runs())
# the best cells of these columns are no claim of the work, or other words say them
NOT_CLAIMED = {
    "fedavg2rep-table3-heterogeneity": "rows are of two data sets",
    "fedavg2rep-table4-hybrid": "rows are compared for the same number of classes",
    "feddecomp-table2": "a grid: its best cells are claims in words",
    "feddecomp-table4": "no difference is claimed",
    "fedreb-sec6-2-testbed": "the thesis draws no conclusion from the order",
}


def asked(*words: str):
    return CliRunner().invoke(app, ["reproduce", *words])


# The list -----------------------------------------------------------------------------------


def test_every_ordering_and_every_claim_in_words_is_listed_once():
    assert len({c.id for c in CLAIMS}) == len(CLAIMS)
    listed = {(c.table.name, c.says) for c in CLAIMS}
    for table in load_tables():
        assert {(table.name, words) for words in table.claims} <= listed
    assert sum(c.how.startswith("every difference, paired by seed") for c in CLAIMS) >= 96


def test_every_best_row_that_a_table_prints_is_claimed():
    above = [(c, p.first[0]) for c in CLAIMS for p in c.comparisons if len(p.first) == 1]
    claimed = {(c.table.name, c.measure, *cell) for c, cell in above}
    missing = [
        (table.name, measure, row, column)
        for table in load_tables()
        if table.name not in NOT_CLAIMED
        for measure in {*table.printed} & {"G", "P", "score"}
        for column in table.columns
        if (row := find_best_row(table, measure, column))
        and (table.name, measure, row, column) not in claimed
    ]
    # FedProx's 94.21 there must be its G of 90.50
    assert missing == [("fedreb-table5-6-fmnist", "P", "FedProx", "5 of 20, alpha 0.5")]


def find_best_row(table, measure: str, column: str) -> str | None:
    """The row with the highest number of a column; None if two have it, or there is one row."""
    printed = {c.row: c.printed[measure].value for c in table.cells if c.column == column}
    best = [row for row, value in printed.items() if value == max(printed.values())]
    return best[0] if len(best) == 1 and len(printed) > 1 else None


@pytest.mark.parametrize(
    ("table", "says", "comparisons"),
    [
        ("fedreb-table5-5-cifar10", "5 of 20, alpha 0.5: G of FedRoD is above all others", 8),
        ("fedreb-table5-6-fmnist", "5 of 20, alpha 0.1: P of FedPer is above all others", 8),
        ("fedreb-table5-5-cifar10", "20 of 100: FedReb's generic model loses least", 8),
        ("fedreb-table5-6-fmnist", "FedReb's personal models lose least from 5 of 20", 16),
        ("feddecomp-table2", "CIFAR-100: the best ranks are R_l = 0.4 and R_c = 0.8", 24),
        ("feddecomp-table2", "Tiny ImageNet: the best low rank is above full rank", 1),
        ("pfakd-table1-main", "CIFAR-100: with more local epochs PFAKD loses least of all", 5),
        ("fedavg2rep-table3-heterogeneity", "50 classes per client are worse than 10", 3),
        ("fedavg2rep-table4-hybrid", "FedRep's generic model gets worse with more local steps", 6),
    ],
)
def test_what_falls_or_rises_with_what_is_claimed(table, says, comparisons):
    (found,) = [c for c in CLAIMS if c.table.name == table and c.says.startswith(says)]
    assert len(found.comparisons) == comparisons


def test_what_is_not_the_works_is_no_claim():
    assert not [c for c in CLAIMS if c.table.name == "fedreb-sec6-2-testbed"]
    assert not [c for c in CLAIMS if "no ordering can be" in c.says]


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.comparisons], ids=lambda c: c.id)
def test_the_printed_numbers_are_as_claimed(claim: PaperClaim):
    cells = {(c.row, c.column): c.printed for c in claim.table.cells}
    for comparison in claim.comparisons:
        sides = [
            [cells[key].get(claim.measure) for key in side]
            for side in (comparison.first, comparison.second)
        ]
        if None in (*sides[0], *sides[1]):  # a figure
            continue
        gap = round(sum(n.value for n in sides[0]) - sum(n.value for n in sides[1]), 9)
        if claim.within is not None:
            assert abs(gap) <= claim.within
        else:
            assert gap >= (claim.least if claim.least is not None else 0)


def test_a_claim_about_names_that_the_table_lacks_is_refused():
    table = load_table("feddecomp-table2")
    for wrong, why in (
        ({"best": ["R_l = 0.5", "CIFAR-10, R_c = 0.6"]}, "R_l = 0.5"),
        ({"falls_least": [["R_l = 0.4", "CIFAR-10, R_c = 0.6"]]}, "must be 3 names"),
    ):
        with pytest.raises(ConfigError, match=why):
            expand_claim(table, WrittenClaim(table.name, "says", "how", **wrong))


# Findings -----------------------------------------------------------------------------------


def test_claims_that_rest_on_the_same_comparison_are_one_finding():
    by_claim = {c.id: f for f in group_claims(CLAIMS) for c in f.claims}
    assert len(by_claim) == len(CLAIMS)
    thresholds = by_claim["fedreg-table1-augment-threshold: simple: G of mean is above all others"]
    assert [c.table.name for c in thresholds.claims] == [
        *("fedreb-table5-1-augment", "fedreb-table5-2-threshold", "fedreb-table5-4-weights"),
        "fedreg-table1-augment-threshold",
    ]
    one = by_claim["fedreg-table3-scalability: 50 clients: G of FedReG is above all others"]
    assert one is by_claim["fedreg-table2-sota: CIFAR-10: G of FedReG is above all others"]
    assert one is not by_claim["fedreg-table2-sota: CIFAR-10: P of FedReG is above all others"]


def test_a_claim_and_all_its_parts_are_one_finding():
    by_claim = {c.id: f for f in group_claims(CLAIMS) for c in f.claims}
    lowest = by_claim["feddecomp-table7: FedDecomp has the lowest maximum"]
    assert lowest.id == "feddecomp-table7: FedDecomp has the lowest maximum"
    assert (len(lowest.claims), lowest.comparisons) == (4, 3)
    # a part that leaves something out is a finding of its own
    better = "fedreg-table2-sota: Fashion-MNIST: FedReG's generic model is better than FedAvg's"
    assert len(by_claim[better].claims) == 1


def test_every_claim_has_a_verdict_or_a_cost_or_what_it_needs():
    for found in list_verdicts(FOUND):
        assert found.verdict != "undecided" or describe_cost(found) != "–"
        hours = estimate_core_hours(found.claim)
        if hours["full"] and hours["medium"]:
            assert hours["medium"] < hours["full"]


def test_below_full_scale_nothing_holds_and_untrained_nets_decide_nothing():
    claims = list_verdicts(FOUND)
    assert not [c for c in claims if "hold" in c.verdict and c.scale == "medium"]
    cifar = [
        c
        for c in claims
        if c.claim.table.name == "fedreg-table2-sota" and c.claim.says.startswith("CIFAR-10: ")
    ]
    assert {c.verdict for c in cifar} == {"not yet trained"}
    for one in FOUND:
        assert {c.finding for c in one.claims} == {one.finding.id}


# Stored runs --------------------------------------------------------------------------------


def test_runs_are_found_by_their_settings_and_stored_as_they_are(tmp_path):
    cells = list_cells_at_scales(
        [load_table("fedreg-table2-sota"), load_table("pfakd-table1-main")]
    )
    found = list(match_runs_to_cells(load_runs([FULL_RUNS]), cells))
    assert [(r.table, r.scale, r.row, r.column, r.variant, r.seed) for r in found] == [
        ("fedreg-table2-sota", "full", row, "Fashion-MNIST", "", 0) for row in ("FedAvg", "FedReG")
    ]
    with zipfile.ZipFile(FULL_RUNS / "runs.zip") as packed:
        result = json.loads(packed.read("fedreg--fashion-mnist--0/result.json"))
    numbers = found[1].measure(found_rule())
    assert numbers["G"] == pytest.approx(100 * result["G"]["best"], abs=1e-3)
    assert numbers["P last10"] == pytest.approx(100 * result["P"]["last10"]["mean"], abs=1e-3)
    (file,) = write_stored_runs(tmp_path, reversed(found))
    assert parse_stored_runs(file.read_text(), file.name) == found
    shipped = {r.key: r for r in read_stored_runs()}
    assert all(shipped[r.key] == r for r in found)


def test_the_references_are_shipped():
    """Centralised training of the nets and images that medium scale has runs of, with five seeds."""
    references = ReferenceRuns(read_stored_runs())
    for data in ("fmnist-small", "cifar10-small"):
        ((_, runs),) = references.centralised[data, "convnet_small"].items()
        assert sorted(run.seed for run in runs) == [0, 1, 2, 3, 4]


def test_centralised_training_makes_as_many_passes_as_fedavg_in_the_works_tables():
    rows = {
        "FedReG, CIFAR-10": ("fedreg-table2-sota", "CIFAR-10"),
        "FedReG, Fashion-MNIST": ("fedreg-table4-robustness", "Fashion-MNIST, alpha 0.1"),
        "FedDecomp, CIFAR-10": ("feddecomp-table1", "CIFAR-10, alpha 0.1"),
        "FedDecomp, Tiny ImageNet": ("feddecomp-table1", "Tiny ImageNet, alpha 0.1"),
        "PFAKD, Fashion-MNIST": ("pfakd-table1-main", "Fashion-MNIST, E = 10"),
    }
    for shrink in (dict, lambda config: medium.shrink_to_medium(config, "never")):
        for row, (table, column) in rows.items():
            pooled = shrink(find_cell("centralised", row, "centralised"))
            avg = shrink(find_cell(table, "FedAvg", column))
            assert count_passes(pooled) == pytest.approx(count_passes(avg))
            for part in ("model", "data"):
                assert pooled[part]["name"] == avg[part]["name"]
            for key in ("batch", "momentum", "weight_decay"):
                assert pooled["training"][key] == avg["training"][key]


def find_cell(table: str, row: str, column: str) -> dict:
    cells = load_table(table).cells
    return next(c.config for c in cells if (c.row, c.column) == (row, column))


def count_passes(config: dict) -> float:
    return config["rounds"] * config["training"]["epochs"] * config["participation"]["rate"]


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
        parse_stored_runs('{"runs":[{"row":1}]}', "x.json")


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
    return medium.shrink_to_medium(config, used[run.scale]) if run.scale in used else config


# The command and the page -------------------------------------------------------------------


def test_the_command_lists_all_claims_for_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked("--claims", "--json")
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert [c["id"] for c in content] == [c.id for c in CLAIMS]
    assert {classify_verdict(c["verdict"]) for c in content} <= {*VERDICTS}
    assert all(c["core_hours"].keys() for c in content)
    assert {c["scale"] for c in content} <= {None, "method", "medium", "full"}
    assert {c["rule"] for c in content} == {"best", "last", "last10", "matched"}
    assert len({c["finding"] for c in content}) == len(FOUND) < len(content)
    assert {c["finding"] for c in content} <= {c["id"] for c in content}


def test_the_headline_counts_findings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headline = summarise_findings(FOUND)
    assert headline.startswith(f"{len(FOUND)} findings from {len(CLAIMS)} claims: ")
    assert " ".join(headline.split()) in " ".join(asked("--claims").output.split())


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
def test_a_page_counts_findings_and_lists_all_runs_of_a_claim(tmp_path, name):
    page = tmp_path / name
    assert asked("fedreg-table2-sota", "--claims", "-o", str(page)).exit_code == 0
    text = page.read_text()
    assert "What is decided" not in text  # no run of this table counts yet
    assert text.count("medium scale, momentum 0 and equal work (our control)") >= 4
    assert "findings from" in text
    assert "50 clients: G of FedReG" not in text  # Table 3 repeats a claim of this one


@pytest.mark.parametrize("name", ["claims.md", "claims.html"])
def test_a_page_lists_the_claims_of_a_decided_finding_below_it(tmp_path, name):
    page = tmp_path / name
    assert asked("feddecomp-table6", "--claims", "-o", str(page)).exit_code == 0
    decided, rest = page.read_text().split("What is decided")[1].split("FedDecomp, Table 6: how", 1)
    assert "FedDecomp, Table 6: delta" in decided
    assert "is exactly 0 at E" in decided
    assert "rise, delta" in rest


def test_the_page_says_by_which_rules_it_decides(tmp_path):
    page = tmp_path / "claims.md"
    assert asked("feddecomp-table6", "--claims", "-o", str(page)).exit_code == 0
    text = page.read_text()
    for sentence in (
        "Only runs of a paper's own setting, the full scale, can show that a claim *holds* or",
        "The paper's own rule (such as the best round) decides.",
        "with a Bonferroni correction",
        "reaches 0.8 of the accuracy of the same net after centralised training",
        " for every algorithm; the third knows them (*known*)",
    ):
        assert sentence in text


def test_the_page_shows_what_is_decided_first_and_code_as_code(tmp_path):
    page = tmp_path / "claims.html"
    assert asked("feddecomp-table7", "--claims", "-o", str(page)).exit_code == 0
    text = page.read_text()
    places = [text.index(f"<h2>{t}") for t in ("What is decided", "How claims are", "FedDecomp, ")]
    assert places == sorted(places)
    assert "CIFAR-10: highest PSNR of FedPer is above FedDecomp" in text
    assert '<td class="words">by <code>heterophony audit --preset medium</code></td>' in text
    assert "a claim <em>holds</em> or" in text
    assert "`" not in text


def test_the_page_in_the_documents_is_current():
    script = run_path(str(ROOT / "scripts" / "claims"))
    assert (ROOT / "docs" / "explanation" / "claims.md").read_text() == script["write_page"]()
