"""Pictures for papers and the README: curves of G and P, their trade-off, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import pstdev

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..errors import ConfigError
from ..files import write
from .drawing import INK, SHADES, STYLE, Named, ink, name_ends, name_points, percent
from .runs import Run, by_series, mean_curve
from .tables import deviation, rows

DIRECT, SHORT = 10, 18  # so many names, of so many letters, fit beside their lines
NUMBERED = 20  # up to so many clients the map shows its numbers
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


# Who holds what -----------------------------------------------------------------------------


def label_map(
    federation_counts: Sequence[Sequence[int]],
    class_names: Sequence[str],
    client_names: Sequence[str],
    title: str,
) -> Figure:
    """Examples of every class (rows) at every client (columns), and above how many in all."""
    counts = np.asarray(federation_counts).reshape(len(client_names), len(class_names)).T
    width = min(14.0, max(7.0, 2.5 + 0.5 * len(client_names)))
    height = min(14.0, max(4.4, 2.2 + 0.3 * len(class_names)))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, max(3.0, height - 2)))
        totals(above, counts.sum(axis=0), title)
        norm = PowerNorm(0.5, vmin=0, vmax=max(1, counts.max(initial=1)))
        held = np.ma.masked_equal(counts, 0)  # a few examples must not look like none
        image = axes.pcolormesh(held, cmap=SHADES, norm=norm, rasterized=True)
        lines = 0.8 if len(client_names) <= 60 and len(class_names) <= 60 else 0.0
        image.set(edgecolor="white", linewidth=lines)
        scale = figure.colorbar(image, ax=axes, pad=0.01, aspect=30, label="examples")
        scale.outline.set_visible(False)
        scale.ax.tick_params(length=0)
        scale.locator = MaxNLocator(5, integer=True)
        if len(client_names) <= NUMBERED and len(class_names) <= NUMBERED:
            number_cells(axes, counts)
        axes.set(xlabel="client", ylabel="class")
        name_ticks(axes, class_names, client_names)
    return figure


def totals(axes: Axes, sizes: np.ndarray, title: str) -> None:
    """A bar per client, as wide as its column."""
    axes.bar(np.arange(len(sizes)) + 0.5, sizes, width=0.8, color="#9AA7B1", linewidth=0)
    axes.set_title(title)
    axes.set_ylabel("in all")
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.tick_params(length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)


def number_cells(axes: Axes, counts: np.ndarray) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > 0.22 * counts.max() else INK
            place = (column + 0.5, row + 0.5)
            axes.text(*place, str(count), ha="center", va="center", color=color, fontsize=10)


def name_ticks(axes: Axes, class_names: Sequence[str], client_names: Sequence[str]) -> None:
    """Every class and client by name, or every n-th where there are too many to read."""
    for axis, names, most in ((axes.xaxis, client_names, 25), (axes.yaxis, class_names, 30)):
        step = next(
            s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if len(names) <= s * most
        )
        shown = range(0, len(names), step)
        axis.set_ticks([i + 0.5 for i in shown], [names[i] for i in shown])
    if max(map(len, client_names), default=0) > 3:
        axes.tick_params(axis="x", rotation=60)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """As PNG, SVG or PDF, told by the suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise ConfigError(f"{path}: a figure is saved as one of {', '.join(FORMATS)}")
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[kind]
    content = BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(content, format=kind[1:], dpi=160, metadata=undated)
    write(path, content.getvalue())
