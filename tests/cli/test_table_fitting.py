"""Tables fit the width of the terminal: lines are broken first, then columns are left out."""

from __future__ import annotations

import pytest

from heterophony.cli.terminal import fit_table, measure_lines

TITLES = ["algorithm", "G last 10", "Δ", "seconds"]
ROWS = [
    ["FedAvg", "91.00 ± 0.50", "+1.00 (−1.00 … +3.00)", 12.5],
    ["FedReG", "92.00 ± 0.50", "–", 7],
]


def measure_width(titles: list[str], rows: list[list[str]]) -> int:
    return sum(map(measure_lines, zip(titles, *rows, strict=True))) + 2 * (len(titles) - 1)


@pytest.mark.parametrize(
    ("width", "left_out", "gap"),
    [
        (55, [], "+1.00 (−1.00 … +3.00)"),
        (54, [], "+1.00\n(−1.00 … +3.00)"),
        (42, ["seconds"], "+1.00\n(−1.00 … +3.00)"),
        (30, ["seconds", "Δ"], None),
    ],
)
def test_lines_are_broken_before_columns_are_left_out(width, left_out, gap):
    found = fit_table(TITLES, ROWS, 1, ["seconds", "Δ"], width)
    assert (found.left_out, found.fits) == (left_out, True)
    assert measure_width(found.titles, found.rows) <= width
    assert dict(zip(found.titles, found.rows[0], strict=True)).get("Δ") == gap
    assert found.rows[0][1] == "91.00 ± 0.50"  # a number is never cut


def test_what_is_not_optional_stays_however_narrow_it_is():
    found = fit_table(TITLES, ROWS, 1, ["seconds"], 20)
    assert found.titles[0] == "algorithm"
    assert (len(found.titles), found.fits) == (3, False)


def test_text_stays_readable_before_columns_are_left_out():
    about = "a long description of what it is " * 3
    found = fit_table(["name", "about", "cost"], [["x", about, "1"]], 3, ["cost"], 30)
    assert (found.titles, found.text) == (["name", "about"], 2)
    assert not fit_table(["name", "about", "cost"], [["x", about, "1"]], 3, ["cost"], 40).left_out


def test_an_empty_table_has_its_titles():
    assert fit_table(["a", "b"], [], 1, [], 80).titles == ["a", "b"]
