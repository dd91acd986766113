"""Pictures for papers and the README: curves of G and P, their trade-off, who took part."""

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
from matplotlib.ticker import MaxNLocator

from ...analysis.participation import (
    AWAY,
    LOST,
    THERE,
    Attendance,
    attendance,
)
from ...analysis.runs import Run, by_series, mean_curve
from ...analysis.tables import deviation, rows
from ...core.errors import ConfigError
from ...core.files import write
from .style import (
    FAINT,
    INK,
    PALETTE,
    STYLE,
    Named,
    ink,
    name_ends,
    name_points,
    name_ticks,
    percent,
)

DIRECT, SHORT = 10, 18  # so many names, of so many letters, fit beside their lines
ATTENDED = ("white", "#F0A35E", PALETTE[0])  # away, lost, there
FORMATS = (".png", ".svg", ".pdf")


def comparison(runs: Sequence[Run]) -> Figure:
    """G over the rounds, P over the rounds, and where the two meet."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(14, 4.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1.15, 1))
        curve_panel(left, runs, "G", "G: the common model")
        curve_panel(middle, runs, "P", "P: each client's own model")
        trade_off(right, runs)
        if not direct(runs):
            handles, labels = middle.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def direct(runs: Sequence[Run]) -> bool:
    """Whether names beside the lines fit; a legend tells the series otherwise."""
    names = list(by_series(runs))
    return len(names) <= DIRECT and max(map(len, names)) <= SHORT


def curve_panel(axes: Axes, runs: Sequence[Run], measure: str, title: str) -> None:
    """One line per series, with ± one std over its seeds, named at its end."""
    ends = []
    for i, (name, group) in enumerate(by_series(runs).items()):
        line = mean_curve(group, measure)
        if not line:
            continue
        at, mean = np.array(line).T
        axes.plot(at, mean, label=name, linewidth=1.7, **ink(i))
        values = [dict(r.curves[measure]) for r in group]
        std = np.array([pstdev([v[t] for v in values]) for t in at])
        if std.any():
            axes.fill_between(at, mean - std, mean + std, alpha=0.15, color=ink(i)["color"], lw=0)
        ends.append(Named(name, at[-1], mean[-1], ink(i)["color"]))
    axes.set(title=title, xlabel="round", ylabel="accuracy", ylim=(0, 1.02))
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    percent(axes, "y")
    if direct(runs):
        name_ends(axes, ends)


def trade_off(axes: Axes, runs: Sequence[Run]) -> None:
    """P against G over the last ten evaluations: the best place is the upper right."""
    color = {name: ink(i)["color"] for i, name in enumerate(by_series(runs))}
    points = []
    for row in rows(runs):
        if row["G"]:
            g, p = (row[measure]["last10"]["mean"] for measure in "GP")
            point = Named(row["name"], g, p, color[row["name"]])
            dx, dy = (deviation(row, f"{measure}.last10") for measure in "GP")
            axes.errorbar(g, p, xerr=dx, yerr=dy, color=point.color, lw=1, alpha=0.45)
            axes.plot(g, p, "o", markersize=9, color=point.color)
            points.append(point)
    axes.set(title="P against G, last 10", xlabel="G (± std)", ylabel="P (± std)")
    axes.margins(0.15)
    percent(axes, "x", "y")
    if direct(runs):
        name_points(axes, points)


# Who took part -----------------------------------------------------------------------------


def participation(runs: Sequence[Run]) -> Figure:
    """How often every client took part, and below it in which rounds."""
    first, *others = attendance(runs)
    if others:
        raise ConfigError(
            f"in '{first.labels[0]}' and '{others[0].labels[0]}' not the same clients took part;"
            " draw one run at a time"
        )
    rounds, n = first.matrix.shape
    wide = min(13.0, max(7.0, 0.3 * n))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(wide + 1.5, min(11.0, 4.5 + 0.05 * rounds)), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        often(above, first)
        above.set_title(f"Who took part, {n} clients, {rounds} rounds (dashed: the mean)")
        below.pcolormesh(
            first.matrix, cmap=ListedColormap(ATTENDED), vmin=AWAY, vmax=THERE, rasterized=True
        )
        below.set(xlabel="client", ylabel="round", xlim=(0, n))
        below.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        below.invert_yaxis()
        below.tick_params(length=0)
        name_ticks(below.xaxis, first.clients, wide)
        if (first.matrix == LOST).any():
            words = zip(
                ATTENDED[1:], ("asked, but dropped out or too late", "took part"), strict=True
            )
            patches = [Patch(color=color, label=word) for color, word in words]
            figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return figure


def often(axes: Axes, seen: Attendance) -> None:
    """Rounds per client, those it was lost in on top, and the mean as a line."""
    at, took = np.arange(len(seen.clients)) + 0.5, seen.took_part
    axes.bar(at, took, 0.8, color=ATTENDED[THERE], linewidth=0)
    axes.bar(at, seen.asked - took, 0.8, bottom=took, color=ATTENDED[LOST], linewidth=0)
    axes.axhline(float(took.mean()), color=INK, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_ylabel("rounds")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.grid(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0, labelbottom=False)
    axes.spines["left"].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """As PNG, SVG or PDF, told by the suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(
            f"{path}: a figure is saved as {', '.join(FORMATS)},"
            " a page as .html, the table of runs as .csv, .md, .tex"
        )
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[kind]
    content = BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(content, format=kind[1:], dpi=160, metadata=undated)
    write(path, content.getvalue())
