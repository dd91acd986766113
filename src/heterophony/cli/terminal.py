"""The terminal: tables on stdout, progress and errors on stderr; plain text where it is a file."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.errors import StoppedError
from ..runs.events import Event
from ..runs.summary import compute_accuracy

STDOUT, STDERR = Console(), Console(stderr=True)
EventListener = Callable[[Event], None]
DEFAULT_WIDTH = 120  # columns, where there is no terminal to ask


def print_error(message: str) -> None:
    """Print one line to stderr."""
    STDERR.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def print_note(message: str) -> None:
    """Print to stderr what is good to know but not a result."""
    STDERR.print(escape(message), soft_wrap=True, highlight=False)


def print_json(content: Any) -> None:
    """Print a result for programs."""
    print(json.dumps(content, indent=2))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], text: int = 1
) -> None:
    """Print a table for people: ``text`` columns of text on the left, then numbers."""
    table = create_table()
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < text else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    print_titled_table(title, table)


def print_list(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> None:
    """Print very many rows, without line breaks in them; rich would need a second for a thousand."""
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    head, *lines = (
        "  ".join(
            set_cell_size(cell, width) if i < text else " " * (width - cell_len(cell)) + cell
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (columns, *rows)
    )
    STDOUT.print(escape(head), style="bold", highlight=False, soft_wrap=True)
    print("─" * cell_len(head), *lines, sep="\n")


def create_table() -> Table:
    return Table(
        box=SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, collapse_padding=True
    )


def print_titled_table(title: str, table: Table) -> None:
    """Print a table below its title. Text is fitted to the terminal; numbers are never cut."""
    console = Console(width=None if STDOUT.is_terminal else DEFAULT_WIDTH)
    if all(column.justify == "right" for column in table.columns[1:]):
        # lines that a terminal breaks can still be read and copied
        unlimited = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(escape(title), style="bold", highlight=False, soft_wrap=True)
    console.print(table)


def format_percent(value: float | None) -> str:
    """Format an accuracy as people write it."""
    return "–" if value is None else f"{100 * value:.2f}"


def format_megabytes(n: float) -> str:
    return f"{n / 1e6:.1f}"


class RunProgressBar:
    """The progress of one run: round, G, P, time left. Call it with every event."""

    def __init__(
        self, progress: Progress, label: str, rounds: int, test_sizes: Sequence[int] = ()
    ) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=rounds, G="–", P="–")
        self.test_sizes = list(test_sizes)  # a new run says them in its first event

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self.test_sizes = event["test"]
        elif event["event"] == "evaluation" and self.test_sizes:
            accuracies: dict[str, Any] = {
                k: format_percent(compute_accuracy(correct, self.test_sizes))
                for k, correct in (("G", event["G"]), ("P", event["P"]))
                if correct is not None  # not every algorithm measures P every time
            }
            self.progress.update(self.task, completed=event["t"], **accuracies)
        elif event["event"] == "round":
            self.progress.update(self.task, completed=event["t"] + 1)


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


@dataclass(frozen=True)
class ProgressBars:
    """A bar for every run."""

    progress: Progress

    def begin_run(self, label: str, rounds: int, test_sizes: Sequence[int] = ()) -> RunProgressBar:
        """Add the bar of one run."""
        return RunProgressBar(self.progress, label, rounds, test_sizes)

    def stop(self) -> None:
        self.progress.stop()


@contextmanager
def show_interruptible_bars(
    show: bool, hint: str, folders: Sequence[ClosableFolder] = ()
) -> Iterator[ProgressBars]:
    """Show progress bars; on Ctrl-C, remove them, close the folders and end."""
    with show_progress_bars(show) as bars, exit_on_interrupt(hint, bars.stop, folders):
        yield bars


@contextmanager
def show_progress_bars(show: bool) -> Iterator[ProgressBars]:
    """Show progress bars on stderr if it is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("G {task.fields[G]}  P {task.fields[P]}"),
        TimeRemainingColumn(),
    )
    disable = not (show and STDERR.is_terminal)
    with Progress(*columns, console=STDERR, disable=disable) as progress:
        yield ProgressBars(progress)


@contextmanager
def show_counter(show: bool, label: str, total: int) -> Iterator[CounterBar]:
    """Show one bar that counts up to ``total``, with the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    disable = not (show and STDERR.is_terminal)
    with Progress(*columns, console=STDERR, disable=disable) as progress:
        yield CounterBar(progress, progress.add_task(label, total=total))


@dataclass(frozen=True)
class CounterBar:
    """A bar that advances by one with every call."""

    progress: Progress
    task: TaskID

    def __call__(self) -> None:
        self.progress.advance(self.task)
