"""Fit a table to a width: break titles and cells into lines, then leave out optional columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from ..core.plain_text import clean_text

GAP = 2  # spaces between columns
READABLE_WIDTH = 24  # of a column of text; optional columns are left out rather than to go below


class HighlightedCell(str):
    """A cell that is printed in bold."""


@dataclass(frozen=True)
class FittedTable:
    """A table whose first ``text`` columns are text, and what was left out to make it fit."""

    titles: list[str]
    rows: list[list[str]]
    text: int
    left_out: list[str]
    fits: bool


def fit_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    text: int,
    optional: Sequence[str],
    width: int,
) -> FittedTable:
    """Fit a table to a width; of the ``optional`` columns the first is left out first."""
    columns = [
        [clean_text(title), *map(clean_cell, cells)]
        for title, *cells in zip(titles, *rows, strict=True)
    ]
    left_out: list[str] = []
    if add_widths([measure_lines(column) for column in columns]) > width:
        plain = columns
        columns = [c if i < text else break_title(c) for i, c in enumerate(plain)]
        if add_least_widths(columns, text, READABLE_WIDTH) > width:
            columns = [c if i < text else break_lines(c) for i, c in enumerate(plain)]
        names = list(titles)
        for name in optional:
            if add_least_widths(columns, text, READABLE_WIDTH) <= width:
                break
            if name in names:
                at = names.index(name)
                del names[at], columns[at]
                text -= at < text
                left_out.append(name)
    fits = add_least_widths(columns, text) <= width
    heads, *body = ([*line] for line in zip(*columns, strict=True))
    return FittedTable(heads, body, text, left_out, fits)


def clean_cell(cell: object) -> str:
    """Return a cell as text that a terminal prints and does not obey."""
    text = clean_text(str(cell))
    return HighlightedCell(text) if isinstance(cell, HighlightedCell) else text


def break_lines(column: Sequence[str]) -> list[str]:
    """Break numbers before a bracket, and the title at the width of the numbers below it."""
    title, *cells = column
    broken = [cell.replace(" (", "\n(") if " (" in cell else cell for cell in cells]
    return break_title([title, *broken])


def break_title(column: Sequence[str]) -> list[str]:
    """Break the title at the width of the numbers below it, between words."""
    title, *cells = column
    width = max(measure_lines(cells), measure_longest_word(title), 1)
    lines = textwrap.wrap(title, width, break_long_words=False, break_on_hyphens=False)
    return ["\n".join(lines), *cells]


def add_least_widths(columns: Sequence[Sequence[str]], text: int, readable: int = 0) -> int:
    """The width that the table needs: text can be broken at spaces, names and numbers cannot."""
    widths = [measure_lines(column) for column in columns]
    for i in range(1, text):
        words = max(map(measure_longest_word, columns[i]))
        widths[i] = max(words, min(readable, widths[i]))
    return add_widths(widths)


def add_widths(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def measure_lines(texts: Sequence[str]) -> int:
    """The width of the longest line."""
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)


def measure_longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
