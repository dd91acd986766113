"""Runs of a published figure, round by round: curves, how far clients part, who was drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...analysis.runs import Curve
from ...run import summary
from ...run.events import Event, get_start, select_rounds
from .style import (
    GRID_COLOR,
    PointLabel,
    arrange_panels,
    create_panels,
    get_series_style,
    label_line_ends,
    set_percent_axes,
)

if TYPE_CHECKING:
    from ...papers.reproduce import CellRun, ReproductionResult

TaskEvents = Iterable[tuple["CellRun", list[Event]]]
CurveReader = Callable[[list[Event]], Mapping[str, Curve]]
CurvesByPanel = dict[
    tuple[str, str], dict[str, list[Curve]]
]  # measure and column; row; one per seed
ACCURACY_MEASURES = ("G", "P")
MODEL_DIFFERENCE, TIMES_DRAWN = "model_difference", "drawn"
X_LABELS = {TIMES_DRAWN: "clients, the most drawn first"}  # the others: rounds
Y_LABELS = {
    "G": "G: the common model",
    "P": "P: each client's own model",
    MODEL_DIFFERENCE: "clients' distance from their mean",
    TIMES_DRAWN: "times drawn",
}


def draw_accuracy_curves(figure: Figure, outcome: ReproductionResult, runs: TaskEvents) -> None:
    """G and P over the rounds."""
    found = gather_curves(runs, lambda events: compute_accuracy_curves(outcome, events))
    measures = list(dict.fromkeys(line.measure for line in outcome.numbers if line.values))
    draw_round_panels(figure, outcome, found, arrange_panels(list_columns(outcome), measures, 3))


def draw_model_difference(figure: Figure, outcome: ReproductionResult, runs: TaskEvents) -> None:
    """How far clients are from their mean after every round, as the algorithm recorded it."""

    def read_difference(events: list[Event]) -> dict[str, Curve]:
        rounds = [e for e in select_rounds(events) if MODEL_DIFFERENCE in e["measures"]]
        return {MODEL_DIFFERENCE: [(e["t"] + 1, e["measures"][MODEL_DIFFERENCE]) for e in rounds]}

    draw_round_panels(
        figure,
        outcome,
        gather_curves(runs, read_difference),
        arrange_panels(list_columns(outcome), [MODEL_DIFFERENCE], 3),
    )


def draw_times_selected(figure: Figure, outcome: ReproductionResult, runs: TaskEvents) -> None:
    """How unevenly clients were drawn, and beside it what became of G."""

    def read_participation(events: list[Event]) -> dict[str, Curve]:
        return {
            TIMES_DRAWN: count_draws_by_rank(events),
            "G": compute_accuracy_curves(outcome, events)["G"],
        }

    places = [[(TIMES_DRAWN, column), ("G", column)] for column in list_columns(outcome)]
    draw_round_panels(figure, outcome, gather_curves(runs, read_participation), places)


# Reading ------------------------------------------------------------------------------------


def list_columns(outcome: ReproductionResult) -> list[str]:
    return list(dict.fromkeys(line.column for line in outcome.numbers if line.values))


def compute_accuracy_curves(outcome: ReproductionResult, events: list[Event]) -> dict[str, Curve]:
    found = summary.compute_curves(events, outcome.table.published.measured.clients)
    return {m: found[m] for m in ACCURACY_MEASURES}


def count_draws_by_rank(events: list[Event]) -> Curve:
    """(rank, draws), the most drawn first; twice in a round are two draws."""
    count = Counter(dict.fromkeys(get_start(events)["clients"], 0))
    for event in select_rounds(events):
        count.update(event.get("asked", event["clients"]))
    return [(i + 1, n) for i, n in enumerate(sorted(count.values(), reverse=True))]


def gather_curves(runs: TaskEvents, read: CurveReader) -> CurvesByPanel:
    """What was read of every run, by panel and row; empty curves are left out."""
    found: CurvesByPanel = {}
    for task, events in runs:
        for measure, curve in read(events).items():
            if curve:
                rows = found.setdefault((measure, task.cell.column), {})
                rows.setdefault(task.cell.row, []).append(curve)
    return found


# Drawing ------------------------------------------------------------------------------------


def draw_round_panels(
    figure: Figure,
    outcome: ReproductionResult,
    found: CurvesByPanel,
    places: Sequence[Sequence[tuple[str, str]]],
) -> None:
    """A panel at each place, a line in it for each row."""
    rows = list(dict.fromkeys(line.row for line in outcome.numbers))
    for axes, (measure, column), _ in create_panels(figure, places, (5.2, 3.9)):
        here = found.get((measure, column), {})
        draw_round_panel(
            axes, {row: (i, here[row]) for i, row in enumerate(rows) if row in here}, measure
        )
        axes.set_title(column)


def draw_round_panel(
    axes: Axes, lines: Mapping[str, tuple[int, Sequence[Curve]]], measure: str
) -> None:
    """The mean over the seeds, with ± one std, named at its end."""
    ends = []
    for row, (i, seeds) in lines.items():
        by_seed = [dict(curve) for curve in seeds]
        at = [x for x in by_seed[0] if all(x in other for other in by_seed)]
        mean = np.array([fmean(curve[x] for curve in by_seed) for x in at])
        std = np.array([pstdev([curve[x] for curve in by_seed]) for x in at])
        axes.plot(at, mean, label=row, linewidth=1.7, **get_series_style(i))
        if std.any():
            axes.fill_between(
                at, mean - std, mean + std, alpha=0.15, color=get_series_style(i)["color"], lw=0
            )
        ends.append(PointLabel(row, at[-1], mean[-1], get_series_style(i)["color"]))
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.grid(color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)
    if measure in ACCURACY_MEASURES:
        set_percent_axes(axes, "y")
    axes.set(xlabel=X_LABELS.get(measure, "round"), ylabel=Y_LABELS[measure])
    axes.set_ylim(bottom=0)
    label_line_ends(axes, ends)
