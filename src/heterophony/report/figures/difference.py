"""The difference to a reference over the rounds, with its interval over the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...analysis.round_differences import (
    DifferenceCurve,
    compare_over_rounds,
    find_reference,
)
from ...analysis.runs import Run, group_by_series
from ...core.errors import ConfigError
from .style import (
    LINE_WIDTH,
    STYLE,
    TEXT_COLOR,
    PointLabel,
    get_series_style,
    label_line_ends,
    set_whole_number_axis,
)

SMOOTHING = 9  # evaluations of the thick line's mean
MEASURE_TITLES = {"G": "G: the generic model", "P": "P: each client's own model"}


def draw_differences(runs: Sequence[Run], reference: str | None = None) -> Figure:
    """Draw G and P of every series minus the reference's, in percentage points."""
    base = find_reference(runs, reference)
    names = list(group_by_series(runs))
    panels = {m: compare_over_rounds(runs, base, m) for m in MEASURE_TITLES}
    if not any(panels.values()):
        raise ConfigError(
            f"no other series has a run with the same seed and data as one of {base}:"
            " there is no difference to draw"
        )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        for axes, (measure, raw) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            smooth = compare_over_rounds(runs, base, measure, SMOOTHING)
            draw_difference_panel(axes, raw, smooth, names)
            axes.set_title(MEASURE_TITLES[measure])
            axes.set_ylabel(f"difference to {base}, points")
        figure.supxlabel(describe_lines(panels), fontsize=10, color=TEXT_COLOR)
    return figure


def describe_lines(panels: dict[str, list[DifferenceCurve]]) -> str:
    """Say what the lines and bands are, and over how many seeds."""
    seeds = [len(curve.seeds) for curves in panels.values() for curve in curves]
    low, high = min(seeds), max(seeds)
    count = f"{low}" if low == high else f"{low} to {high}"
    lines = f"paired by seed and round; thick: mean over {SMOOTHING} evaluations"
    if high == 1:
        return f"{lines}, thin: every evaluation; one seed, so no interval"
    return f"{lines}, with its 95 % interval over {count} seeds"


def draw_difference_panel(
    axes: Axes,
    raw: Sequence[DifferenceCurve],
    smooth: Sequence[DifferenceCurve],
    names: Sequence[str],
) -> None:
    """Draw a thick line and its band for every series; with one seed, a thin line of all rounds."""
    ends = []
    for each, curve in zip(raw, smooth, strict=True):
        style = get_series_style(names.index(curve.name))
        at = np.array([p.t for p in curve.points])
        mean = 100 * np.array([p.mean for p in curve.points])
        axes.plot(at, mean, linewidth=LINE_WIDTH, label=curve.name, **style)
        if len(curve.seeds) == 1:
            points = [(p.t, 100 * p.mean) for p in each.points]
            axes.plot(*zip(*points, strict=True), linewidth=0.8, alpha=0.4, color=style["color"])
        edges = [p.interval for p in curve.points if p.interval]
        if edges:
            low, high = (
                100 * np.array([getattr(e, side) for e in edges]) for side in ("low", "high")
            )
            axes.fill_between(at, low, high, color=style["color"], alpha=0.15, lw=0)
        ends.append(PointLabel(curve.name, at[-1], mean[-1], style["color"]))
    axes.axhline(0, color=TEXT_COLOR, linewidth=1)
    axes.set_xlabel("round")
    axes.margins(x=0)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda v, _: f"{v:+g}".replace("-", "−") if v else "0")
    )
    set_whole_number_axis(axes.xaxis)
    label_line_ends(axes, ends)
