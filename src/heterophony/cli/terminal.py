"""Terminal output: tables, notes, errors and progress, and a clean exit on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.errors import StoppedError
from ..core.files import clean_line, clean_text
from ..core.status_line import STDERR, LogLines, format_seconds
from ..results.table import ResultTable, fit_table
from ..studies.hooks import RunsProgress, show_progress

if TYPE_CHECKING:
    from ..runs.summary import Summary


STDOUT = Console()


def print_error(message: str) -> None:
    """Print an error to stderr, on one line."""
    text = escape(clean_line(message))
    STDERR.print(f"[bold red]error:[/] {text}", soft_wrap=True, highlight=False)


def print_note(message: str) -> None:
    """Print a note to stderr, for information that is not a result."""
    STDERR.print(escape(clean_text(message)), soft_wrap=True, highlight=False)


def print_json(content: Any) -> None:
    """Print a result as JSON to stdout."""
    print(json.dumps(content, indent=2))


def print_table(table: ResultTable) -> None:
    """Print a table to stdout, and its notes to stderr."""
    print_tables([table])


def print_tables(tables: Sequence[ResultTable]) -> None:
    """Print tables one below another, then all their notes.

    If a table is wider than the terminal, columns that may be dropped are left out.
    """
    left_out: list[str] = []
    for table in tables:
        fitted = fit_table(table, Console().width)
        shown = create_table()
        for i, c in enumerate(fitted.columns):
            number = c.column.kind != "text"
            whole = i == 0 or (number and fitted.fits)
            align: Literal["left", "right"] = "right" if number else "left"
            shown.add_column(escape(c.texts[0]), justify=align, no_wrap=whole)
        for i in range(len(table.rows)):
            shown.add_row(*(format_bold(c.bold[i], escape(c.texts[i + 1])) for c in fitted.columns))
        print_titled_table(table.title, shown)
        left_out += fitted.left_out
    print_left_out(left_out)
    for note in (note for table in tables for note in table.notes):
        print_note(note)


def format_bold(bold: bool, markup: str) -> str:
    """Return the markup in bold, if ``bold``."""
    return f"[bold]{markup}[/]" if bold else markup


def print_left_out(titles: Sequence[str]) -> None:
    """Print which columns did not fit the terminal, and how to see them."""
    if titles:
        print_note(
            f"left out, to fit {Console().width} columns: {', '.join(titles)};"
            " a wider terminal (or COLUMNS=200 before the command) and --json show them"
        )


def print_list(table: ResultTable) -> None:
    """Print a long table, one line per row; rich would need a second for a thousand rows."""
    fitted = fit_table(table, Console().width)
    columns = []
    for c in fitted.columns:
        lines = [clean_line(text.replace("\n", " ")) for text in c.texts]
        width = max(map(cell_len, lines))
        columns.append(
            [
                set_cell_size(line, width)
                if c.column.kind == "text"
                else " " * (width - cell_len(line)) + line
                for line in lines
            ]
        )
    head, *rows = ("  ".join(cells) for cells in zip(*columns, strict=True))
    STDOUT.print(escape(head), style="bold", highlight=False, soft_wrap=True)
    print("─" * cell_len(head), *rows, sep="\n")
    print_left_out(fitted.left_out)


def create_table() -> Table:
    """Create an empty rich table in the style of all commands."""
    return Table(
        box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, collapse_padding=True
    )


def print_titled_table(title: str, table: Table) -> None:
    """Print a rich table below its title. Text is fitted to the terminal; numbers are never cut."""
    console = Console()  # without a terminal: COLUMNS, else 80
    if all(column.justify == "right" for column in table.columns[1:]):
        # lines broken by a terminal can still be read and copied
        unlimited = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(escape(clean_text(title)), style="bold", highlight=False, soft_wrap=True)
    console.print(table)


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGUSR1 in the block, unless the parent process made us ignore them."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    active = [s for s in ending if signal.getsignal(s) is not signal.SIG_IGN]
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
    """Exit at once on Ctrl-C, SIGTERM or SIGUSR1, and print ``hint``, which says how to continue.

    Run folders survive this as they survive kill -9. An exception would not do: it could be raised in
    code that ignores it.
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


class RunsPreparedError(Exception):
    """Raised by a command that ``heterophony slurm`` calls only to write its run folders."""

    def __init__(self, folders: Sequence[Any]) -> None:
        super().__init__()
        self.folders = folders


PREPARE_ONLY = ContextVar("PREPARE_ONLY", default=False)  # set by ``heterophony slurm``


@contextmanager
def show_interruptible_progress(
    hint: str, folders: Sequence[ClosableFolder] = ()
) -> Iterator[RunsProgress]:
    """Show the progress of runs; on Ctrl-C, remove the bars, close the folders and exit.

    Raise RunsPreparedError if the runs should only be prepared.
    """
    if PREPARE_ONLY.get():
        raise RunsPreparedError(folders)
    with show_progress() as shown, exit_on_interrupt(hint, shown.stop, folders):
        yield shown


@contextmanager
def show_counter(label: str, total: int) -> Iterator[Counter]:
    """Show the progress of ``total`` steps: as a bar, or without a terminal as a line every 30 seconds."""
    counter = Counter(label, total)
    counter.lines.start()
    try:
        with counter.bar:
            yield counter
    finally:
        counter.stop()


class Counter:
    """A progress counter in the terminal; each call advances it by one step."""

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
        """Remove the bar."""
        self.lines.stop()
        self.bar.stop()

    def describe(self) -> str:
        """Describe the progress in one line, for logs without a bar."""
        if STDERR.is_terminal:
            return ""
        spent = time.monotonic() - self.begun
        left = format_seconds(spent / self.done * (self.total - self.done)) if self.done else "?"
        return (
            f"{self.label}: {self.done}/{self.total}, {format_seconds(spent)} so far, {left} left"
        )


def show_run(summary: Summary, folder: Path, json: bool, trained: bool = False) -> None:
    """Print the table of a run, or its summary as JSON; ``trained`` adds P right after local training."""
    from ..results.overview import build_run_tables

    if json:
        print_json(summary.to_dict())
    else:
        print_tables(build_run_tables(summary, folder, trained))


def show_comparison(parent: Path, json: bool) -> None:
    """Print the table of a comparison with its conclusions, or its rows as JSON."""
    from ..results.comparison import compare_runs
    from ..results.comparison_tables import build_overview_tables
    from ..results.runs import load_runs

    runs = load_runs([parent], print_note)
    if json:
        print_json([row.to_dict() for row in compare_runs(runs)])
        return
    print_tables(build_overview_tables(runs))
    print_note(f"{parent}; a page with curves: heterophony report {parent}")
