"""Pictures of who holds what: a heat map, a bubble chart, and the sizes of the clients."""

from __future__ import annotations

from functools import partial
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ...analysis.label_distribution import LabelDistribution
from .style import (
    GRID_COLOR,
    HEATMAP_COLORMAP,
    MUTED_COLOR,
    PALETTE,
    STYLE,
    TEXT_COLOR,
    label_ticks,
)

ChartKind = Literal["all", "heat", "bubbles", "sizes"]
MAX_NUMBERED_SIDE = 20  # up to so many clients and classes the map shows its numbers
MAX_CLIENTS_BESIDE = 25  # up to so many clients, heat map and bubbles stand side by side
GREY = "#9AA7B1"


def draw_label_distribution(held: LabelDistribution, kind: ChartKind = "all") -> Figure:
    """One of the pictures, or all of them in one figure."""
    wide, high = compute_panel_size(held)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if kind == "all":
            draw_all_charts(figure, held)
        elif kind == "heat":
            figure.set_size_inches(wide + 2.4, high + 2.4)
            above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, high))
            draw_totals(above, held)
            draw_heatmap(axes, held)
        elif kind == "bubbles":
            figure.set_size_inches(wide + 2.6, high + 1.3)
            axes = figure.subplots()
            draw_bubbles(axes, held)
            axes.set_title(held.title)
        else:
            figure.set_size_inches(max(9.5, wide + 1.6), 4.4)
            draw_client_sizes(figure.subplots(), held)
    return figure


def draw_all_charts(figure: Figure, held: LabelDistribution) -> None:
    """Heat map, bubbles and sizes: in two rows where there is room, else one below the other."""
    wide, high = compute_panel_size(held)
    beside = len(held.clients) <= MAX_CLIENTS_BESIDE
    if beside:
        figure.set_size_inches(2 * wide + 4, high + 5)
        places, ratios = "hb;ss", [high + 0.6, 3.0]
    else:
        figure.set_size_inches(wide + 2.6, 2 * high + 6)
        places, ratios = "h;b;s", [high, high, 2.6]
    axes = figure.subplot_mosaic(places, height_ratios=ratios)
    draw_heatmap(axes["h"], held)
    draw_bubbles(axes["b"], held)
    draw_client_sizes(axes["s"], held)
    axes["h"].set_title("Training examples")
    axes["b"].set_title("The same as areas")
    figure.suptitle(held.title, x=0.01, ha="left", fontweight="bold", fontsize=15)


def compute_panel_size(held: LabelDistribution) -> tuple[float, float]:
    """Inches that a panel of clients × classes gets: cells of a good size, up to a large page."""
    wide = min(12.0, max(4.5, 0.42 * len(held.clients)))
    return wide, min(11.0, max(3.0, 0.27 * len(held.classes)))


# Panels -------------------------------------------------------------------------------------


def draw_heatmap(axes: Axes, held: LabelDistribution) -> None:
    """Examples of every class (rows) at every client (columns), as colours."""
    counts = held.label_counts.T
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, counts.max(initial=1)))
    some = np.ma.masked_equal(counts, 0)  # a few examples must not look like none
    image = axes.pcolormesh(some, cmap=HEATMAP_COLORMAP, norm=norm, rasterized=True)
    small = max(counts.shape) <= 60
    image.set(edgecolor="white" if small else "none", linewidth=0.8 if small else 0.0)
    wide, high = compute_panel_size(held)
    beside = axes.inset_axes(
        (1.0 + 0.12 / wide, 1 - min(1, 3 / high), 0.16 / wide, min(1, 3 / high))
    )
    scale = axes.figure.colorbar(image, cax=beside, label="examples")
    scale.outline.set_visible(False)
    beside.tick_params(length=0)
    scale.locator = MaxNLocator(5, integer=True)
    if max(counts.shape) <= MAX_NUMBERED_SIDE:
        write_cell_counts(axes, counts)
    set_client_class_axes(axes, held)


