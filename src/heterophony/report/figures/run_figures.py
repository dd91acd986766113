"""Figures of runs: curves of G and P, their trade-off, and the participation of clients."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import pstdev

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...analysis.participation import (
    NO_REPLY,
    NOT_SELECTED,
    TRAINED,
    ParticipationMatrix,
    collect_participation,
)
from ...analysis.runs import Run, compute_mean_curve, group_by_series
from ...analysis.tables import build_comparison_rows, get_deviation
from ...core.errors import ConfigError
from ...core.files import write_atomically
from ...core.scores import SCORES
from .coinciding import DrawnLine, draw_stripes
from .style import (
    GRID_COLOR,
    LINE_WIDTH,
    PALETTE,
    STYLE,
    TEXT_COLOR,
    PointLabel,
    get_series_style,
    label_line_ends,
    label_points,
    label_ticks,
    set_percent_axes,
    set_whole_number_axis,
)

MAX_DIRECT_LABELS = 10  # names that fit beside their lines
MAX_LABEL_LENGTH = 18  # letters of such a name
PARTICIPATION_COLORS = ("white", "#F0A35E", PALETTE[0])  # not selected, no reply, trained
SAME_PLACE = 0.002  # distance in accuracy of points that cover each other
FIGURE_FORMATS = (".png", ".svg", ".pdf")


def draw_comparison(runs: Sequence[Run]) -> Figure:
    """Draw G over the rounds, P over the rounds, and P against G."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 4.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1.15, 1))
        draw_accuracy_panel(left, runs, "G", "G: the generic model")
        draw_accuracy_panel(middle, runs, "P", "P: each client's own model")
        draw_trade_off(right, runs)
        if not can_label_directly(runs):
            handles, labels = middle.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def can_label_directly(runs: Sequence[Run]) -> bool:
    """Whether names fit beside the lines; otherwise there is a legend."""
    names = list(group_by_series(runs))
    return len(names) <= MAX_DIRECT_LABELS and max(map(len, names)) <= MAX_LABEL_LENGTH


def draw_accuracy_panel(axes: Axes, runs: Sequence[Run], measure: str, title: str) -> None:
    """Draw one line per series, with ± one std over its seeds and its name at the end."""
    ends, lines = [], []
    for i, (name, group) in enumerate(group_by_series(runs).items()):
        line = compute_mean_curve(group, measure)
        if not line:
            continue
        at, mean = np.array(line).T
        axes.plot(at, mean, label=name, linewidth=LINE_WIDTH, **get_series_style(i))
        lines.append(DrawnLine(at, mean, get_series_style(i)["color"]))
        values = [dict(r.curves[measure]) for r in group]
        std = np.array([pstdev([v[t] for v in values]) for t in at])
        if std.any():
            axes.fill_between(
                at, mean - std, mean + std, alpha=0.15, color=get_series_style(i)["color"], lw=0
            )
        ends.append(PointLabel(name, at[-1], mean[-1], get_series_style(i)["color"]))
    lowest = min((v for line in lines for v in line.y), default=0)
    score = SCORES.get(runs[0].start.get("task", "classification"), "score")
    axes.set(title=title, xlabel="round", ylabel=score, ylim=(min(0, lowest), 1.02))
    axes.margins(x=0)
    draw_stripes(axes, lines, LINE_WIDTH)
    set_whole_number_axis(axes.xaxis)
    set_percent_axes(axes, "y")
    if can_label_directly(runs):
        label_line_ends(axes, ends)


def draw_trade_off(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw P against G over the last ten evaluations; the upper right is best."""
    color = {name: get_series_style(i)["color"] for i, name in enumerate(group_by_series(runs))}
    points = []
    for row in build_comparison_rows(runs):
        if row["G"]:
            g, p = (row[measure]["last10"]["mean"] for measure in "GP")
            point = PointLabel(row["name"], g, p, color[row["name"]])
            dx, dy = (get_deviation(row, f"{measure}.last10") for measure in "GP")
            axes.errorbar(g, p, xerr=dx, yerr=dy, color=point.color, lw=1, alpha=0.45)
            points.append(point)
    for i, point in enumerate(points):
        # of points at the same place, the lower ones are larger: rings around the topmost
        above = sum(np.hypot(point.x - p.x, point.y - p.y) < SAME_PLACE for p in points[i + 1 :])
        axes.plot(point.x, point.y, "o", markersize=9 + 5 * min(3, above), color=point.color)
    axes.set(
        title="P against G, last 10",
        xlabel="G last 10 (± std)",
        ylabel="P last 10 (± std)",
    )
    axes.margins(0.15)
    set_percent_axes(axes, "x", "y")
    if can_label_directly(runs):
        label_points(axes, points)


# Participation ------------------------------------------------------------------------------


def draw_participation(runs: Sequence[Run]) -> Figure:
    """Draw how often every client took part, and below it in which rounds."""
    first, *others = collect_participation(runs)
    if others:
        raise ConfigError(
            f"different clients took part in '{first.run_labels[0]}' and '{others[0].run_labels[0]}';"
            " draw one run at a time"
        )
    rounds, n = first.matrix.shape
    wide = min(13.0, max(7.0, 0.3 * n))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(wide + 1.5, min(11.0, 4.5 + 0.05 * rounds)), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        draw_participation_counts(above, first)
        above.set_title(f"Participation of {n} clients in {rounds} rounds (dashed: the mean)")
        below.pcolormesh(
            first.matrix,
            cmap=ListedColormap(PARTICIPATION_COLORS),
            vmin=NOT_SELECTED,
            vmax=TRAINED,
            rasterized=True,
        )
        below.set(xlabel="client", ylabel="round", xlim=(0, n))
        set_whole_number_axis(below.yaxis, 8)
        below.invert_yaxis()
        below.tick_params(length=0)
        label_ticks(below.xaxis, first.clients, wide)
        if (first.matrix == NO_REPLY).any():
            labels = zip(
                PARTICIPATION_COLORS[1:],
                ("selected, but no reply in time", "took part"),
                strict=True,
            )
            patches = [Patch(color=color, label=label) for color, label in labels]
            figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_participation_counts(axes: Axes, participation: ParticipationMatrix) -> None:
    """Draw rounds per client, those without a reply on top, and the mean as a line."""
    at, trained = np.arange(len(participation.clients)) + 0.5, participation.rounds_trained
    axes.bar(at, trained, 0.8, color=PARTICIPATION_COLORS[TRAINED], linewidth=0)
    axes.bar(
        at,
        participation.rounds_selected - trained,
        0.8,
        bottom=trained,
        color=PARTICIPATION_COLORS[NO_REPLY],
        linewidth=0,
    )
    axes.axhline(float(trained.mean()), color=TEXT_COLOR, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_ylabel("rounds")
    set_whole_number_axis(axes.yaxis, 4)
    axes.yaxis.grid(color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0, labelbottom=False)
    axes.spines["left"].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Save as PNG, SVG or PDF, by the suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower()
    if kind not in FIGURE_FORMATS:
        raise ConfigError(
            f"{path}: a figure is saved as {', '.join(FIGURE_FORMATS)},"
            " a page as .html, the table of runs as .csv, .md, .tex"
        )
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[kind]
    content = BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(content, format=kind[1:], dpi=160, metadata=undated)
    write_atomically(path, content.getvalue())
