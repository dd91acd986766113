"""What people see: tables on stdout, progress and problems on stderr; plain where not a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

OUT, ERR = Console(), Console(stderr=True)


def problem(message: str) -> None:
    """One clear line."""
    ERR.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True, highlight=False)


def note(message: str) -> None:
    """Something good to know, not a result."""
    ERR.print(escape(message), soft_wrap=True, highlight=False)


def print_json(content: Any) -> None:
    """For programs."""
    print(json.dumps(content, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """For people: the first column is text, the others are numbers."""
    table = Table(
        title=title or None, title_justify="left", header_style="bold", title_style="bold"
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    # not a terminal: as wide as it needs, so that nothing is cut in a file or pipe
    (OUT if OUT.is_terminal else Console(width=200)).print(table)


def percent(value: float | None) -> str:
    """An accuracy as people write it."""
    return "–" if value is None else f"{100 * value:.2f}"


def megabytes(n: float) -> str:
    return f"{n / 1e6:.1f}"


class Bar:
    """A run's progress: round, G, P, time left."""

    def __init__(self, progress: Progress, label: str, rounds: int) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=rounds, G="–", P="–")
        self.total = 1

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self.total = sum(event["test"])
        elif event["event"] == "evaluation":
            g = "–" if event["G"] is None else percent(sum(event["G"]) / self.total)
            p = percent(sum(event["P"]) / self.total)
            self.progress.update(self.task, completed=event["t"], G=g, P=p)
        elif event["event"] == "round":
            self.progress.update(self.task, completed=event["t"] + 1)


@contextmanager
def progress(show: bool) -> Iterator[Progress]:
    """Bars on stderr, for terminals only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed}/{task.total}"),
        TextColumn("G {task.fields[G]}  P {task.fields[P]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=ERR, disable=not (show and ERR.is_terminal)) as shown:
        yield shown
