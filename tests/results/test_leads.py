"""Nothing is highlighted that the statistics cannot tell apart: tables, LaTeX, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.made_runs import data_of, played, stored
from heterophony.report.page import html
from heterophony.results import comparison as leads
from heterophony.results import runs
from heterophony.results.comparison import ComparisonRow
from heterophony.results.comparison_tables import COLUMNS, build_comparison_table
from heterophony.results.table import render_latex, render_markdown


def make_table(folder: Path, **right: list[int]) -> list[ComparisonRow]:
    """Runs of each algorithm, one per seed, that answer so many of ten right in the end."""
    for name, counts in right.items():
        for seed, count in enumerate(counts):
            own = [min(4, count), max(0, count - 4)]
            events = played({"G": [[0, 0], own], "P": [[0, 0], own]}, name, seed)
            stored(folder / f"{name}-{seed}", events)
    return leads.compare_runs(runs.load_runs([folder]))


def list_bold(table: list[ComparisonRow]) -> list[str]:
    """The lines of the Markdown table that have a bold number."""
    shown = build_comparison_table(table)
    text, latex = render_markdown(shown), render_latex(shown)
    assert latex.count(r"\textbf") == text.count("**") / 2
    return [line.split("|")[1].strip() for line in text.splitlines() if "**" in line]


def test_a_tie_is_not_bold(tmp_path: Path) -> None:
    table = make_table(tmp_path, fedavg=[5, 6, 7, 5, 6, 7], fedper=[6, 5, 7, 6, 5, 8])
    means = [row.spreads["P.last10"].mean for row in table]
    assert means[1] > means[0]  # higher, but not beyond chance
    assert list_bold(table) == []
    note = "Nothing is bold: over 6 seeds, no row is higher than all others beyond chance."
    assert leads.explain_bold(table, list(COLUMNS)) == note
    assert render_markdown(build_comparison_table(table)).endswith(f"\n{note}\n")
    assert render_latex(build_comparison_table(table)).startswith(f"% {note}\n")


def test_a_clear_win_over_six_seeds_is_bold(tmp_path: Path) -> None:
    table = make_table(tmp_path, fedavg=[5, 6, 7, 5, 6, 7], fedper=[6, 7, 9, 6, 7, 8])
    assert list_bold(table) == ["FedPer"]
    assert {"G.last10", "P.last10"} <= set(table[1].leads)
    assert table[0].leads == ()
    assert leads.explain_bold(table, list(COLUMNS)) == leads.BOLD_NOTE


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed is"), (5, "5 seeds are")])
def test_too_few_seeds_highlight_nothing_and_say_why(tmp_path: Path, seeds: int, said: str) -> None:
    table = make_table(tmp_path, fedavg=[1] * seeds, fedper=[9] * seeds)
    assert list_bold(table) == []
    assert leads.explain_bold(table, list(COLUMNS)) == (
        f"Nothing is bold: {said} too few to compare 2 rows; at least 6 are needed."
    )


def test_more_rows_need_more_seeds(tmp_path: Path) -> None:
    right = {"fedavg": 5, "fedper": 7, "ditto": 4}
    six = make_table(tmp_path / "six", **{k: [v] * 6 for k, v in right.items()})
    assert list_bold(six) == []  # two comparisons: p = 2 · 0.031
    seven = make_table(tmp_path / "seven", **{k: [v] * 7 for k, v in right.items()})
    assert list_bold(seven) == ["FedPer"]


def test_who_beats_all_but_one_does_not_lead(tmp_path: Path) -> None:
    right = {"fedavg": [1] * 8, "fedper": [7, 8] * 4, "ditto": [8, 7] * 4}
    assert list_bold(make_table(tmp_path, **right)) == []


def test_runs_without_a_pair_are_not_told_apart() -> None:
    own = {(seed, "data"): {"P": 0.9} for seed in range(8)}
    other = {(seed, "other data"): {"P": 0.1} for seed in range(8)}
    same = {(seed, "data"): {"P": 0.1} for seed in range(8)}
    assert leads.find_clear_leader({"a": own, "b": same}, "P") == "a"
    assert leads.find_clear_leader({"a": own, "b": other}, "P") is None
    assert leads.find_clear_leader({"a": own, "b": {(0, "data"): {"G": 1.0}}}, "P") is None


def test_the_headline_of_the_page_names_nobody_within_noise(tmp_path: Path) -> None:
    make_table(tmp_path / "tie", fedavg=[5], fedper=[6])
    page = data_of(html.render_report(runs.load_runs([tmp_path / "tie"])))
    assert page["summary"].endswith(
        "No winner is shown: one seed is too few to compare 2 rows; at least 6 are needed."
    )
    assert not any(row["bold"] for row in page["table"]["rows"])
    assert page["table"]["notes"][0].startswith("Nothing is bold: one seed")
    make_table(tmp_path / "win", fedavg=[5] * 6, fedper=[6] * 6)
    page = data_of(html.render_report(runs.load_runs([tmp_path / "win"])))
    assert "FedPer has the highest G (60.00 %) and P (60.00 %)" in page["summary"]
    assert [bool(row["bold"]) for row in page["table"]["rows"]] == [False, True]
