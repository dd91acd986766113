"""Figures of published experiments, drawn from our runs: choose the kind of figure and save it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from ...runs.events import Event
from ..paper_table import get_file_suffix
from . import paper_bars, paper_curves, paper_sweeps
from .run_figures import save_figure
from .style import STYLE

if TYPE_CHECKING:
    from ...papers.reproduce import CellRun, ReproductionResult

TABLE_FIGURES = {
    "bars": paper_bars.draw_bars,
    "clients": paper_sweeps.draw_over_clients,
    "sweep": paper_sweeps.draw_sweep,
    "grid": paper_sweeps.draw_grid,
}
ROUND_FIGURES = {
    "curves": paper_curves.draw_accuracy_curves,
    "difference": paper_curves.draw_model_difference,
    "participation": paper_curves.draw_participation,
}
LETTERS_PER_INCH = 8  # of a title


def draw_paper_figure(
    result: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]]
) -> Figure:
    """Draw the kind of figure that the table asks for; only ROUND_FIGURES read the runs."""
    kind, draws = result.table.published.figure, result.table.published.draws
    result = replace(result, numbers=[x for x in result.numbers if not draws or x.measure in draws])
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if kind in TABLE_FIGURES:
            TABLE_FIGURES[kind](figure, result)
        else:
            ROUND_FIGURES[kind](figure, result, runs)
        paragraphs = [
            fill(p, int(LETTERS_PER_INCH * figure.get_figwidth())) for p in describe_figure(result)
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


def describe_figure(result: ReproductionResult) -> list[str]:
    """The title, the variant and, below full scale, that the numbers are not comparable with the paper's."""
    experiment = result.table.published
    lines = [f"{experiment.paper}, {experiment.where}: {experiment.what}"]
    if experiment.variant:
        lines.append(f"Variant {experiment.variant}")
    if not paper_sweeps.is_comparable(result):
        setups = "; ".join(dict.fromkeys(number.setup for number in result.numbers))
        lines.append(
            f"Ours, {result.table.scale} scale ({setups}): not comparable with the printed"
        )
    elif experiment.figure == "grid" and experiment.printed:
        lines.append("Ours, and in brackets as printed")
    return lines


def save_paper_figure(
    result: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]], folder: Path
) -> None:
    """Write ``figure.svg`` and ``figure.png``; those of a variant have its name."""
    figure, variant = draw_paper_figure(result, runs), get_file_suffix(result.table.published)
    for suffix in (".svg", ".png"):
        save_figure(figure, folder / f"figure{variant}{suffix}")
