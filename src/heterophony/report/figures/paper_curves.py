"""Curves of a published experiment: accuracy, model difference, and how clients were selected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...analysis.runs import Curve
from ...runs.curves import compute_curves
from ...runs.events import Event, get_start, select_rounds
from .coinciding import DrawnLine, draw_stripes
from .paper_sweeps import get_column_label
from .style import (
    GRID_COLOR,
    LINE_WIDTH,
    PointLabel,
    arrange_panels,
    create_panels,
    get_series_style,
    label_line_ends,
    set_percent_axes,
    set_whole_number_axis,
)

if TYPE_CHECKING:
    from ...papers.reproduce import CellRun, ReproductionResult

RunEvents = Iterable[tuple["CellRun", list[Event]]]
CurveReader = Callable[["CellRun", list[Event]], Mapping[str, Curve]]
# by measure and column, then by row: one curve per seed
CurvesByPanel = dict[tuple[str, str], dict[str, list[Curve]]]
ACCURACY_MEASURES = ("G", "P")
MODEL_DIFFERENCE, TIMES_SELECTED, PROBABILITY = "model_difference", "selected", "probability"
X_LABELS = {  # the others: rounds
    TIMES_SELECTED: "clients, the most often selected first",
    PROBABILITY: "clients, the most likely first",
}
Y_LABELS = {
    "G": "G: the generic model",
    "P": "P: each client's own model",
    MODEL_DIFFERENCE: "clients' distance from their mean",
    TIMES_SELECTED: "times selected",
    PROBABILITY: "probability in one draw",
}


def draw_accuracy_curves(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw G and P over the rounds."""
    curves = gather_curves(runs, lambda _, events: compute_accuracy_curves(result, events))
    measures = list(dict.fromkeys(line.measure for line in result.numbers if line.values))
    draw_round_panels(figure, result, curves, arrange_panels(list_columns(result), measures, 3))


def draw_model_difference(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw the clients' distance from their mean after every round, as the algorithm recorded it."""

    def read_difference(_: CellRun, events: list[Event]) -> dict[str, Curve]:
        rounds = [e for e in select_rounds(events) if MODEL_DIFFERENCE in e["measures"]]
        return {MODEL_DIFFERENCE: [(e["t"] + 1, e["measures"][MODEL_DIFFERENCE]) for e in rounds]}

    draw_round_panels(
        figure,
        result,
        gather_curves(runs, read_difference),
        arrange_panels(list_columns(result), [MODEL_DIFFERENCE], 3),
    )


def draw_participation(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw how likely each client is, how often it was selected, and G over the rounds."""

    def read_participation(run: CellRun, events: list[Event]) -> dict[str, Curve]:
        likely = run.compute_selection_probabilities(len(get_start(events)["clients"]))
        return {
            PROBABILITY: rank_values(likely),
            TIMES_SELECTED: count_selections_by_rank(events),
            "G": compute_accuracy_curves(result, events)["G"],
        }

    measures = (PROBABILITY, TIMES_SELECTED, "G")
    panels = [[(measure, column) for measure in measures] for column in list_columns(result)]
    draw_round_panels(figure, result, gather_curves(runs, read_participation), panels)


# Reading ------------------------------------------------------------------------------------


def list_columns(result: ReproductionResult) -> list[str]:
    return list(dict.fromkeys(line.column for line in result.numbers if line.values))


def compute_accuracy_curves(result: ReproductionResult, events: list[Event]) -> dict[str, Curve]:
    curves = compute_curves(events, result.table.published.measured.clients)
    return {m: curves[m] for m in ACCURACY_MEASURES}


def count_selections_by_rank(events: list[Event]) -> Curve:
    """(rank, times selected) of the clients, most often first; twice in a round counts twice."""
    counts = Counter(dict.fromkeys(get_start(events)["clients"], 0))
    for event in select_rounds(events):
        counts.update(event.get("asked", event["clients"]))
    return rank_values(counts.values())


def rank_values(values: Iterable[float]) -> Curve:
    """(rank, value) of the values, the largest first."""
    return [(i + 1, v) for i, v in enumerate(sorted(values, reverse=True))]


def gather_curves(runs: RunEvents, read: CurveReader) -> CurvesByPanel:
    """Read the curves of every run, by panel and row; leave out empty ones."""
    curves: CurvesByPanel = {}
    for cell_run, events in runs:
        for measure, curve in read(cell_run, events).items():
            if curve:
                rows = curves.setdefault((measure, cell_run.cell.column), {})
                rows.setdefault(cell_run.cell.row, []).append(curve)
    return curves


# Drawing ------------------------------------------------------------------------------------


def draw_round_panels(
    figure: Figure,
    result: ReproductionResult,
    curves: CurvesByPanel,
    panels: Sequence[Sequence[tuple[str, str]]],
) -> None:
    """Draw one panel per (measure, column) pair, with one line per row."""
    rows = list(dict.fromkeys(line.row for line in result.numbers))
    for axes, (measure, column), _ in create_panels(figure, panels, (5.2, 3.9)):
        here = curves.get((measure, column), {})
        draw_round_panel(
            axes, {row: (i, here[row]) for i, row in enumerate(rows) if row in here}, measure
        )
        axes.set_title(get_column_label(result.numbers, column))


def draw_round_panel(
    axes: Axes, lines: Mapping[str, tuple[int, Sequence[Curve]]], measure: str
) -> None:
    """Draw the mean over the seeds, with ± one std and its name at the end."""
    ends, drawn = [], []
    for row, (i, seeds) in lines.items():
        by_seed = [dict(curve) for curve in seeds]
        at = [x for x in by_seed[0] if all(x in other for other in by_seed)]
        mean = np.array([fmean(curve[x] for curve in by_seed) for x in at])
        std = np.array([pstdev([curve[x] for curve in by_seed]) for x in at])
        axes.plot(at, mean, label=row, linewidth=LINE_WIDTH, **get_series_style(i))
        drawn.append(DrawnLine(at, mean.tolist(), get_series_style(i)["color"]))
        if std.any():
            axes.fill_between(
                at, mean - std, mean + std, alpha=0.15, color=get_series_style(i)["color"], lw=0
            )
        ends.append(PointLabel(row, at[-1], mean[-1], get_series_style(i)["color"]))
    axes.margins(x=0)
    set_whole_number_axis(axes.xaxis)
    axes.yaxis.grid(color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)
    if measure in ACCURACY_MEASURES:
        set_percent_axes(axes, "y")
    axes.set(xlabel=X_LABELS.get(measure, "round"), ylabel=Y_LABELS[measure])
    axes.set_ylim(bottom=0)
    draw_stripes(axes, drawn, LINE_WIDTH)
    label_line_ends(axes, ends)
