"""Figures of a federation's label distribution and of FedReG's augmented copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from ...algorithms.fedreg import FedReG
from ...algorithms.parts import rebalancing
from ...core.errors import ConfigError, choose
from ...core.randomness import seeded
from ...data.federation import Federation
from ...results.label_distribution import LabelDistribution
from .style import (
    GRID_COLOR,
    HEATMAP_COLORMAP,
    MUTED_COLOR,
    PALETTE,
    STYLE,
    TEXT_COLOR,
    label_ticks,
    set_figure_title,
)

ChartKind = Literal["all", "heat", "bubbles", "sizes", "histograms"]
MAX_NUMBERED_SIDE = 20  # most clients and classes for which the heat map shows its numbers
MAX_CLIENTS_BESIDE = 25  # most clients for which heat map and bubbles fit side by side
MAX_HISTOGRAMS, HISTOGRAMS_BESIDE = 12, 4  # number of clients shown, and how many in a row
GREY = "#9AA7B1"


def draw_label_distribution(distribution: LabelDistribution, kind: ChartKind = "all") -> Figure:
    """Draw one chart of a label distribution, or all of them in one figure."""
    width, height = compute_panel_size(distribution)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if kind == "all":
            draw_all_charts(figure, distribution)
        elif kind == "heat":
            figure.set_size_inches(width + 2.4, height + 2.4)
            above, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, height))
            draw_totals(above, distribution)
            draw_label_heatmap(axes, distribution)
        elif kind == "bubbles":
            figure.set_size_inches(width + 2.6, height + 1.3)
            axes = figure.subplots()
            draw_bubbles(axes, distribution)
            axes.set_title(distribution.title)
        elif kind == "histograms":
            draw_histograms(figure, distribution)
        else:
            figure.set_size_inches(max(9.5, width + 1.6), 4.4)
            draw_client_sizes(figure.subplots(), distribution)
    return figure


def draw_histograms(figure: Figure, distribution: LabelDistribution) -> None:
    """Draw the label histograms of the first clients, one panel each, on the same scale."""
    clients, classes = distribution.clients[:MAX_HISTOGRAMS], distribution.classes
    beside = min(len(clients), HISTOGRAMS_BESIDE)
    rows, width = -(-len(clients) // beside), min(5.0, max(2.4, 0.1 * len(classes)))
    figure.set_size_inches(0.8 + width * beside, 1.2 + 1.9 * rows)
    grid = figure.subplots(rows, beside, sharex=True, sharey=True, squeeze=False)
    for i, axes in enumerate(grid.flat):
        if i >= len(clients):
            axes.set_visible(False)
            continue
        at = np.arange(len(classes)) + 0.5
        axes.bar(at, distribution.label_counts[i], 0.8, color=PALETTE[0], linewidth=0)
        axes.set_title(f"client {clients[i]}", fontsize=10)
        label_ticks(axes.xaxis, classes, width)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.tick_params(length=0, labelsize=8)
    few = len(clients) < len(distribution.clients)
    title = f"{distribution.title}{f': the first {len(clients)}' if few else ''}"
    set_figure_title(figure, title)
    figure.supylabel("training examples", fontsize=11)


def draw_all_charts(figure: Figure, distribution: LabelDistribution) -> None:
    """Draw heat map, bubbles and client sizes of a label distribution in two rows, or three for many clients."""
    width, height = compute_panel_size(distribution)
    beside = len(distribution.clients) <= MAX_CLIENTS_BESIDE
    if beside:
        figure.set_size_inches(2 * width + 4, height + 5)
        layout, ratios = "hb;ss", [height + 0.6, 3.0]
    else:
        figure.set_size_inches(width + 2.6, 2 * height + 6)
        layout, ratios = "h;b;s", [height, height, 2.6]
    axes = figure.subplot_mosaic(layout, height_ratios=ratios)
    draw_label_heatmap(axes["h"], distribution)
    draw_bubbles(axes["b"], distribution)
    draw_client_sizes(axes["s"], distribution)
    axes["h"].set_title("Training examples")
    axes["b"].set_title("The same as bubbles")
    set_figure_title(figure, distribution.title, 15)


def compute_panel_size(distribution: LabelDistribution) -> tuple[float, float]:
    """Return width and height of a panel of clients × classes in inches, at most a large page."""
    width = min(12.0, max(4.5, 0.42 * len(distribution.clients)))
    return width, min(11.0, max(3.0, 0.27 * len(distribution.classes)))


# Panels -------------------------------------------------------------------------------------


def draw_label_heatmap(axes: Axes, distribution: LabelDistribution) -> None:
    """Draw the number of examples of every class (row) and client (column) as colours."""
    counts = distribution.label_counts.T
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, counts.max(initial=1)))
    some = np.ma.masked_equal(counts, 0)  # so that a few examples do not look like none
    image = axes.pcolormesh(some, cmap=HEATMAP_COLORMAP, norm=norm, rasterized=True)
    small = max(counts.shape) <= 60
    image.set(edgecolor="white" if small else "none", linewidth=0.8 if small else 0.0)
    width, height = compute_panel_size(distribution)
    colorbar_axes = axes.inset_axes(
        (1.0 + 0.12 / width, 1 - min(1, 3 / height), 0.16 / width, min(1, 3 / height))
    )
    scale = axes.figure.colorbar(image, cax=colorbar_axes, label="examples")
    scale.outline.set_visible(False)
    colorbar_axes.tick_params(length=0)
    scale.locator = MaxNLocator(5, integer=True)
    if max(counts.shape) <= MAX_NUMBERED_SIDE:
        write_cell_counts(axes, counts)
    set_client_class_axes(axes, distribution)


def write_cell_counts(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Write the number of examples into each cell of the heat map."""
    digits = len(str(counts.max(initial=1)))
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > 0.22 * counts.max() else TEXT_COLOR
            center, size = (column + 0.5, row + 0.5), 10 if digits <= 3 else 8
            axes.text(*center, str(count), ha="center", va="center", color=color, fontsize=size)


