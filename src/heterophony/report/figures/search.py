"""Figures of sweeps and tunes: a line over one setting, a heat map of two, or several panels."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...results.search_tables import SweepRow, SweepTable, TunedAlgorithm, TuneTable
from ...runs.curves import MeanStd
from ...runs.events import Measure
from . import style

LOGARITHMIC = 20  # settings whose values span this factor have a logarithmic axis
MAX_SWEEP_PANELS = 3  # panels in a row


def draw_sweep(table: SweepTable) -> Figure:
    """Draw a sweep: validation accuracy (or test accuracy, without validation examples) over the settings."""
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        rows = [row for row in table.rows if get_sweep_accuracy(row, table) is not None]
        if len(table.keys) == 1:
            draw_sweep_line(figure.subplots(), table, rows)
        elif len(table.keys) == 2 and is_full_grid(table):
            draw_sweep_heatmap(figure.subplots(), table, rows)
        else:
            draw_sweep_panels(figure, table, rows)
        style.set_figure_title(figure, describe_sweep_measure(table))
    return figure


def describe_sweep_measure(table: SweepTable) -> str:
    """Describe the accuracy that a figure of a sweep shows."""
    measured = "validation examples" if table.chosen else "test examples (last 10 evaluations)"
    return f"{table.by} on {measured}"


def get_sweep_accuracy(row: SweepRow, table: SweepTable) -> MeanStd | None:
    """Return the accuracy to draw for a sweep's row; None if it has none."""
    measure = row.get_measure(table.by)
    if measure is None:
        return None
    return measure.validation if table.chosen else measure.test


def is_full_grid(table: SweepTable) -> bool:
    """Return True if every value of one setting was combined with every value of the other."""
    sizes = [len(list_setting_values(table, key)) for key in table.keys]
    return len(table.rows) == sizes[0] * sizes[1]


def list_setting_values(table: SweepTable, key: str) -> list[Any]:
    """List the values of a setting in a sweep: numbers in ascending order, other values in the given order."""
    distinct: list[Any] = []
    for row in table.rows:
        if row.settings[key] not in distinct:
            distinct.append(row.settings[key])
    return sorted(distinct) if are_numbers(distinct) else distinct


