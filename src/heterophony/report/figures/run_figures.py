"""Figures of runs: curves, trade-off, differences, participation, and images of an audit."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from ...algorithms import get_display_name
from ...core.errors import ConfigError
from ...core.files import write_atomically
from ...core.scores import SCORES
from ...results import label_distribution
from ...results.comparison import compare_runs
from ...results.runs import Run, group_by_series
from ...results.statistics import DifferenceCurve, compare_over_rounds, find_reference
from ..page.page_data import AuditRecord, describe_shown_rounds, select_images
from . import style

MAX_DIRECT_LABELS = 10  # most names that fit next to their lines
MAX_LABEL_LENGTH = 18  # most letters of a name that fits next to its line
PARTICIPATION_COLORS = ("white", "#F0A35E", style.PALETTE[0])  # not selected, no reply, trained
SAME_PLACE = 0.002  # accuracy difference below which points cover each other
FIGURE_FORMATS = (".png", ".svg", ".pdf")


def draw_comparison(runs: Sequence[Run]) -> Figure:
    """Draw a comparison of runs: G and P over the rounds, and P against G."""
    with mpl.rc_context(style.STYLE):
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
    """Return True if series names fit next to their lines, so that no legend is needed."""
    names = list(group_by_series(runs))
    return len(names) <= MAX_DIRECT_LABELS and max(map(len, names)) <= MAX_LABEL_LENGTH


def draw_accuracy_panel(axes: Axes, runs: Sequence[Run], measure: str, title: str) -> None:
    """Draw G or P over the rounds: one line per series, with ± one std over its seeds."""
    groups = group_by_series(runs).items()
    curves = {name: (i, [r.curves[measure] for r in own]) for i, (name, own) in enumerate(groups)}
    lines, ends = style.draw_mean_curves(axes, curves)
    lowest = min((v for line in lines for v in line.y), default=0)
    score = SCORES.get(runs[0].start.get("task", "classification"), "score")
    axes.set(title=title, xlabel="round", ylabel=score, ylim=(min(0, lowest), 1.02))
    axes.margins(x=0)
    style.draw_stripes(axes, lines, style.LINE_WIDTH)
    style.set_whole_number_axis(axes.xaxis)
    style.set_percent_axes(axes, "y")
    if can_label_directly(runs):
        style.label_line_ends(axes, ends)


def draw_trade_off(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw P against G over the last ten evaluations; the upper right is best."""
    color = {
        name: style.get_series_style(i)["color"] for i, name in enumerate(group_by_series(runs))
    }
    points = []
    for row in compare_runs(runs):
        g, p = (row.get_cell(f"{measure}.last10") for measure in "GP")
        if isinstance(g.value, float) and isinstance(p.value, float):
            point = style.PointLabel(row.name, g.value, p.value, color[row.name])
            axes.errorbar(
                g.value, p.value, xerr=g.std, yerr=p.std, color=point.color, lw=1, alpha=0.45
            )
            points.append(point)
    for i, point in enumerate(points):
        # points at the same place become rings: the lower ones are larger
        above = sum(np.hypot(point.x - p.x, point.y - p.y) < SAME_PLACE for p in points[i + 1 :])
        axes.plot(point.x, point.y, "o", markersize=9 + 5 * min(3, above), color=point.color)
    axes.set(title="P against G, last 10", xlabel="G last 10 (± std)", ylabel="P last 10 (± std)")
    axes.margins(0.15)
    style.set_percent_axes(axes, "x", "y")
    if can_label_directly(runs):
        style.label_points(axes, points)


# Participation ------------------------------------------------------------------------------


