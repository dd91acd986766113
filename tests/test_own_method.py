"""The method of this project: its page, its table and its choice follow from what is stored in results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from heterophony.papers.reproduce import find_differences
from heterophony.papers.table import load_table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "own-method"


@pytest.fixture(scope="module")
def parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import choose

        import report

        yield SimpleNamespace(choose=choose, report=report)


def test_the_page_is_written_from_what_is_stored(parts):
    page = parts.report.PAGE.read_text(encoding="utf-8")
    assert page == parts.report.write_page(parts.report.FINAL.read()), "run report.py"


def test_stored_runs_have_the_settings_of_the_table_and_all_its_seeds(parts):
    table = load_table("own-method")
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    stored = parts.report.FINAL.read()
    assert len({cell.column for cell in stored}) >= 4
    for cell, entry in stored.items():
        assert not list(find_differences(cells[cell.row, cell.column].config, entry.config))
        assert list(entry.seeds) == list(table.measured.seeds)


def test_the_candidate_with_the_highest_sum_was_chosen(parts):
    seeds = (*parts.choose.SEEDS, *parts.choose.MORE_SEEDS)
    found = json.loads((FOLDER / "choice.json").read_text())
    names = [n for n in parts.choose.CANDIDATES if f"CIFAR-10, {n}, seed {seeds[-1]}" in found]
    assert max(names, key=lambda n: parts.choose.average_sum(n, seeds)) == "fixed head"


def test_the_table_has_the_learning_rates_that_were_chosen(parts):
    found = json.loads((FOLDER / "rates.json").read_text())
    tried: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for key, numbers in found.items():
        data, name, rate = key.split(", ")
        tried.setdefault((data, name), {})[rate.removeprefix("lr ")] = numbers
    for cell in load_table("own-method").cells:
        trials = tried[cell.column.split(", ")[0], cell.row.split(", ")[0]]
        assert str(cell.config["training"]["lr"]) == parts.report.choose_rate(
            cell.row.split(", ")[0], trials
        )


def test_the_lead_of_fedrod_stands_beside_that_of_fixhead(parts):
    """Nobody shall credit FixHead with what FedRoD, of which it is made, has already."""
    page = parts.report.PAGE.read_text(encoding="utf-8")
    assert "| all, averaged by seed | +8.5 ± 2.2 | +7.0 ± 1.6 | +2.5 ± 0.9 | +2.3 ± 0.8 |" in page
    protocol = parts.report.PAGE.with_name("fixhead.md").read_text(encoding="utf-8")
    assert "FedRoD is above FedReG by 7.0 ± 1.6 points of G and 2.3 ± 0.8 of P" in protocol


def test_both_pages_say_the_same_of_what_was_written_when(parts):
    """The history cannot prove that the protocol came before the runs: neither page claims it."""
    for name in ("fixhead.md", "fixhead-results.md"):
        text = parts.report.PAGE.with_name(name).read_text(encoding="utf-8")
        assert "history cannot prove" in text
        assert "protocol) was written before" not in text


def test_the_nearest_methods_are_cited_for_what_they_are(parts):
    protocol = parts.report.PAGE.with_name("fixhead.md").read_text(encoding="utf-8")
    assert "SphereFed (Dong et al., ECCV 2022)" in protocol
    assert "FedETF (Li et al., ICCV 2023) trains one model" not in protocol
    assert "FedETF is not in the comparison yet" in protocol
