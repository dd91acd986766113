"""One table, written for a terminal, as CSV, Markdown, LaTeX, JSON, HTML and for a page."""

from __future__ import annotations

import pytest

from heterophony.core.errors import ConfigError
from heterophony.results.table import (
    Cell,
    Column,
    FittedTable,
    ResultTable,
    fit_table,
    format_cell,
    measure_lines,
    render_csv,
    render_html,
    render_json,
    render_latex,
    render_markdown,
    render_table_data,
)

TABLE = ResultTable.build(
    [
        "algorithm",
        Column("P last 10", "P", "percent", show="std"),
        Column("MB", form=".1f", drop=1),
    ],
    [
        ["Fed|Avg_1", Cell(0.905, 0.01, (0.9, 0.91), mark="bold"), 2.0],
        ["=evil", Cell(0.5), None],
    ],
    notes=["Bold: first.", ""],
)


@pytest.mark.parametrize(
    ("cell", "column", "text"),
    [
        (Cell(), Column("x"), "–"),
        (Cell("stopped"), Column("x", show="std"), "stopped"),
        (Cell(0.5, 0.0), Column("x", kind="percent", show="std"), "50.00 ± 0.00"),
        (Cell(5.0, 0.0), Column("x", form=".1f", show="std"), "5.0"),  # bytes never vary
        (Cell(0.5, 0.1), Column("x", kind="percent"), "50.00"),
        (Cell(1.0, 9.0, (0.5, 1.5)), Column("x", show="half"), "1.00 ± 0.50"),
        (Cell(1.0, 0.25), Column("x", form="+.2f", show="std"), "+1.00 ± 0.25"),
        (Cell(1.0), Column("x", show="half"), "1.00"),
        (
            Cell(-0.01, 0.2, (-0.03, 0.01)),
            Column("x", kind="percent", form="+.2f", show="interval"),
            "−1.00 (−3.00 … +1.00)",
        ),
        (Cell(0.9, note="round 12"), Column("x", kind="percent"), "90.00 (round 12)"),
        (Cell(0.0312), Column("p", form=".2g"), "0.031"),
    ],
)
def test_a_cell_shows_its_spread_as_the_column_asks(cell, column, text):
    assert format_cell(cell, column) == text


def test_csv_has_numbers_in_full_and_no_formulas():
    assert render_csv(TABLE) == (
        "algorithm,P mean %,P std %,P low95 %,P high95 %,MB\n"
        "Fed|Avg_1,90.5,1.0,90.0,91.0,2.0\n"
        "'=evil,50.0,,,,\n"
    )


def test_markdown_aligns_escapes_and_marks():
    assert render_markdown(TABLE) == (
        "| algorithm | P last 10 (%) | MB |\n"
        "| --- | --: | --: |\n"
        "| Fed\\|Avg_1 | **90.50 ± 1.00** | 2.0 |\n"
        "| =evil | 50.00 | – |\n"
        "\nBold: first.\n"
    )


def test_latex_aligns_escapes_and_marks():
    assert render_latex(TABLE) == (
        "% Bold: first.\n% \\usepackage{booktabs}\n\\begin{tabular}{lrr}\n  \\toprule\n"
        "  algorithm & P last 10 (\\%) & MB \\\\\n  \\midrule\n"
        "  Fed|Avg\\_1 & \\textbf{90.50 $\\pm$ 1.00} & 2.0 \\\\\n"
        "  =evil & 50.00 & -- \\\\\n  \\bottomrule\n\\end{tabular}\n"
    )


def test_html_escapes_and_has_classes():
    table = ResultTable.build(["verdict <"], [[Cell("a\n<b>", mark="good")]])
    assert render_html(table) == (
        '<div class="wide"><table><tr><th class="verdict">verdict &lt;</th></tr>'
        '<tr><td class="verdict mark good">a<br>&lt;b&gt;</td></tr></table></div>'
    )


def test_json_has_the_numbers_by_key():
    assert render_json(TABLE)[0] == {"algorithm": "Fed|Avg_1", "P": 0.905, "MB": 2.0}


def test_a_page_has_texts_and_numbers():
    page = render_table_data(TABLE)
    assert page["columns"] == ["algorithm", "P", "MB"]
    assert page["titles"] == ["algorithm", "P last 10", "MB"]
    assert page["rows"][0] == {
        "cells": ["Fed|Avg_1", "90.50 ± 1.00", "2.0"],
        "bold": [1],
        "values": [None, 0.905, 2.0],
    }
    assert (page["title"], page["notes"]) == ("", ["Bold: first."])


def test_columns_are_chosen_by_key_in_the_order_asked():
    chosen = TABLE.select(["MB", "P"], "--columns")
    assert [c.name for c in chosen.columns] == ["algorithm", "MB", "P"]
    assert chosen.rows[0][1].value == 2.0
    with pytest.raises(ConfigError, match="--columns: no 'Q' here"):
        TABLE.select(["Q"], "--columns")


def test_a_row_needs_a_cell_for_every_column():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        ResultTable.build(["a", "b"], [["x"]])


# The width of a terminal --------------------------------------------------------------------

GAPS = ResultTable.build(
    [
        "algorithm",
        Column("G last 10", kind="percent", show="std"),
        Column("Δ", kind="percent", form="+.2f", show="interval", drop=2),
        Column("seconds", form="g", drop=1),
    ],
    [
        ["FedAvg", Cell(0.91, 0.005), Cell(0.01, None, (-0.01, 0.03)), 12.5],
        ["FedReG", Cell(0.92, 0.005), None, 7],
    ],
)


def measure_width(found: FittedTable) -> int:
    return sum(measure_lines(c.texts) for c in found.columns) + 2 * (len(found.columns) - 1)


def get_texts(found: FittedTable, title: str) -> list[str]:
    return next((c.texts[1:] for c in found.columns if c.column.title == title), [""])


@pytest.mark.parametrize(
    ("width", "left_out", "gap"),
    [
        (55, [], "+1.00 (−1.00 … +3.00)"),
        (54, [], "+1.00\n(−1.00 … +3.00)"),
        (42, ["seconds"], "+1.00\n(−1.00 … +3.00)"),
        (30, ["seconds", "Δ"], ""),
    ],
)
def test_lines_are_broken_before_columns_are_left_out(width, left_out, gap):
    found = fit_table(GAPS, width)
    assert (found.left_out, found.fits) == (left_out, True)
    assert measure_width(found) <= width
    assert get_texts(found, "Δ")[0] == gap
    assert get_texts(found, "G last 10")[0] == "91.00 ± 0.50"  # a number is never cut


def test_what_must_stay_stays_however_narrow_it_is():
    found = fit_table(GAPS, 15)
    assert ([c.column.title for c in found.columns], found.fits) == (
        ["algorithm", "G last 10"],
        False,
    )


def test_text_stays_readable_before_columns_are_left_out():
    about = "a long description of what it is " * 3
    cost = Column("cost", kind="text", drop=1)
    table = ResultTable.build(["name", "about", cost], [["x", about, "1"]])
    assert fit_table(table, 30).left_out == ["cost"]
    assert not fit_table(table, 40).left_out


def test_an_empty_table_has_its_titles():
    assert [c.texts for c in fit_table(ResultTable.build(["a", "b"], []), 80).columns] == [
        ["a"],
        ["b"],
    ]
