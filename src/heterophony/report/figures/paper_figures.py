"""Figures of published works, drawn from our runs: which figure a table gets, and its files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from ...run.events import Event
from . import paper_bars
from . import paper_lines as numbers
from . import paper_rounds as rounds
from .run_figures import save_figure as save_figure
from .style import STYLE

if TYPE_CHECKING:
    from ...papers.reproduce import CellRun, ReproductionResult

TABLE_FIGURES = {
    "bars": paper_bars.draw_bars,
    "clients": numbers.draw_over_clients,
    "sweep": numbers.draw_sweep,
    "grid": numbers.draw_grid,
}
ROUND_FIGURES = {
    "curves": rounds.draw_accuracy_curves,
    "difference": rounds.draw_model_difference,
    "participation": rounds.draw_times_selected,
}
LETTERS_PER_INCH = 8  # of a title, in an inch


def draw_paper_figure(
    outcome: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]]
) -> Figure:
    """The figure that suits the table; only those of rounds read the runs."""
    kind, draws = outcome.table.published.figure, outcome.table.published.draws
    outcome = replace(
        outcome, numbers=[x for x in outcome.numbers if not draws or x.measure in draws]
    )
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if kind in TABLE_FIGURES:
            TABLE_FIGURES[kind](figure, outcome)
        else:
            ROUND_FIGURES[kind](figure, outcome, runs)
        paragraphs = [
            fill(p, int(LETTERS_PER_INCH * figure.get_figwidth())) for p in describe_figure(outcome)
        ]
        figure.suptitle(
            "\n".join(paragraphs),
            x=0.01,
            ha="left",
            fontweight="bold",
            fontsize=14,
            linespacing=1.4,
        )
    return figure


def describe_figure(outcome: ReproductionResult) -> list[str]:
    """What the figure shows; and, where it is so, that nothing here compares with the paper."""
    found = outcome.table.published
    said = [f"{found.paper}, {found.where}: {found.what}"]
    if not numbers.is_comparable(outcome):
        data = ", ".join(dict.fromkeys(line.data for line in outcome.numbers))
        said.append(f"Ours, quick scale ({data}): not comparable with the printed")
    elif found.figure == "grid" and found.printed:
        said.append("Ours, and in brackets as printed")
    return said


def save_paper_figure(
    outcome: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]], folder: Path
) -> None:
    """``figure.svg`` and ``figure.png``."""
    figure = draw_paper_figure(outcome, runs)
    for suffix in (".svg", ".png"):
        save_figure(figure, folder / f"figure{suffix}")
