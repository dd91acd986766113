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
from ...run.summary import Event
from .style import (
    FAINT,
    Named,
    arranged,
    ink,
    name_ends,
    panels,
    percent,
)

if TYPE_CHECKING:
    from ...papers.reproduce import Outcome, Task

Runs = Iterable[tuple["Task", list[Event]]]
Read = Callable[[list[Event]], Mapping[str, Curve]]
Found = dict[tuple[str, str], dict[str, list[Curve]]]  # measure and column; row; one per seed
ACCURACIES = ("G", "P")
DIFFERENCE, DRAWN = "model_difference", "drawn"
ALONG = {DRAWN: "clients, the most drawn first"}  # the others: rounds
UP = {
    "G": "G: the common model",
    "P": "P: each client's own model",
    DIFFERENCE: "clients' distance from their mean",
    DRAWN: "times drawn",
}


def curves(figure: Figure, outcome: Outcome, runs: Runs) -> None:
    """G and P over the rounds."""
    found = gathered(runs, lambda events: accuracies(outcome, events))
    measures = list(dict.fromkeys(line.measure for line in outcome.lines if line.values))
    draw(figure, outcome, found, arranged(columns(outcome), measures, 3))


def difference(figure: Figure, outcome: Outcome, runs: Runs) -> None:
    """How far clients are from their mean after every round, as the algorithm recorded it."""

    def read(events: list[Event]) -> dict[str, Curve]:
        rounds = [e for e in events if e["event"] == "round" and DIFFERENCE in e["measures"]]
        return {DIFFERENCE: [(e["t"] + 1, e["measures"][DIFFERENCE]) for e in rounds]}

    draw(figure, outcome, gathered(runs, read), arranged(columns(outcome), [DIFFERENCE], 3))


def participation(figure: Figure, outcome: Outcome, runs: Runs) -> None:
    """How unevenly clients were drawn, and beside it what became of G."""

    def read(events: list[Event]) -> dict[str, Curve]:
        return {DRAWN: drawn(events), "G": accuracies(outcome, events)["G"]}

    places = [[(DRAWN, column), ("G", column)] for column in columns(outcome)]
    draw(figure, outcome, gathered(runs, read), places)


# Reading ------------------------------------------------------------------------------------


def columns(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(line.column for line in outcome.lines if line.values))


def accuracies(outcome: Outcome, events: list[Event]) -> dict[str, Curve]:
    found = summary.curves(events, outcome.table.found.measured.clients)
    return {m: found[m] for m in ACCURACIES}


def drawn(events: list[Event]) -> Curve:
    """(rank, draws), the most drawn first; twice in a round are two draws."""
    count = Counter(dict.fromkeys(events[0]["clients"], 0))
    for event in events:
        if event["event"] == "round":
            count.update(event.get("asked", event["clients"]))
    return [(i + 1, n) for i, n in enumerate(sorted(count.values(), reverse=True))]


def gathered(runs: Runs, read: Read) -> Found:
    """What was read of every run, by panel and row; empty curves are left out."""
    found: Found = {}
    for task, events in runs:
        for measure, curve in read(events).items():
            if curve:
                rows = found.setdefault((measure, task.cell.column), {})
                rows.setdefault(task.cell.row, []).append(curve)
    return found


# Drawing ------------------------------------------------------------------------------------


def draw(
    figure: Figure, outcome: Outcome, found: Found, places: Sequence[Sequence[tuple[str, str]]]
) -> None:
    """A panel at each place, a line in it for each row."""
    rows = list(dict.fromkeys(line.row for line in outcome.lines))
    for axes, (measure, column), _ in panels(figure, places, (5.2, 3.9)):
        here = found.get((measure, column), {})
        panel(axes, {row: (i, here[row]) for i, row in enumerate(rows) if row in here}, measure)
        axes.set_title(column)


def panel(axes: Axes, lines: Mapping[str, tuple[int, Sequence[Curve]]], measure: str) -> None:
    """The mean over the seeds, with ± one std, named at its end."""
    ends = []
    for row, (i, seeds) in lines.items():
        by_seed = [dict(curve) for curve in seeds]
        at = [x for x in by_seed[0] if all(x in other for other in by_seed)]
        mean = np.array([fmean(curve[x] for curve in by_seed) for x in at])
        std = np.array([pstdev([curve[x] for curve in by_seed]) for x in at])
        axes.plot(at, mean, label=row, linewidth=1.7, **ink(i))
        if std.any():
            axes.fill_between(at, mean - std, mean + std, alpha=0.15, color=ink(i)["color"], lw=0)
        ends.append(Named(row, at[-1], mean[-1], ink(i)["color"]))
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.grid(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0)
    if measure in ACCURACIES:
        percent(axes, "y")
    axes.set(xlabel=ALONG.get(measure, "round"), ylabel=UP[measure])
    axes.set_ylim(bottom=0)
    name_ends(axes, ends)
