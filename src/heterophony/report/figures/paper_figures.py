"""Figures of published works, drawn from our runs: which figure a table gets, and its files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from ...run.summary import Event
from . import paper_bars
from . import paper_lines as numbers
from . import paper_rounds as rounds
from .run_figures import save as save_figure
from .style import STYLE

if TYPE_CHECKING:
    from ...papers.reproduce import Outcome, Task

OF_NUMBERS = {
    "bars": paper_bars.bars,
    "clients": numbers.clients,
    "sweep": numbers.sweep,
    "grid": numbers.grid,
}
OF_ROUNDS = {
    "curves": rounds.curves,
    "difference": rounds.difference,
    "participation": rounds.participation,
}
LETTERS = 8  # of a title, in an inch


def draw(outcome: Outcome, runs: Iterable[tuple[Task, list[Event]]]) -> Figure:
    """The figure that suits the table; only those of rounds read the runs."""
    kind, draws = outcome.table.found.figure, outcome.table.found.draws
    outcome = replace(outcome, lines=[x for x in outcome.lines if not draws or x.measure in draws])
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if kind in OF_NUMBERS:
            OF_NUMBERS[kind](figure, outcome)
        else:
            OF_ROUNDS[kind](figure, outcome, runs)
        paragraphs = [fill(p, int(LETTERS * figure.get_figwidth())) for p in about(outcome)]
        figure.suptitle(
            "\n".join(paragraphs),
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=14,
            linespacing=1.4,
        )
    return figure


def about(outcome: Outcome) -> list[str]:
    """What the figure shows; and, where it is so, that nothing here compares with the paper."""
    found = outcome.table.found
    said = [f"{found.paper}, {found.where}: {found.what}"]
    if not numbers.compared(outcome):
        data = ", ".join(dict.fromkeys(line.data for line in outcome.lines))
        said.append(f"Ours, quick scale ({data}): not comparable with the printed")
    elif found.figure == "grid" and found.printed:
        said.append("Ours, and in brackets as printed")
    return said


def save(outcome: Outcome, runs: Iterable[tuple[Task, list[Event]]], folder: Path) -> None:
    """``figure.svg`` and ``figure.png``."""
    figure = draw(outcome, runs)
    for suffix in (".svg", ".png"):
        save_figure(figure, folder / f"figure{suffix}")