def draw_bubbles(axes: Axes, distribution: LabelDistribution) -> None:
    """Draw one disc per client and class, whose area is the number of examples."""
    width, height = compute_panel_size(distribution)
    cell = 72 * min(width / len(distribution.clients), height / len(distribution.classes))
    largest = min(22.0, max(14.0, 0.95 * cell)) ** 2  # points²; where cells are tiny, discs overlap
    most = max(1, int(distribution.label_counts.max(initial=1)))
    client, label = distribution.label_counts.nonzero()
    areas = distribution.label_counts[client, label] * largest / most
    style = {"color": PALETTE[0], "linewidths": 0.0, "alpha": 0.7}
    axes.scatter(client + 0.5, label + 0.5, s=areas, **style)  # type: ignore[arg-type]
    legend_counts = choose_legend_counts(most)
    keys = [axes.scatter([], [], s=n * largest / most, **style) for n in legend_counts]  # type: ignore[arg-type]
    axes.legend(
        keys,
        [f"{n:,}".replace(",", "\u202f") for n in legend_counts],
        title="examples",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        labelspacing=0.9,
    )
    axes.set(xlim=(0, len(distribution.clients)), ylim=(0, len(distribution.classes)))
    set_client_class_axes(axes, distribution)
    axes.spines[["left", "bottom"]].set_visible(True)