def draw_participation(runs: Sequence[Run]) -> Figure:
    """Draw how often every client took part and, below, in which rounds."""
    first, *others = label_distribution.collect_participation(runs)
    if others:
        raise ConfigError(
            f"different clients took part in '{first.run_labels[0]}' and '{others[0].run_labels[0]}';"
            " draw one run at a time"
        )
    rounds, n = first.matrix.shape
    wide = min(13.0, max(7.0, 0.3 * n))
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(wide + 1.5, min(11.0, 4.5 + 0.05 * rounds)), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        draw_participation_counts(above, first)
        above.set_title(f"Participation of {n} clients in {rounds} rounds (dashed: the mean)")
        below.pcolormesh(
            first.matrix,
            cmap=ListedColormap(PARTICIPATION_COLORS),
            vmin=label_distribution.NOT_SELECTED,
            vmax=label_distribution.TRAINED,
            rasterized=True,
        )
        below.set(xlabel="client", ylabel="round", xlim=(0, n))
        style.set_whole_number_axis(below.yaxis, 8)
        below.invert_yaxis()
        below.tick_params(length=0)
        style.label_ticks(below.xaxis, first.clients, wide)
        if (first.matrix == label_distribution.NO_REPLY).any():
            labels = zip(
                PARTICIPATION_COLORS[1:],
                ("selected, but no reply in time", "took part"),
                strict=True,
            )
            patches = [Patch(color=color, label=label) for color, label in labels]
            figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_participation_counts(
    axes: Axes, participation: label_distribution.ParticipationMatrix
) -> None:
    """Draw how many rounds each client trained in, as bars with rounds without a reply on top."""
    at, trained = np.arange(len(participation.clients)) + 0.5, participation.rounds_trained
    axes.bar(at, trained, 0.8, color=PARTICIPATION_COLORS[label_distribution.TRAINED], linewidth=0)
    axes.bar(
        at,
        participation.rounds_selected - trained,
        0.8,
        bottom=trained,
        color=PARTICIPATION_COLORS[label_distribution.NO_REPLY],
        linewidth=0,
    )
    axes.axhline(float(trained.mean()), color=style.TEXT_COLOR, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_ylabel("rounds")
    style.set_whole_number_axis(axes.yaxis, 4)
    axes.yaxis.grid(color=style.GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0, labelbottom=False)
    axes.spines["left"].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG, SVG or PDF, by the path's suffix; the same figure gives the same bytes."""
    kind = path.suffix.lower()
    if kind not in FIGURE_FORMATS:
        raise ConfigError(
            f"{path}: a figure is saved as {', '.join(FIGURE_FORMATS)},"
            " a page as .html, the table of runs as .csv, .md, .tex"
        )
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[kind]
    content = BytesIO()
    with mpl.rc_context(style.STYLE):
        figure.savefig(content, format=kind[1:], dpi=160, metadata=undated)
    write_atomically(path, content.getvalue())


SMOOTHING = 9  # evaluations of the thick line's mean
MEASURE_TITLES = {"G": "G: the generic model", "P": "P: each client's own model"}


def draw_differences(runs: Sequence[Run], reference: str | None = None) -> Figure:
    """Draw G and P of every series minus the reference's, in percentage points."""
    base = find_reference(runs, reference)
    names = list(group_by_series(runs))
    panels = {m: compare_over_rounds(runs, base, m) for m in MEASURE_TITLES}
    if not any(panels.values()):
        raise ConfigError(
            f"no other series has a run with the same seed and data as a run of {base},"
            " so there is no difference to draw"
        )
    with mpl.rc_context(style.STYLE):
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        for axes, (measure, raw) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            smooth = compare_over_rounds(runs, base, measure, SMOOTHING)
            draw_difference_panel(axes, raw, smooth, names)
            axes.set_title(MEASURE_TITLES[measure])
            axes.set_ylabel(f"difference from {base}, points")
        figure.supxlabel(describe_lines(panels), fontsize=10, color=style.TEXT_COLOR)
    return figure


def describe_lines(panels: dict[str, list[DifferenceCurve]]) -> str:
    """Describe the lines and bands of a figure of differences, and the number of seeds."""
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
    """Draw the difference of every series: a smoothed line with its interval or, for one seed, a thin line."""
    ends = []
    for each, curve in zip(raw, smooth, strict=True):
        line = style.get_series_style(names.index(curve.name))
        at = np.array([p.t for p in curve.points])
        mean = 100 * np.array([p.mean for p in curve.points])
        axes.plot(at, mean, linewidth=style.LINE_WIDTH, label=curve.name, **line)
        if len(curve.seeds) == 1:
            points = [(p.t, 100 * p.mean) for p in each.points]
            axes.plot(*zip(*points, strict=True), linewidth=0.8, alpha=0.4, color=line["color"])
        edges = [p.interval for p in curve.points if p.interval]
        if edges:
            low, high = (
                100 * np.array([getattr(e, side) for e in edges]) for side in ("low", "high")
            )
            axes.fill_between(at, low, high, color=line["color"], alpha=0.15, lw=0)
        ends.append(style.PointLabel(curve.name, at[-1], mean[-1], line["color"]))
    axes.axhline(0, color=style.TEXT_COLOR, linewidth=1)
    axes.set_xlabel("round")
    axes.margins(x=0)
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda v, _: f"{v:+g}".replace("-", "−") if v else "0")
    )
    style.set_whole_number_axis(axes.xaxis)
    style.label_line_ends(axes, ends)


IMAGE_INCHES = 0.95  # side of an image


def draw_contact_sheet(records: Sequence[AuditRecord]) -> Figure:
    """Draw the images of a privacy audit: one row per original, with its reconstructions and PSNR."""
    originals, columns, attacks = select_images(records)
    shape = tuple(records[0]["shape"])
    with mpl.rc_context(style.STYLE):
        figure = Figure(layout="constrained")
        wide = 1 + len(columns)
        figure.set_size_inches(
            1.0 + IMAGE_INCHES * 1.15 * wide, 1.4 + IMAGE_INCHES * 1.3 * len(originals)
        )
        grid = figure.subplots(len(originals), wide, squeeze=False)
        for row, original in zip(grid, originals, strict=True):
            draw_image(row[0], original["original"], shape, f"client {original['client']}")
            for axes, (name, private) in zip(row[1:], columns, strict=True):
                r = attacks[name, private, original["client"], original["image"]]
                draw_image(axes, r["picture"], shape, f"{r['psnr']:.1f} dB")
        titles = [
            "original",
            *(f"{get_display_name(name)}\n{private}" for name, private in columns),
        ]
        for axes, title in zip(grid[0], titles, strict=True):
            axes.set_title(title, fontsize=10, loc="center")
        style.set_figure_title(
            figure,
            f"{records[0]['data']} {describe_shown_rounds(records)}: images recovered from what clients send;"
            "\nthe attacker draws the personal parameters anew (fresh), uses their initial values, or knows them",
            12,
        )
    return figure


def draw_image(axes: Axes, encoded: str, shape: tuple[int, ...], caption: str) -> None:
    """Draw one image of a privacy audit with its caption."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.imshow(
        decode_pixels(encoded, shape), cmap="gray", vmin=0, vmax=255, interpolation="nearest"
    )
    axes.set_xlabel(
        caption,
        fontsize=9,
        color=style.TEXT_COLOR if caption.endswith("dB") else style.MUTED_COLOR,
        labelpad=2,
    )


def decode_pixels(encoded: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode an audit's image from Base64 to rows × columns (× channels if it has colour)."""
    values = np.frombuffer(base64.b64decode(encoded), np.uint8).reshape(shape)
    return values.transpose(1, 2, 0).squeeze(-1) if shape[0] == 1 else values.transpose(1, 2, 0)