def write_cell_counts(axes: Axes, counts: NDArray[np.int64]) -> None:
    digits = len(str(counts.max(initial=1)))
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > 0.22 * counts.max() else TEXT_COLOR
            place, size = (column + 0.5, row + 0.5), 10 if digits <= 3 else 8
            axes.text(*place, str(count), ha="center", va="center", color=color, fontsize=size)


def draw_bubbles(axes: Axes, held: LabelDistribution) -> None:
    """A disc per client and class, its area the number of examples: the field's own picture."""
    wide, high = compute_panel_size(held)
    cell = 72 * min(wide / len(held.clients), high / len(held.classes))
    largest = min(22.0, max(14.0, 0.95 * cell)) ** 2  # points²; where cells are tiny, discs overlap
    most = max(1, int(held.label_counts.max(initial=1)))
    client, label = held.label_counts.nonzero()
    areas = held.label_counts[client, label] * largest / most
    style = {"color": PALETTE[0], "linewidths": 0.0, "alpha": 0.7}
    axes.scatter(client + 0.5, label + 0.5, s=areas, **style)  # type: ignore[arg-type]
    shown = choose_legend_counts(most)
    keys = [axes.scatter([], [], s=n * largest / most, **style) for n in shown]  # type: ignore[arg-type]
    axes.legend(
        keys,
        [f"{n:,}".replace(",", "\u202f") for n in shown],
        title="examples",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        labelspacing=0.9,
    )
    axes.set(xlim=(0, len(held.clients)), ylim=(0, len(held.classes)))
    set_client_class_axes(axes, held)
    axes.spines[["left", "bottom"]].set_visible(True)


def choose_legend_counts(most: int) -> list[int]:
    """Up to four round numbers that explain the areas, the largest near ``most``."""
    power = 10 ** (len(str(most)) - 1)
    top = next(n * power for n in (5, 2, 1) if n * power <= most)
    return sorted({n for n in (top // 20, top // 5, top // 2, top) if n})


def draw_client_sizes(axes: Axes, held: LabelDistribution) -> None:
    """How many examples every client trains on, as they are and after rebalancing."""
    at, after = np.arange(len(held.clients)), held.balanced
    most, title = held.train_sizes.max(initial=1), "Training examples of the clients"
    if after is None:
        axes.bar(at + 0.5, held.train_sizes, 0.8, color=GREY, linewidth=0)
    else:
        axes.bar(at + 0.3, held.train_sizes, 0.4, color=GREY, linewidth=0, label="as they are")
        put = partial(axes.bar, at + 0.7, width=0.4, linewidth=0)
        put(after.num_kept, color=PALETTE[0], label="balanced: kept")
        put(after.num_copies, bottom=after.num_kept, color="#F0A35E", label="and augmented")
        title += f"\nbefore and after FedReG's balancing to {after.target_rule}"
        most = max(most, after.train_sizes.max(initial=1))
        axes.legend(loc="upper left", ncols=3, frameon=True, framealpha=1, edgecolor="none")
        axes.set_ylim(0, 1.2 * most)  # room for the legend
    axes.set_title(title)
    axes.set(xlim=(0, len(held.clients)), xlabel="client", ylabel="examples")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.grid(color=GRID_COLOR, linewidth=0.8)
    label_ticks(axes.xaxis, held.clients, compute_panel_size(held)[0])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def draw_totals(axes: Axes, held: LabelDistribution) -> None:
    """A bar per client, as wide as its column."""
    axes.bar(np.arange(len(held.clients)) + 0.5, held.train_sizes, 0.8, color=GREY, linewidth=0)
    axes.set_title(held.title)
    axes.set_ylabel("in all")
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.tick_params(length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)


# Axes ---------------------------------------------------------------------------------------


def set_client_class_axes(axes: Axes, held: LabelDistribution) -> None:
    """Clients to the right, classes down, by name."""
    wide, high = compute_panel_size(held)
    axes.set(xlabel="client", ylabel="class")
    label_ticks(axes.xaxis, held.clients, wide)
    label_ticks(axes.yaxis, held.classes, high)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(MUTED_COLOR)