def choose_legend_counts(most: int) -> list[int]:
    """Choose up to four round example counts for the bubble legend, the largest close to ``most``."""
    power = 10 ** (len(str(most)) - 1)
    top = next(n * power for n in (5, 2, 1) if n * power <= most)
    return sorted({n for n in (top // 20, top // 5, top // 2, top) if n})


def draw_client_sizes(axes: Axes, distribution: LabelDistribution) -> None:
    """Draw each client's number of examples and, with rebalancing, the number it trains on."""
    at, after = np.arange(len(distribution.clients)), distribution.balanced
    most, title = distribution.train_sizes.max(initial=1), "Training examples of the clients"
    if after is None:
        axes.bar(at + 0.5, distribution.train_sizes, 0.8, color=GREY, linewidth=0)
    else:
        axes.bar(
            at + 0.3, distribution.train_sizes, 0.4, color=GREY, linewidth=0, label="own examples"
        )
        draw_bars = partial(axes.bar, at + 0.7, width=0.4, linewidth=0)
        draw_bars(after.num_kept, color=PALETTE[0], label="balanced: kept")
        draw_bars(
            after.num_copies, bottom=after.num_kept, color="#F0A35E", label="balanced: augmented"
        )
        title += f"\nbefore and after FedReG's balancing to {after.target_rule}"
        most = max(most, after.train_sizes.max(initial=1))
        axes.legend(loc="upper left", ncols=3, frameon=True, framealpha=1, edgecolor="none")
        axes.set_ylim(0, 1.2 * most)  # room for the legend
    axes.set_title(title)
    axes.set(xlim=(0, len(distribution.clients)), xlabel="client", ylabel="examples")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.grid(color=GRID_COLOR, linewidth=0.8)
    label_ticks(axes.xaxis, distribution.clients, compute_panel_size(distribution)[0])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def draw_totals(axes: Axes, distribution: LabelDistribution) -> None:
    """Draw each client's number of examples as a bar above its column of the heat map."""
    axes.bar(
        np.arange(len(distribution.clients)) + 0.5,
        distribution.train_sizes,
        0.8,
        color=GREY,
        linewidth=0,
    )
    axes.set_title(distribution.title)
    axes.set_ylabel("total")
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.tick_params(length=0, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)


# Axes ---------------------------------------------------------------------------------------


def set_client_class_axes(axes: Axes, distribution: LabelDistribution) -> None:
    """Label clients on the horizontal and classes on the vertical axis."""
    width, height = compute_panel_size(distribution)
    axes.set(xlabel="client", ylabel="class")
    label_ticks(axes.xaxis, distribution.clients, width)
    label_ticks(axes.yaxis, distribution.classes, height)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(MUTED_COLOR)


ORIGINAL = "original"
IMAGE_INCHES = 0.8  # side of an image
COLUMN_GAP = 0.2  # between two augmentations, as a fraction of an image


class ClassCopies(NamedTuple):
    """The first augmented copies of one class, and how many examples and copies the class has."""

    label: str
    num_examples: int  # the client's own examples of the class
    num_copies: int  # augmented copies that are added to them
    images: dict[str, Tensor]  # by augmentation; ORIGINAL has the copied images


class AugmentedCopies(NamedTuple):
    """The augmented copies of a client's images, for all classes that have any."""

    client: str
    target_rule: str
    max_value: float  # the largest stored value
    classes: list[ClassCopies]


def make_augmented_copies(
    federation: Federation, algorithm: FedReG, seed: int, client: str | None, few: int
) -> AugmentedCopies:
    """Make the augmented copies that a client trains on in a run of FedReG with this seed.

    ``client`` defaults to the client with the most copies; ``few`` limits the copies per class.
    """
    rule = (algorithm.threshold, algorithm.threshold_scope)
    by_client = rebalancing.compute_class_targets(torch.tensor(federation.count_labels()), *rule)
    targets = dict(zip(federation.clients, by_client, strict=True))
    name = find_most_augmented_client(federation, targets) if client is None else client
    choose(targets, name, "--client")
    train = federation.data(name).train
    with seeded(*rebalancing.build_seed_key(seed, name)):
        originals, sources = rebalancing.choose_balanced_examples(train, targets[name])
    if not len(sources):
        raise ConfigError(
            f"client '{name}' has the same number of examples of each of its classes, so nothing is copied"
        )
    copies = {}
    for augmentation in rebalancing.AUGMENTATIONS:
        with seeded(*rebalancing.build_seed_key(seed, name)):
            made = rebalancing.rebalance(train, targets[name], augmentation, algorithm.magnitude)
        copies[augmentation] = made.get_all_stored()[len(originals) :]
    classes, labels = [], train.labels[sources]
    for c in labels.unique().tolist():
        at = (labels == c).nonzero().flatten()
        num_examples, shown = int((train.labels == c).sum()), at[:few]
        images = {ORIGINAL: train.get_stored(sources[shown])}
        images |= {augmentation: x[shown] for augmentation, x in copies.items()}
        classes.append(ClassCopies(federation.labels[c], num_examples, len(at), images))
    return AugmentedCopies(
        name, rebalancing.describe_class_target(*rule), train.scale.unit, classes
    )


def find_most_augmented_client(federation: Federation, targets: Mapping[str, int]) -> str:
    """Return the client that gets the most augmented copies."""
    counts = zip(targets, torch.tensor(federation.count_labels()), strict=True)
    copied = {c: rebalancing.count_kept_and_copied(row, targets[c])[1] for c, row in counts}
    return max(copied, key=lambda c: copied[c])


# Drawing ------------------------------------------------------------------------------------


def draw_augmented_copies(copies: AugmentedCopies, name: str) -> Figure:
    """Draw a client's augmented copies, one row per class: original images and their copies."""
    columns = list(copies.classes[0].images)
    few = max(len(c.images[ORIGINAL]) for c in copies.classes)
    widths = ([1.0] * few + [COLUMN_GAP]) * len(columns)
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        figure.set_size_inches(
            1.6 + IMAGE_INCHES * sum(widths), 0.9 + IMAGE_INCHES * len(copies.classes)
        )
        grid = figure.subplots(len(copies.classes), len(widths), squeeze=False, width_ratios=widths)
        for row, copied in zip(grid, copies.classes, strict=True):
            for i, column in enumerate(columns):
                start = i * (few + 1)
                draw_image_row(
                    row[start : start + few + 1], copied.images[column], copies.max_value
                )
            text = f"{copied.label}\n{copied.num_examples} + {copied.num_copies}"
            label = {
                "rotation": 0,
                "ha": "right",
                "va": "center",
                "fontsize": 10,
                "color": TEXT_COLOR,
            }
            row[0].set_ylabel(text, **label)
        for i, column in enumerate(columns):
            grid[0, i * (few + 1)].set_title(column)
        title = f"{name}, client {copies.client}: examples + augmented copies of each class,"
        set_figure_title(figure, f"{title}\nbalanced by FedReG to {copies.target_rule}")
    return figure


def draw_image_row(row: Sequence[Axes], images: Tensor, max_value: float) -> None:
    """Draw one row of a client's example images; leave unused axes blank."""
    for axes in row:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, image in zip(row, images, strict=False):
        pixels = (image.float() / max_value).movedim(0, -1).squeeze(-1).numpy()
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
