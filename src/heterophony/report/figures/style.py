"""Shared parts of figures: colours, axes, panels, and names next to lines instead of a legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ...core.files import clean_line
from ...results.runs import Curve

# Distinguishable with any colour vision, and in greyscale print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#D9920A", "#56B4E9", "#882255", "#555555")
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))  # after all colours of the palette are used once
LINE_WIDTH = 1.7  # line width of curves
TEXT_COLOR, MUTED_COLOR, GRID_COLOR = "#222222", "#666666", "#DDDDDD"
HEATMAP_COLORMAP = LinearSegmentedColormap.from_list(
    "heatmap", ["#E6F0F7", "#BAD6E9", "#7DB5D8", "#3B8BBF", "#0B5A91", "#062F52"]
)
STYLE: Any = {  # matplotlib types the keys as literals
    "font.size": 12,
    "font.family": "sans-serif",
    "text.color": TEXT_COLOR,
    "axes.edgecolor": MUTED_COLOR,
    "axes.labelcolor": TEXT_COLOR,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED_COLOR,
    "ytick.color": MUTED_COLOR,
    "svg.hashsalt": "heterophony",  # equal figures give equal files
}


class DrawnLine(NamedTuple):
    """A line in data coordinates."""

    x: Sequence[float]
    y: Sequence[float]
    color: str


class PointLabel(NamedTuple):
    """A point in data coordinates and the name to write next to it."""

    name: str
    x: float
    y: float
    color: str


def set_figure_title(figure: Figure, text: str, size: float = 13, **style: Any) -> None:
    """Write a bold title at the upper left of a figure."""
    figure.suptitle(text, x=0.01, ha="left", fontweight="bold", fontsize=size, **style)


def draw_mean_curves(
    axes: Axes, series: Mapping[str, tuple[int, Sequence[Curve]]]
) -> tuple[list[DrawnLine], list[PointLabel]]:
    """Draw the mean curve of each series over its seeds, with ± one std; return the lines and their end labels.

    ``series`` maps each name to a place in the palette and a curve for every seed.
    """
    lines, ends = [], []
    for name, (i, seeds) in series.items():
        by_seed, style = [dict(curve) for curve in seeds], get_series_style(i)
        at = [x for x in by_seed[0] if all(x in other for other in by_seed)]
        if not at:
            continue
        mean = np.array([fmean(curve[x] for curve in by_seed) for x in at])
        std = np.array([pstdev([curve[x] for curve in by_seed]) for x in at])
        axes.plot(at, mean, label=name, linewidth=LINE_WIDTH, **style)
        if std.any():
            axes.fill_between(at, mean - std, mean + std, alpha=0.15, color=style["color"], lw=0)
        lines.append(DrawnLine(at, mean.tolist(), style["color"]))
        ends.append(PointLabel(name, at[-1], mean[-1], style["color"]))
    return lines, ends


def draw_number_grid(
    axes: Axes, values: Sequence[Sequence[float]], texts: Sequence[Sequence[str]], **style: Any
) -> None:
    """Draw a heat map with a text in each cell; NaN cells have no colour."""
    shown = np.ma.masked_invalid(np.array(values, dtype=float))
    axes.pcolormesh(shown, cmap=HEATMAP_COLORMAP, edgecolor="white", linewidth=1.5)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 0.0)
    for (i, j), value in np.ndenumerate(shown.filled(low)):
        if text := texts[i][j]:
            color = "white" if value - low > 0.45 * (high - low) > 0 else TEXT_COLOR
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=color, **style)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def get_series_style(i: int) -> dict[str, Any]:
    """Return the colour and the dashes of the i-th series in a figure."""
    return {
        "color": PALETTE[i % len(PALETTE)],
        "linestyle": DASHES[i // len(PALETTE) % len(DASHES)],
    }


def arrange_panels(
    columns: Sequence[str], measures: Sequence[str], across: int
) -> list[list[tuple[str, str]]]:
    """Arrange (measure, column) pairs in a grid: one row per measure, columns side by side."""
    if len(columns) == 1:
        return [[(m, columns[0]) for m in measures]]
    lines = -(-len(columns) // across)
    each = -(-len(columns) // max(1, lines))
    blocks = [columns[i : i + each] for i in range(0, len(columns), max(1, each))]
    return [[(m, c) for c in block] for block in blocks for m in measures]


def create_panels(
    figure: Figure,
    places: Sequence[Sequence[tuple[str, str]]],
    size: tuple[float, float],
    beside: float = 0.0,
) -> Iterator[tuple[Axes, tuple[str, str], bool]]:
    """Create a panel of a figure for each pair; yield it with the pair and whether it is the first of its row."""
    wide = max(map(len, places), default=1)
    figure.set_size_inches(max(7.5, beside + wide * size[0]), 0.7 + len(places) * size[1])
    grid = figure.subplots(max(1, len(places)), wide, squeeze=False)
    for line, row in zip(grid, places, strict=False):
        for axes in line[len(row) :]:
            axes.set_visible(False)
        for i, place in enumerate(row):
            yield line[i], place, i == 0


def set_percent_axes(axes: Axes, *directions: str) -> None:
    """Format these axes of a panel in percent, with light grid lines."""
    for direction in directions:
        axis = getattr(axes, f"{direction}axis")
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.6g} %"))
        axis.grid(color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)


def set_whole_number_axis(axis: Axis, about: int = 6) -> None:
    """Put ticks only at whole numbers, for axes of rounds and clients."""
    # at least two ticks, the default, would put fractions on a range with a single whole number
    axis.set_major_locator(MaxNLocator(about, integer=True, min_n_ticks=1))


def label_ticks(axis: Axis, names: Sequence[str], inches: float) -> None:
    """Label the ticks of an axis with names, or every n-th tick if there is no room for all."""
    plain = map(clean_line, names)
    short = [name if len(name) <= 16 else f"{name[:15]}…" for name in plain]
    longest = max(map(len, short), default=1)
    upright = axis.axis_name == "x" and longest > 4  # type: ignore[attr-defined]
    need = 0.1 * longest + 0.12 if axis.axis_name == "x" and not upright else 0.2  # type: ignore[attr-defined]
    steps = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
    step = next((s for s in steps if len(names) * need <= s * inches), len(names))
    shown = range(0, len(names), step)
    axis.set_ticks([i + 0.5 for i in shown], [short[i].replace("$", r"\$") for i in shown])
    axis.set_tick_params(rotation=90 if upright else 0)


def label_line_ends(axes: Axes, ends: Sequence[PointLabel]) -> None:
    """Write the name of each line to the right of the panel, joined to its end by a thin line."""
    ends = sorted(ends, key=lambda end: end.y)
    low, high = axes.get_ylim()
    lines = max((end.name.count("\n") + 1 for end in ends), default=1)
    heights = spread_label_heights(
        [(end.y - low) / (high - low) for end in ends], gap=0.064 * lines
    )
    for end, height in zip(ends, heights, strict=True):
        connector = {"arrowstyle": "-", "color": end.color, "lw": 0.7, "shrinkA": 1, "shrinkB": 2}
        connector["relpos"] = (0, 0.5)  # end at the first letter, not across other names
        axes.annotate(
            end.name,
            xy=(end.x, end.y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            color=end.color,
            va="center",
            fontweight="bold",
            annotation_clip=False,
            arrowprops=connector,
        )


def label_points(axes: Axes, points: Sequence[PointLabel]) -> None:
    """Write the name of each point on a side with room, without overlap with other names."""
    axes.autoscale_view()  # before it, the positions are not known
    to_axes = axes.transData + axes.transAxes.inverted()
    rising = sorted(points, key=lambda p: p.y)
    positions = [to_axes.transform((p.x, p.y)) for p in rising]
    heights = spread_label_heights([y for _, y in positions], gap=0.064)
    for point, (x, _), height in zip(rising, positions, heights, strict=True):
        on_the_right = x < 0.5
        axes.text(
            x + (0.035 if on_the_right else -0.035),
            height,
            point.name,
            transform=axes.transAxes,
            ha="left" if on_the_right else "right",
            va="center",
            color=point.color,
            fontweight="bold",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )


def spread_label_heights(rising: Sequence[float], gap: float) -> list[float]:
    """Move the heights of labels, ascending in 0…1, until they are ``gap`` apart."""
    clusters: list[list[float]] = []
    for height in rising:
        clusters.append([height])
        while (
            len(clusters) > 1
            and compute_cluster_bottom(clusters[-1], gap)
            < compute_cluster_top(clusters[-2], gap) + gap
        ):
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    return [
        compute_cluster_bottom(cluster, gap) + gap * i
        for cluster in clusters
        for i in range(len(cluster))
    ]


def compute_cluster_bottom(cluster: Sequence[float], gap: float) -> float:
    """Return the height of the lowest label in a cluster, which stays inside the panel if it fits."""
    length = gap * (len(cluster) - 1)
    return max(0.0, min(sum(cluster) / len(cluster) - length / 2, 1.0 - length))


def compute_cluster_top(cluster: Sequence[float], gap: float) -> float:
    """Return the height of the highest label in a cluster."""
    return compute_cluster_bottom(cluster, gap) + gap * (len(cluster) - 1)


COINCIDING_FRACTION = 0.004  # fraction of the panel's height; closer lines cover each other
STRIPE_WIDTHS = 5.0  # length of a stripe, in line widths


class Stretch(NamedTuple):
    """A stretch where drawn lines coincide: their indices, and the first and last x."""

    members: tuple[int, ...]
    first: float
    last: float


def draw_stripes(axes: Axes, lines: Sequence[DrawnLine], linewidth: float) -> None:
    """Draw stripes in the colours of all lines where they coincide."""
    low, high = axes.get_ylim()
    for members, first, last in find_coinciding(lines, COINCIDING_FRACTION * (high - low)):
        for i, line in enumerate(lines[m] for m in members[:-1]):
            points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if first <= x <= last]
            gap = STRIPE_WIDTHS * (len(members) - 1)
            dashes = (-STRIPE_WIDTHS * i, (STRIPE_WIDTHS, gap))
            axes.plot(
                *zip(*points, strict=True),
                color=line.color,
                linewidth=linewidth,
                linestyle=dashes,
                dash_capstyle="butt",
                label="_stripe",  # not in a legend
            )


def find_coinciding(lines: Sequence[DrawnLine], near: float) -> list[Stretch]:
    """Find the stretches in which drawn lines are closer to each other than ``near``."""
    segments: dict[tuple[float, float], list[tuple[int, float, float]]] = {}
    for k, line in enumerate(lines):
        points = list(zip(line.x, line.y, strict=True))
        for (left, y), (right, z) in pairwise(points):
            segments.setdefault((left, right), []).append((k, y, z))
    found: list[Stretch] = []
    for (left, right), together in sorted(segments.items()):
        for members in group_near_segments(together, near):
            before = next((s for s in found if s.members == members and s.last == left), None)
            if before:
                found.remove(before)
            found.append(Stretch(members, before.first if before else left, right))
    return found


def group_near_segments(
    segments: Sequence[tuple[int, float, float]], near: float
) -> Iterator[tuple[int, ...]]:
    """Yield the indices of lines whose segments between the same two x values are closer than ``near``."""
    groups: list[list[tuple[int, float, float]]] = []
    for own in segments:
        for group in groups:
            if abs(group[0][1] - own[1]) < near and abs(group[0][2] - own[2]) < near:
                group.append(own)
                break
        else:
            groups.append([own])
    yield from (tuple(k for k, _, _ in group) for group in groups if len(group) > 1)