def are_numbers(values: Sequence[Any]) -> bool:
    """Return True if all values of a setting are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def set_up_setting_axis(axes: Axes, values: Sequence[Any], key: str) -> dict[str, float]:
    """Set up the x axis for the values of a setting; return the position of each value by its text."""
    axes.set_xlabel(key)
    if not are_numbers(values):
        axes.set_xticks(range(len(values)), [str(v) for v in values])
        return {str(v): float(i) for i, v in enumerate(values)}
    if min(values) > 0 and max(values) >= LOGARITHMIC * min(values):
        axes.set_xscale("log")
    if len(values) <= 8:
        axes.set_xticks(list(values), [f"{v:g}" for v in values])
        axes.set_xticks([], minor=True)
    return {str(v): float(v) for v in values}


def draw_sweep_line(axes: Axes, table: SweepTable, rows: Sequence[SweepRow]) -> None:
    """Draw the accuracy of a sweep over its only setting, with the deviation over seeds."""
    (key,) = table.keys
    places = set_up_setting_axis(axes, list_setting_values(table, key), key)
    rising = sorted(rows, key=lambda row: places[str(row.settings[key])])
    at = [places[str(row.settings[key])] for row in rising]
    numbers = [number for row in rising if (number := get_sweep_accuracy(row, table))]
    means, deviations = [n.mean for n in numbers], [n.std for n in numbers]
    axes.plot(at, means, marker="o", linewidth=1.7, **style.get_series_style(0))
    if any(deviations):
        axes.errorbar(at, means, yerr=deviations, color=style.PALETTE[0], linestyle="", capsize=3)
    style.set_percent_axes(axes, "y")


def draw_sweep_heatmap(axes: Axes, table: SweepTable, rows: Sequence[SweepRow]) -> None:
    """Draw the accuracy of a sweep of two settings as a heat map."""
    across, up = (list_setting_values(table, key) for key in table.keys)
    cells = np.full((len(up), len(across)), np.nan)
    for row in rows:
        x, y = (row.settings[key] for key in table.keys)
        if number := get_sweep_accuracy(row, table):
            cells[up.index(y), across.index(x)] = number.mean
    texts = [["–" if np.isnan(v) else f"{100 * v:.1f}" for v in line] for line in cells]
    style.draw_number_grid(axes, cells.tolist(), texts)
    axes.set_xticks(np.arange(len(across)) + 0.5, [str(v) for v in across])
    axes.set_yticks(np.arange(len(up)) + 0.5, [str(v) for v in up])
    axes.set(xlabel=table.keys[0], ylabel=table.keys[1])


def draw_sweep_panels(figure: Figure, table: SweepTable, rows: Sequence[SweepRow]) -> None:
    """Draw a sweep of several settings: a panel for each, with a point per combination."""
    wide = min(MAX_SWEEP_PANELS, len(table.keys))
    high = -(-len(table.keys) // wide)
    figure.set_size_inches(4.2 * wide, 0.6 + 3.6 * high)
    grid = figure.subplots(high, wide, squeeze=False, sharey=True).ravel()
    for axes in grid[len(table.keys) :]:
        axes.set_visible(False)
    for axes, key in zip(grid, table.keys, strict=False):
        places = set_up_setting_axis(axes, list_setting_values(table, key), key)
        for row in rows:
            number = get_sweep_accuracy(row, table)
            assert number is not None
            best = row is table.chosen
            color = style.PALETTE[1] if best else style.PALETTE[0]
            at = places[str(row.settings[key])]
            axes.plot(at, number.mean, "D" if best else "o", color=color, zorder=3 if best else 2)
        style.set_percent_axes(axes, "y")
        axes.xaxis.grid(color=style.GRID_COLOR, linewidth=0.8)


MAX_TUNE_PANELS = 4  # panels in a row


def draw_tune(table: TuneTable) -> Figure:
    """Draw a tune: the trials of each algorithm in a panel, all on the same scales."""
    with mpl.rc_context(style.STYLE):
        wide = min(MAX_TUNE_PANELS, len(table.algorithms))
        high = -(-len(table.algorithms) // wide)
        figure = Figure(figsize=(1.4 + 2.6 * wide, 0.9 + 2.4 * high), layout="constrained")
        panels = figure.subplots(high, wide, squeeze=False, sharex=True, sharey=True).ravel()
        for axes in panels[len(table.algorithms) :]:
            axes.set_visible(False)
        for axes, algorithm in zip(panels, table.algorithms, strict=False):
            draw_trials(axes, algorithm, table.by)
        figure.supxlabel("trial (×: stopped early or diverged)", fontsize=9)
        style.set_figure_title(
            figure, f"{table.by} on validation examples: every trial, and the best so far"
        )
    return figure


def draw_trials(axes: Axes, algorithm: TunedAlgorithm, by: Measure) -> None:
    """Draw the trials of one algorithm in a tune; trials without a result are crosses at the bottom."""
    ranks = [row.rank(by) for row in algorithm.trials]  # minus the validation accuracy
    values = [None if rank == inf else -rank for rank in ranks]
    measured = {i: v for i, v in enumerate(values, 1) if v is not None}
    axes.plot(list(measured), list(measured.values()), "o", color=style.PALETTE[0], markersize=4)
    best = [max(v for j, v in measured.items() if j <= i) for i in measured]
    axes.step(list(measured), best, where="post", color=style.PALETTE[1], linewidth=1.6)
    ended = [i for i, v in enumerate(values, 1) if v is None]
    bottom = axes.get_xaxis_transform()
    axes.plot(
        ended, [0.03] * len(ended), "x", color=style.TEXT_COLOR, markersize=5, transform=bottom
    )
    axes.set_title(algorithm.label, loc="left", fontsize=9)
    style.set_percent_axes(axes, "y")
