"""Result tables with typed columns and cells, as all commands, files and pages show them.

This module renders them for a terminal or a page, and as CSV, Markdown, LaTeX or JSON.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape as escape_html
from io import StringIO
from typing import Any, Literal

from rich.cells import cell_len

from ..core.errors import choose
from ..core.files import clean_text, quote_formula

Interval = tuple[float, float]
# bold: leads beyond chance; good, limited, bad: a verdict; open: no verdict
Mark = Literal["", "bold", "good", "limited", "bad", "open"]


@dataclass(frozen=True)
class Column:
    """A column of a table; ``percent`` values are fractions, shown as percentages.

    ``show`` selects what follows the value for people: ``std`` or ``half`` (of the interval) after
    ``±``, or the ``interval`` in brackets. ``drop`` is the order in which a narrow terminal leaves out
    columns: 1 is dropped first, 0 never.
    """

    title: str
    key: str = ""  # key in files and JSON; default: the title
    kind: Literal["text", "number", "percent"] = "number"
    form: str = ".2f"  # format specification of a number
    show: Literal["value", "std", "half", "interval"] = "value"
    drop: int = 0

    @property
    def name(self) -> str:
        """The key of the column, or its title if it has none."""
        return self.key or self.title


@dataclass(frozen=True)
class Cell:
    """A table cell: a value with its deviation, interval, note and mark; None is shown as –."""

    value: float | str | None = None
    std: float | None = None
    interval: Interval | None = None  # 95 %, of the mean
    note: str = ""  # in brackets after the value, such as "round 12"
    mark: Mark = ""
    form: str = ""  # in place of the column's


Value = Cell | float | str | None
Columns = list[Column | str]
Rows = list[list[Value]]


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells under their columns, with a title above and notes below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        columns: Iterable[Column | str],
        rows: Iterable[Sequence[Value]],
        title: str = "",
        notes: Iterable[str | None] = (),
    ) -> ResultTable:
        """Build a table from plain values; a column given as a string is its title and holds text.

        Empty notes are left out.
        """
        heads = tuple(Column(c, kind="text") if isinstance(c, str) else c for c in columns)
        lines = tuple(tuple(v if isinstance(v, Cell) else Cell(v) for v in row) for row in rows)
        for line in lines:
            if len(line) != len(heads):
                raise ValueError(f"a row has {len(line)} cells for {len(heads)} columns")
        return cls(heads, lines, title, tuple(filter(None, notes)))

    def select(self, keys: Sequence[str], where: str) -> ResultTable:
        """Return the table with only its first column and the columns with these keys, in this order.

        Raise ConfigError if there is no such column; ``where`` names the origin of the keys.
        """
        places = {column.name: i for i, column in enumerate(self.columns)}
        known = {name: i for name, i in places.items() if i}
        chosen = [0, *(choose(known, key, where) for key in keys)]
        columns = tuple(self.columns[i] for i in chosen)
        return replace(
            self, columns=columns, rows=tuple(tuple(r[i] for i in chosen) for r in self.rows)
        )


EMPTY = "–"
BOLD_MARKS = ("bold", "good", "limited", "bad")
GAP = 2  # spaces between columns in a terminal
NUMBERS = re.compile(r"[\d.,/–−+±…() ]+")  # a cell that contains only numbers, or nothing
CODE = re.compile(r"`([^`]+)`")
READABLE_WIDTH = 24  # least width of a text column; a terminal drops columns to keep it
LATEX_ESCAPES = {
    **{c: f"\\{c}" for c in "%_&#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "\n": " ",
}


# Text ---------------------------------------------------------------------------------------


def format_cell(cell: Cell, column: Column) -> str:
    """Format a table cell for people: its value, its spread in the column's style, and its note."""
    if cell.value is None:
        return EMPTY
    if isinstance(cell.value, str):
        return cell.value
    scale = 100 if column.kind == "percent" else 1

    def number(value: float) -> str:
        return f"{scale * value:{cell.form or column.form}}".replace("-", "−")

    text, low_high = number(cell.value), cell.interval
    # bytes and work that are the same for all seeds have no deviation worth showing
    varies = cell.std is not None and (scale == 100 or number(cell.std) != number(0.0))
    if column.show == "std" and cell.std is not None and varies:
        text += f" ± {number(cell.std).removeprefix('+')}"
    elif column.show == "half" and low_high:
        text += f" ± {number((low_high[1] - low_high[0]) / 2).removeprefix('+')}"
    elif column.show == "interval" and low_high:
        text += f" ({number(low_high[0])} … {number(low_high[1])})"
    return f"{text} ({cell.note})" if cell.note else text


