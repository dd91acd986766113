"""The picture of a tune: the validation accuracy of every trial, and the best so far, by algorithm."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...runs.sweep_table import SweepRow
from ...runs.tune_table import TunedAlgorithm, TuneTable
from .style import PALETTE, STYLE, TEXT_COLOR, set_percent_axes

MAX_ACROSS = 4  # panels in a row


def draw_tune(table: TuneTable) -> Figure:
    """Draw a panel for each algorithm, all on the same axes."""
    with mpl.rc_context(STYLE):
        wide = min(MAX_ACROSS, len(table.algorithms))
        high = -(-len(table.algorithms) // wide)
        figure = Figure(figsize=(1.4 + 2.6 * wide, 0.9 + 2.4 * high), layout="constrained")
        panels = figure.subplots(high, wide, squeeze=False, sharex=True, sharey=True).ravel()
        for axes in panels[len(table.algorithms) :]:
            axes.set_visible(False)
        for axes, algorithm in zip(panels, table.algorithms, strict=False):
            draw_trials(axes, algorithm, table.by)
        figure.supxlabel("trial (×: stopped early or diverged)", fontsize=9)
        figure.suptitle(
            f"{table.by} on validation examples: every trial, and the best so far",
            x=0.02,
            ha="left",
            fontweight="bold",
        )
    return figure


def draw_trials(axes: Axes, algorithm: TunedAlgorithm, by: str) -> None:
    """Draw the trials of one algorithm; those without a result are crosses at the bottom."""
    values = [get_validation(row, by) for row in algorithm.trials]
    measured = {i: v for i, v in enumerate(values, 1) if v is not None}
    axes.plot(list(measured), list(measured.values()), "o", color=PALETTE[0], markersize=4)
    best = [max(v for j, v in measured.items() if j <= i) for i in measured]
    axes.step(list(measured), best, where="post", color=PALETTE[1], linewidth=1.6)
    ended = [i for i, v in enumerate(values, 1) if v is None]
    bottom = axes.get_xaxis_transform()
    axes.plot(ended, [0.03] * len(ended), "x", color=TEXT_COLOR, markersize=5, transform=bottom)
    axes.set_title(algorithm.label, loc="left", fontsize=9)
    set_percent_axes(axes, "y")


def get_validation(row: SweepRow, by: str) -> float | None:
    measure = row.P if by == "P" else row.G
    return measure.validation.mean if measure and measure.validation else None
