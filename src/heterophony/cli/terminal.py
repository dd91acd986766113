"""What people see: tables on stdout, progress and problems on stderr; plain where not a terminal."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..run.events import MEASURES, Event
from ..run.summary import compute_accuracy

STDOUT, STDERR = Console(), Console(stderr=True)
DEFAULT_WIDTH = 120  # columns, where there is no terminal to ask


def print_error(message: str) -> None:
    """One clear line."""
    STDERR.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def print_note(message: str) -> None:
    """Something good to know, not a result."""
    STDERR.print(escape(message), soft_wrap=True, highlight=False)


def print_json(content: Any) -> None:
    """For programs."""
    print(json.dumps(content, indent=2))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], text: int = 1
) -> None:
    """For people: so many columns of text on the left, then numbers."""
    table = create_table()
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < text else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    print_titled_table(title, table)


def print_list(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> None:
    """The same for very many rows, none of them broken: a thousand would keep rich for a second."""
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
    """A table below its title. Text is fitted to the terminal; numbers are never cut."""
    console = Console(width=None if STDOUT.is_terminal else DEFAULT_WIDTH)
    if all(column.justify == "right" for column in table.columns[1:]):
        # lines that a terminal breaks can still be read and copied
        unlimited = console.options.update(max_width=10_000)
        console.width = max(console.width, console.measure(table, options=unlimited).maximum)
    if title:
        console.print(escape(title), style="bold", highlight=False, soft_wrap=True)
    console.print(table)


def format_percent(value: float | None) -> str:
    """An accuracy as people write it."""
    return "–" if value is None else f"{100 * value:.2f}"


def format_megabytes(n: float) -> str:
    return f"{n / 1e6:.1f}"


class RunProgressBar:
    """A run's progress: round, G, P, time left."""

    def __init__(
        self, progress: Progress, label: str, rounds: int, test: Sequence[int] = ()
    ) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=rounds, G="–", P="–")
        self.test = list(test)  # what a run says that begins, and not one that goes on

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self.test = event["test"]
        elif event["event"] == "evaluation" and self.test:
            known = {k: event[k] for k in MEASURES}  # P may be due later
            shown: dict[str, Any] = {
                k: format_percent(compute_accuracy(right, self.test))
                for k, right in known.items()
                if right is not None
            }
            self.progress.update(self.task, completed=event["t"], **shown)
        elif event["event"] == "round":
            self.progress.update(self.task, completed=event["t"] + 1)


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM go to the handler, unless whoever started us ignores them."""
    ours = (signal.SIGINT, signal.SIGTERM)
    heard = [s for s in ours if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, handler) for s in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def show_progress_bars(show: bool) -> Iterator[Progress]:
    """Bars on stderr, for terminals only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("G {task.fields[G]}  P {task.fields[P]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR, disable=not (show and STDERR.is_terminal)) as shown:
        yield shown


@contextmanager
def show_counter(show: bool, label: str, total: int) -> Iterator[CounterBar]:
    """One bar for things that are done one by one, with the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR, disable=not (show and STDERR.is_terminal)) as shown:
        yield CounterBar(shown, shown.add_task(label, total=total))


@dataclass(frozen=True)
class CounterBar:
    """A bar that goes on by one."""

    progress: Progress
    task: TaskID

    def __call__(self) -> None:
        self.progress.advance(self.task)
