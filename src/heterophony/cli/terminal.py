"""Fit a table to a width: break titles and cells into lines, then leave out optional columns."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.errors import StoppedError
from ..core.files import clean_line, clean_text
from ..core.status_line import STDERR, LogLines, format_seconds
from ..studies.progress import RunsProgress, show_progress

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


STDOUT = Console()


def print_error(message: str) -> None:
    """Print one line to stderr."""
    text = escape(clean_line(message))
    STDERR.print(f"[bold red]error:[/] {text}", soft_wrap=True, highlight=False)


def print_note(message: str) -> None:
    """Print to stderr what is good to know but not a result."""
    STDERR.print(escape(clean_text(message)), soft_wrap=True, highlight=False)


def print_json(content: Any) -> None:
    """Print a result for programs."""
    print(json.dumps(content, indent=2))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    text: int = 1,
    optional: Sequence[str] = (),
) -> None:
    """Print a table for people: ``text`` columns of text on the left, then numbers.

    Where it is wider than the terminal, ``optional`` columns are left out, the first one first.
    """
    fitted = fit_table(columns, rows, text, optional, Console().width)
    table = create_table()
    for i, name in enumerate(fitted.titles):
        number = i >= fitted.text
        whole = i == 0 or (number and fitted.fits)
        table.add_column(escape(name), justify="right" if number else "left", no_wrap=whole)
    for row in fitted.rows:
        table.add_row(*map(format_cell_markup, row))
    print_titled_table(title, table)
    print_left_out(fitted)


def format_cell_markup(cell: str) -> str:
    return f"[bold]{escape(cell)}[/]" if isinstance(cell, HighlightedCell) else escape(cell)


def print_left_out(fitted: FittedTable) -> None:
    """Say which columns were left out, and how to get them."""
    if fitted.left_out:
        print_note(
            f"left out, to fit {Console().width} columns: {', '.join(fitted.left_out)};"
            " a wider terminal (or COLUMNS=200 before the command) and --json have them"
        )


def print_list(
    columns: Sequence[str], rows: Sequence[Sequence[str]], text: int, optional: Sequence[str] = ()
) -> None:
    """Print very many rows, without line breaks in them; rich would need a second for a thousand."""
    fitted = fit_table(columns, rows, text, optional, Console().width)
    heads = [head.replace("\n", " ") for head in fitted.titles]
    lines_of_cells = [[clean_line(cell) for cell in row] for row in fitted.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(heads, *lines_of_cells, strict=True)]
    head, *lines = (
        "  ".join(
            set_cell_size(cell, width) if i < fitted.text else " " * (width - cell_len(cell)) + cell
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *lines_of_cells)
    )
    STDOUT.print(escape(head), style="bold", highlight=False, soft_wrap=True)
    print("─" * cell_len(head), *lines, sep="\n")
    print_left_out(fitted)


def create_table() -> Table:
    return Table(
        box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, collapse_padding=True
    )


def print_titled_table(title: str, table: Table) -> None:
    """Print a table below its title. Text is fitted to the terminal; numbers are never cut."""
    console = Console()  # where there is no terminal: COLUMNS, else 80
    if all(column.justify == "right" for column in table.columns[1:]):
        # lines that a terminal breaks can still be read and copied
        unlimited = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(escape(clean_text(title)), style="bold", highlight=False, soft_wrap=True)
    console.print(table)


def format_percent(value: float | None) -> str:
    """Format an accuracy as people write it."""
    return "–" if value is None else f"{100 * value:.2f}"


def format_megabytes(n: float) -> str:
    return f"{n / 1e6:.1f}"


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM, unless the process that started us ignores them."""
    both = (signal.SIGINT, signal.SIGTERM)
    active = [s for s in both if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, handler) for s in active}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def exit_on_interrupt(
    hint: str, clean_up: Callable[[], None], folders: Sequence[ClosableFolder] = ()
) -> Iterator[None]:
    """End the process at once on Ctrl-C and SIGTERM, and print ``hint``: how to continue.

    Run folders survive that, as they survive kill -9. An exception instead could be raised anywhere,
    also where it is ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        clean_up()
        for folder in folders:
            folder.close()
        stopped = StoppedError(f"interrupted; nothing is lost: {hint}")
        print_error(str(stopped))
        os._exit(stopped.exit_code)

    with handle_signals(stop):
        yield


class ClosableFolder(Protocol):
    """A run folder; ``close`` unlocks it and deletes temporary files."""

    def close(self) -> None: ...


@contextmanager
def show_interruptible_progress(
    hint: str, folders: Sequence[ClosableFolder] = ()
) -> Iterator[RunsProgress]:
    """Show the progress of runs; on Ctrl-C, remove bars, close the folders and end."""
    with show_progress() as shown, exit_on_interrupt(hint, shown.stop, folders):
        yield shown


@contextmanager
def show_counter(label: str, total: int) -> Iterator[Counter]:
    """Show how many of ``total`` are done, and the time left: a bar, or a line every 30 seconds."""
    counter = Counter(label, total)
    counter.lines.start()
    try:
        with counter.bar:
            yield counter
    finally:
        counter.stop()


class Counter:
    """Counts one more with every call."""

    def __init__(self, label: str, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
        )
        self.label, self.total, self.done, self.begun = label, total, 0, time.monotonic()
        self.bar = Progress(*columns, console=STDERR, disable=not STDERR.is_terminal)
        self.lines = LogLines(self.describe)
        self._task = self.bar.add_task(label, total=total)

    def __call__(self) -> None:
        self.done += 1
        self.bar.advance(self._task)

    def stop(self) -> None:
        self.lines.stop()
        self.bar.stop()

    def describe(self) -> str:
        """Describe the state in a line for a log; a terminal has the bar."""
        if STDERR.is_terminal:
            return ""
        spent = time.monotonic() - self.begun
        left = format_seconds(spent / self.done * (self.total - self.done)) if self.done else "?"
        return (
            f"{self.label}: {self.done}/{self.total}, {format_seconds(spent)} so far, {left} left"
        )