def format_rows(table: ResultTable) -> list[list[str]]:
    """Format all cells of a table for people."""
    return [
        [format_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def list_full_titles(table: ResultTable) -> list[str]:
    """List the column titles for Markdown and LaTeX, with "(%)" after those of percentages."""
    return [f"{c.title} (%)" if c.kind == "percent" else c.title for c in table.columns]


def mark_rows(
    table: ResultTable, escape: Callable[[str], str], bold: Callable[[str], str]
) -> list[list[str]]:
    """Format and escape all cells of a table; marked cells are bold."""
    return [
        [
            bold(escape(text)) if cell.mark in BOLD_MARKS else escape(text)
            for cell, text in zip(cells, texts, strict=True)
        ]
        for cells, texts in zip(table.rows, format_rows(table), strict=True)
    ]


# Files --------------------------------------------------------------------------------------


def render_csv(table: ResultTable) -> str:
    """Render a table as CSV with unrounded numbers; a column with a spread becomes mean, std, low95 and high95.

    Percentages are multiplied by 100. Deviation and interval are empty without an interval.
    """
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([quote_formula(head) for c in table.columns for head in list_csv_heads(c)])
    for row in table.rows:
        pairs = zip(row, table.columns, strict=True)
        writer.writerow([quote_formula(v) for cell, c in pairs for v in list_csv_values(cell, c)])
    return out.getvalue()


def list_csv_heads(column: Column) -> list[str]:
    """List the heads of a column in a CSV file; a column with a spread becomes four."""
    unit = " %" if column.kind == "percent" else ""
    if column.show == "value":
        return [f"{column.name}{unit}"]
    return [f"{column.name} {part}{unit}" for part in ("mean", "std", "low95", "high95")]


def list_csv_values(cell: Cell, column: Column) -> list[float | str]:
    """List the values of a cell in a CSV file, one per head of its column."""

    def number(value: float) -> float:  # without the rounding digits that the multiplication adds
        return float(f"{100 * value:.12g}") if column.kind == "percent" else value

    value = cell.value
    own = "" if value is None else value if isinstance(value, str) else number(value)
    if column.show == "value":
        return [own]
    if cell.interval is None or cell.std is None:
        return [own, "", "", ""]
    return [own, *map(number, (cell.std, *cell.interval))]


def render_markdown(table: ResultTable) -> str:
    """Render a Markdown table; marked cells are bold, notes are paragraphs below it."""
    rule = ["---" if c.kind == "text" else "--:" for c in table.columns]
    heads = [escape_markdown(title) for title in list_full_titles(table)]
    lines = [heads, rule, *mark_rows(table, escape_markdown, "**{}**".format)]
    notes = [f"\n{note}\n" for note in table.notes]
    return "".join([*(f"| {' | '.join(line)} |\n" for line in lines), *notes])


def escape_markdown(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", "<br>")


def render_latex(table: ResultTable) -> str:
    """Render a LaTeX tabular with booktabs rules; marked cells are bold, notes are comments above it."""
    rows = mark_rows(table, escape_latex, r"\textbf{{{}}}".format)
    head = " & ".join(map(escape_latex, list_full_titles(table)))
    body = "".join(f"  {' & '.join(row)} \\\\\n" for row in rows)
    align = "".join("l" if c.kind == "text" else "r" for c in table.columns)
    notes = "".join(f"% {note}\n" for note in table.notes)
    return (
        f"{notes}% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{align}}}\n"
        f"  \\toprule\n  {head} \\\\\n  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
    )


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX_ESCAPES.get(c, c) for c in text)


TABLE_FORMATS: Mapping[str, Callable[[ResultTable], str]] = {
    ".csv": render_csv,
    ".md": render_markdown,
    ".tex": render_latex,
}


# JSON and pages -----------------------------------------------------------------------------


def render_json(table: ResultTable) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts by column key, for JSON; numbers are not scaled."""
    return [
        {column.name: cell.value for cell, column in zip(row, table.columns, strict=True)}
        for row in table.rows
    ]


def render_table_data(table: ResultTable) -> dict[str, Any]:
    """Return a table's data for the script of a page: texts, bold cells and sortable values."""
    return {
        "title": table.title,
        "columns": [c.name for c in table.columns],
        "titles": [c.title for c in table.columns],
        "rows": [
            {
                "cells": texts,
                "bold": [i for i, cell in enumerate(row) if cell.mark in BOLD_MARKS],
                "values": [None if isinstance(c.value, str) else c.value for c in row],
            }
            for row, texts in zip(table.rows, format_rows(table), strict=True)
        ],
        "notes": list(table.notes),
    }


def render_html(table: ResultTable) -> str:
    """Render a table as HTML without a script; each cell has the CSS classes of its column and mark."""
    classes = [c.name.split()[0] if c.kind == "text" else "number" for c in table.columns]
    heads = [
        f'<th class="{escape_html(name)}">{escape_html(c.title)}</th>'
        for name, c in zip(classes, table.columns, strict=True)
    ]
    lines = ["".join(heads)]
    for row, texts in zip(table.rows, format_rows(table), strict=True):
        cells = zip(classes, row, texts, strict=True)
        lines.append("".join(render_html_cell(name, cell, text) for name, cell, text in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{body}</table></div>'


def render_html_cell(name: str, cell: Cell, text: str) -> str:
    """Render a table cell as HTML, with the CSS classes of its column and mark."""
    mark = f" mark {cell.mark}" if cell.mark else ""
    if name == "number" and not NUMBERS.fullmatch(text):
        name = "words"  # aligned to the left
    lines = "<br>".join(map(escape_html_text, text.split("\n")))
    return f'<td class="{escape_html(name)}{mark}">{lines}</td>'


def escape_html_text(text: str) -> str:
    """Escape text for HTML, as in the cells of a table; text between backticks becomes ``<code>``."""
    return CODE.sub(r"<code>\1</code>", escape_html(text))


# Terminal -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedColumn:
    """A column fitted to a terminal: its title and cells as text, which may contain line breaks."""

    column: Column
    texts: list[str]
    bold: list[bool]  # whether the row is bold

    @property
    def width(self) -> int:
        """The width of the longest line."""
        return measure_lines(self.texts)


@dataclass(frozen=True)
class FittedTable:
    """The columns of a table that fit a terminal, and the titles of the columns left out."""

    columns: list[FittedColumn]
    left_out: list[str]
    fits: bool


def fit_table(table: ResultTable, width: int) -> FittedTable:
    """Fit a table to a terminal's width: break titles, then break cells before brackets, then drop columns."""
    rows = format_rows(table)
    plain = [
        FittedColumn(
            column,
            [clean_text(text) for text in (column.title, *(row[i] for row in rows))],
            [row[i].mark in BOLD_MARKS for row in table.rows],
        )
        for i, column in enumerate(table.columns)
    ]
    if compute_table_width([c.width for c in plain]) <= width:
        return FittedTable(plain, [], True)
    columns = [break_title(c) for c in plain]
    if compute_least_table_width(columns, READABLE_WIDTH) > width:
        columns = [break_cells(c) for c in plain]
    left_out: list[str] = []
    for column in sorted((c for c in table.columns if c.drop), key=lambda c: c.drop):
        if compute_least_table_width(columns, READABLE_WIDTH) <= width:
            break
        columns = [c for c in columns if c.column is not column]
        left_out.append(column.title)
    return FittedTable(columns, left_out, compute_least_table_width(columns) <= width)


def break_cells(column: FittedColumn) -> FittedColumn:
    """Break a column's numbers before brackets, and its title at the width of the numbers."""
    if column.column.kind == "text":
        return column
    title, *cells = column.texts
    broken = [cell.replace(" (", "\n(") for cell in cells]
    return break_title(replace(column, texts=[title, *broken]))


def break_title(column: FittedColumn) -> FittedColumn:
    """Break the title of a column of numbers between words, at the width of the numbers."""
    if column.column.kind == "text":
        return column
    title, *cells = column.texts
    width = max(measure_lines(cells), measure_longest_word(title), 1)
    lines = textwrap.wrap(title, width, break_long_words=False, break_on_hyphens=False)
    return replace(column, texts=["\n".join(lines), *cells])


def compute_least_table_width(columns: Sequence[FittedColumn], readable: int = 0) -> int:
    """Return the least width of a table in a terminal if text columns are broken at spaces."""
    widths = [c.width for c in columns]
    for i, c in enumerate(columns):
        if i and c.column.kind == "text":
            widths[i] = max(*map(measure_longest_word, c.texts), min(readable, widths[i]))
    return compute_table_width(widths)


def compute_table_width(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


def measure_lines(texts: Sequence[str]) -> int:
    """Return the width of the longest line in a column's texts."""
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)


def measure_longest_word(text: str) -> int:
    """Return the width of the longest word in a terminal."""
    return max(map(cell_len, text.split()), default=0)
