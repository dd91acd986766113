"""Figures of a reproduced table: bars next to the printed values, and curves over the rounds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ...papers.result_table import get_file_suffix
from ...papers.table import GENERIC_LOSS, TableScale
from ...results.runs import Curve
from ...runs.curves import compute_curves, compute_loss_curves
from ...runs.events import Event, get_start, select_rounds
from . import style
from .run_figures import save_figure

if TYPE_CHECKING:
    from ...papers.reproduce import CellRun, ReproductionResult
    from ...papers.verdicts import ComparedNumber


MARKERS = "os^"  # the marker changes after all colours of the palette are used
PRINTED_STYLE: Any = {"linestyle": (0, (3, 2)), "markerfacecolor": "white", "linewidth": 1}
MEASURE_LABELS = {"G": "G, %", "P": "P, %", "score": "ln(G / 10) + ln(P / 10)"}
SETTING_PATTERN = re.compile(r"(?P<name>.*?)(?: = | )(?P<number>[\d.]+)")
LABEL_LETTERS = 30  # in a line of a panel's title
CELL_INCHES = 0.75  # side of a cell of a heat map
LOG_SPAN = 50  # a setting whose values span this factor has a logarithmic axis


def is_comparable(result: ReproductionResult) -> bool:
    """Return True if our numbers can be compared with the printed ones: only at full scale."""
    return result.table.scale is TableScale.full


def list_distinct(values: Iterable[str]) -> list[str]:
    """List values without repetitions, in order."""
    return list(dict.fromkeys(values))


def get_column_label(numbers: Iterable[ComparedNumber], column: str) -> str:
    """Return the title of a column's panel: the data that were run, broken into lines."""
    label = next((x.label for x in numbers if x.column == column), column)
    return fill(label, LABEL_LETTERS)


def get_decimals(measure: str) -> int:
    """Return how many decimals of a measure the figures show."""
    return 2 if measure == "score" else 1


# Lines over a setting -----------------------------------------------------------------------


def draw_over_clients(figure: Figure, result: ReproductionResult) -> None:
    """Draw a reproduced table as one line per row over the number of clients."""
    count = {c.column: c.config["data"]["clients"] for c in result.table.selected_cells}
    axes = draw_setting_panels(figure, result, lambda x: x.row, lambda x: count[x.column])
    for panel in axes:
        panel.set_xlabel("clients")
        set_log_axis(panel, sorted(set(count.values())))


def set_log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic, with a tick at each of the values."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def draw_sweep(figure: Figure, result: ReproductionResult) -> None:
    """Draw a reproduced table as one line per column over the setting that the rows vary."""
    axes = draw_setting_panels(
        figure,
        result,
        lambda x: get_column_label([x], x.column),
        lambda x: float(parse_setting_label(x.row)[1]),
    )
    values = sorted({float(parse_setting_label(x.row)[1]) for x in result.numbers})
    for panel in axes:
        panel.set_xlabel(parse_setting_label(result.numbers[0].row)[0])
        if values[0] > 0 and values[-1] >= LOG_SPAN * values[0]:
            set_log_axis(panel, values)
        else:
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_setting_panels(
    figure: Figure,
    result: ReproductionResult,
    series: Callable[[ComparedNumber], str],
    at: Callable[[ComparedNumber], float],
) -> list[Axes]:
    """Draw one panel per measure of a reproduced table, with one line per series over a setting."""
    numbers, both = result.numbers, is_comparable(result)
    measures, names = (
        list_distinct(x.measure for x in numbers),
        list_distinct(map(series, numbers)),
    )
    drawn = []
    for axes, (measure, _), _ in style.create_panels(
        figure, [[(m, "") for m in measures]], (6.2, 4.8)
    ):
        ends = []
        for i, name in enumerate(names):
            mine = [x for x in numbers if series(x) == name and x.measure == measure]
            ends += draw_setting_line(axes, i, name, sorted(mine, key=at), at, both)
        axes.set_ylabel(MEASURE_LABELS.get(measure, measure))
        axes.grid(color=style.GRID_COLOR, linewidth=0.8)
        axes.tick_params(length=0)
        style.label_line_ends(axes, ends)
        drawn.append(axes)
    if both and any(x.printed for x in numbers):
        plain: dict[str, Any] = {"color": style.MUTED_COLOR, "marker": "o"}
        handles = [
            Line2D([], [], **plain, **PRINTED_STYLE, label="printed"),
            Line2D([], [], **plain, label="ours"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def draw_setting_line(
    axes: Axes,
    i: int,
    name: str,
    rising: Sequence[ComparedNumber],
    at: Callable[[ComparedNumber], float],
    both: bool,
) -> list[style.PointLabel]:
    """Draw a series over a setting, printed dashed and ours solid; return the labels of the line ends."""
    color = style.PALETTE[i % len(style.PALETTE)]
    marker = MARKERS[i // len(style.PALETTE) % len(MARKERS)]
    mark: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
    ends = []
    printed = [(at(x), x.printed.value) for x in rising if both and x.printed]
    if printed:
        axes.plot(*zip(*printed, strict=True), **mark, **PRINTED_STYLE, label=f"{name}, printed")
        ends = [style.PointLabel(name, *printed[-1], color)]
    ours = [(at(x), x.mean, x.std or 0.0) for x in rising if x.mean is not None]
    if ours:
        x, y, std = zip(*ours, strict=True)
        axes.plot(x, y, **mark, linewidth=1.7, label=name)
        if any(std):
            axes.errorbar(x, y, yerr=std, color=color, linestyle="", capsize=2, linewidth=1)
        ends = [style.PointLabel(name, x[-1], y[-1], color)]
    return ends


def parse_setting_label(label: str) -> tuple[str, str]:
    """Split a label such as ``E_lora = 2`` or ``batch 32`` into setting and value."""
    match = SETTING_PATTERN.fullmatch(label)
    return (match["name"], match["number"]) if match else ("", label)


# Heat maps ----------------------------------------------------------------------------------


def draw_grid(figure: Figure, result: ReproductionResult) -> None:
    """Draw a reproduced table as heat maps of rows against the setting in the column labels.

    A column ``CIFAR-10, R_c = 0.2`` is drawn in the panel ``CIFAR-10`` at 0.2.
    """
    numbers = result.numbers
    rows, measures = (
        list_distinct(x.row for x in numbers),
        list_distinct(x.measure for x in numbers),
    )
    across = list_distinct(x.column.rpartition(", ")[2] for x in numbers)
    sets = list_distinct(x.column.rpartition(", ")[0] for x in numbers)
    size = (1.2 + CELL_INCHES * len(across), 1.3 + CELL_INCHES * len(rows))
    for axes, (measure, name), _ in style.create_panels(
        figure, style.arrange_panels(sets, measures, 3), size
    ):
        here = {
            (x.row, x.column.rpartition(", ")[2]): x
            for x in numbers
            if (x.measure, x.column.rpartition(", ")[0]) == (measure, name)
        }
        draw_number_heatmap(
            axes, [[here.get((r, c)) for c in across] for r in rows], is_comparable(result)
        )
        label = name
        if stand_in := next((x for x in here.values() if x.in_place_of), None):
            sets_here = list_distinct(c.rpartition(", ")[0] for c in stand_in.in_place_of)
            label = f"{stand_in.setup} in place of {', '.join(sets_here)}"
        axes.set_title(fill(f"{label}: {measure}", LABEL_LETTERS))
        axes.set_xticks(np.arange(len(across)) + 0.5, [parse_setting_label(c)[1] for c in across])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [parse_setting_label(r)[1] for r in rows])
        axes.set(xlabel=parse_setting_label(across[0])[0], ylabel=parse_setting_label(rows[0])[0])


def draw_number_heatmap(
    axes: Axes, cells: Sequence[Sequence[ComparedNumber | None]], both: bool
) -> None:
    """Draw a heat map of our numbers, with the printed ones below them in brackets."""
    means = [[np.nan if x is None or x.mean is None else x.mean for x in row] for row in cells]
    texts = [[format_pair(x, both) if x else "" for x in row] for row in cells]
    style.draw_number_grid(axes, means, texts, fontsize=10)
    axes.set_aspect("equal")


def format_pair(number: ComparedNumber, both: bool) -> str:
    """Format our number, and the printed one in brackets below it."""
    digits = get_decimals(number.measure)
    ours = [] if number.mean is None else [f"{number.mean:.{digits}f}"]
    printed = number.printed if both else None
    return "\n".join([*ours, *([f"({printed.value:.{digits}f})"] if printed else [])])


LINE_INCHES = 0.3  # height of each further line of a title
VERDICT_COLORS = {
    "within noise": style.PALETTE[0],
    "better": style.PALETTE[2],
    "worse": style.PALETTE[1],
    "undecided": style.MUTED_COLOR,
}


def draw_bars(figure: Figure, result: ReproductionResult) -> None:
    """Draw a reproduced table as bars: hollow for printed numbers, filled for ours."""
    numbers, both = result.numbers, is_comparable(result)
    rows = list_distinct(number.row for number in numbers)
    columns, measures = (
        list_distinct(x.column for x in numbers),
        list_distinct(x.measure for x in numbers),
    )
    name_inches = 0.085 * max(map(len, rows))
    labels = {column: get_column_label(numbers, column) for column in columns}
    lines = max(label.count("\n") for label in labels.values())
    height = (0.44 if both else 0.3) * max(2, len(rows))  # titles need the room of two rows
    size = (3.1, 0.9 + LINE_INCHES * lines + height)
    for axes, (measure, column), first in style.create_panels(
        figure, style.arrange_panels(columns, measures, 4), size, name_inches
    ):
        here = {x.row: x for x in numbers if (x.measure, x.column) == (measure, column)}
        draw_bar_panel(axes, here, rows, both)
        axes.set_title(f"{labels[column]}: {measure}" if len(measures) > 1 else labels[column])
        axes.set_xlabel(MEASURE_LABELS.get(measure, measure))
        axes.set_xlim(0, 1.22 * find_longest_bar(here.values()))
        axes.set_yticks(range(len(rows)), rows if first else [], color=style.TEXT_COLOR)
    add_bar_legend(figure, numbers, both)


def draw_bar_panel(
    axes: Axes, here: Mapping[str, ComparedNumber], rows: Sequence[str], both: bool
) -> None:
    """Draw the bars of one column and measure, with their numbers."""
    height = 0.36 if both else 0.66
    for row, number in here.items():
        at = rows.index(row)
        if both and number.printed is not None:
            hollow = {"facecolor": "white", "edgecolor": style.MUTED_COLOR, "linewidth": 1}
            axes.barh(at - 0.2, number.printed.value, height, **hollow)  # type: ignore[arg-type]
            write_value(
                axes,
                number.printed.value,
                number.printed.std,
                at - 0.2,
                number.measure,
                style.MUTED_COLOR,
            )
        if number.mean is not None:
            color, y = VERDICT_COLORS.get(number.verdict, style.PALETTE[0]), at + 0.2 * both
            axes.barh(y, number.mean, height, color=color, linewidth=0)
            write_value(axes, number.mean, number.std, y, number.measure, style.TEXT_COLOR)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.grid(color=style.GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)


def write_value(
    axes: Axes, value: float, std: float | None, at: float, measure: str, color: str
) -> None:
    """Write a number at the end of its bar, after the error bar."""
    if std:
        axes.errorbar(value, at, xerr=std, color=style.TEXT_COLOR, linewidth=1, capsize=2)
    axes.annotate(
        f"{value:.{get_decimals(measure)}f}",
        (value + (std or 0), at),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=color,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def find_longest_bar(numbers: Iterable[ComparedNumber]) -> float:
    """Return the end of the longest bar, including error bars."""
    ends = [0.0]
    for number in numbers:
        ends.append((number.mean or 0) + (number.std or 0))
        if number.printed is not None:
            ends.append(number.printed.value + (number.printed.std or 0))
    return max(ends) or 1.0


def add_bar_legend(figure: Figure, numbers: Sequence[ComparedNumber], both: bool) -> None:
    """Add a legend of the bars: printed, and ours by verdict."""
    if not both:
        return
    handles = [Patch(facecolor="white", edgecolor=style.MUTED_COLOR, label="printed")]
    for verdict, color in VERDICT_COLORS.items():
        if any(number.verdict == verdict for number in numbers):
            handles.append(Patch(color=color, label=f"ours: {verdict}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


RunEvents = Iterable[tuple["CellRun", list[Event]]]
CurveReader = Callable[["CellRun", list[Event]], Mapping[str, Curve]]
# by measure and column, then by row: one curve per seed
CurvesByPanel = dict[tuple[str, str], dict[str, list[Curve]]]
ACCURACY_MEASURES = ("G", "P")
MODEL_DIFFERENCE, TIMES_SELECTED, PROBABILITY = "model_difference", "selected", "probability"
X_LABELS = {  # the others: rounds
    TIMES_SELECTED: "clients, the most often selected first",
    PROBABILITY: "clients, the most likely first",
}
Y_LABELS = {
    "G": "G: the generic model",
    "P": "P: each client's own model",
    GENERIC_LOSS: "test loss of G",
    MODEL_DIFFERENCE: "clients' distance from their mean",
    TIMES_SELECTED: "times selected",
    PROBABILITY: "probability in one draw",
}


def draw_accuracy_curves(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw a reproduced table as curves of G, P or G's test loss over the rounds."""
    curves = gather_curves(runs, lambda _, events: compute_paper_curves(result, events))
    measures = list(dict.fromkeys(line.measure for line in result.numbers if line.values))
    draw_round_panels(
        figure, result, curves, style.arrange_panels(list_columns(result), measures, 3)
    )


def draw_model_difference(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw the distance of clients' models from their mean over the rounds."""

    def read_difference(_: CellRun, events: list[Event]) -> dict[str, Curve]:
        rounds = [e for e in select_rounds(events) if MODEL_DIFFERENCE in e["measures"]]
        return {MODEL_DIFFERENCE: [(e["t"] + 1, e["measures"][MODEL_DIFFERENCE]) for e in rounds]}

    draw_round_panels(
        figure,
        result,
        gather_curves(runs, read_difference),
        style.arrange_panels(list_columns(result), [MODEL_DIFFERENCE], 3),
    )


def draw_participation(figure: Figure, result: ReproductionResult, runs: RunEvents) -> None:
    """Draw clients' selection probabilities and counts, and G over the rounds, for a reproduced table."""

    def read_participation(run: CellRun, events: list[Event]) -> dict[str, Curve]:
        likely = run.compute_selection_probabilities(len(get_start(events)["clients"]))
        return {
            PROBABILITY: rank_values(likely),
            TIMES_SELECTED: count_selections_by_rank(events),
            "G": compute_paper_curves(result, events)["G"],
        }

    measures = (PROBABILITY, TIMES_SELECTED, "G")
    panels = [[(measure, column) for measure in measures] for column in list_columns(result)]
    draw_round_panels(figure, result, gather_curves(runs, read_participation), panels)


# Reading ------------------------------------------------------------------------------------


def list_columns(result: ReproductionResult) -> list[str]:
    """List the columns of a reproduced table that have been run."""
    return list(dict.fromkeys(line.column for line in result.numbers if line.values))


def compute_paper_curves(result: ReproductionResult, events: list[Event]) -> dict[str, Curve]:
    """Return G and P as the paper computes them, and the pooled test loss of G."""
    curves = compute_curves(events, result.table.published.measured.clients)
    losses = compute_loss_curves(events)
    return {**{m: curves[m] for m in ACCURACY_MEASURES}, GENERIC_LOSS: losses["G"]}


def count_selections_by_rank(events: list[Event]) -> Curve:
    """Count how often each client was selected; return (rank, count), the largest first."""
    counts = Counter(dict.fromkeys(get_start(events)["clients"], 0))
    for event in select_rounds(events):
        counts.update(event.get("asked", event["clients"]))
    return rank_values(counts.values())


def rank_values(values: Iterable[float]) -> Curve:
    """Return values as (rank, value), the largest first."""
    return [(i + 1, v) for i, v in enumerate(sorted(values, reverse=True))]


def gather_curves(runs: RunEvents, read: CurveReader) -> CurvesByPanel:
    """Read the curves of a table's runs, by panel and row; leave out empty ones."""
    curves: CurvesByPanel = {}
    for cell_run, events in runs:
        for measure, curve in read(cell_run, events).items():
            if curve:
                rows = curves.setdefault((measure, cell_run.cell.column), {})
                rows.setdefault(cell_run.cell.row, []).append(curve)
    return curves


# Drawing ------------------------------------------------------------------------------------


def draw_round_panels(
    figure: Figure,
    result: ReproductionResult,
    curves: CurvesByPanel,
    panels: Sequence[Sequence[tuple[str, str]]],
) -> None:
    """Draw curves over the rounds: a panel per (measure, column) pair, a line per row."""
    rows = list(dict.fromkeys(line.row for line in result.numbers))
    for axes, (measure, column), _ in style.create_panels(figure, panels, (5.2, 3.9)):
        here = curves.get((measure, column), {})
        draw_round_panel(
            axes, {row: (i, here[row]) for i, row in enumerate(rows) if row in here}, measure
        )
        axes.set_title(get_column_label(result.numbers, column))


def draw_round_panel(
    axes: Axes, lines: Mapping[str, tuple[int, Sequence[Curve]]], measure: str
) -> None:
    """Draw a panel of curves over the rounds: each row's mean over the seeds, with ± one std."""
    drawn, ends = style.draw_mean_curves(axes, lines)
    axes.margins(x=0)
    style.set_whole_number_axis(axes.xaxis)
    axes.yaxis.grid(color=style.GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)
    if measure in ACCURACY_MEASURES:
        style.set_percent_axes(axes, "y")
    axes.set(xlabel=X_LABELS.get(measure, "round"), ylabel=Y_LABELS[measure])
    axes.set_ylim(bottom=0)
    style.draw_stripes(axes, drawn, style.LINE_WIDTH)
    style.label_line_ends(axes, ends)


TABLE_FIGURES = {
    "bars": draw_bars,
    "clients": draw_over_clients,
    "sweep": draw_sweep,
    "grid": draw_grid,
}
ROUND_FIGURES = {
    "curves": draw_accuracy_curves,
    "difference": draw_model_difference,
    "participation": draw_participation,
}
LETTERS_PER_INCH = 8  # in a title


def draw_paper_figure(
    result: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]]
) -> Figure:
    """Draw the kind of figure that a reproduced table's file specifies."""
    kind, draws = result.table.published.figure, result.table.published.draws
    result = replace(result, numbers=[x for x in result.numbers if not draws or x.measure in draws])
    with mpl.rc_context(style.STYLE):
        figure = Figure(layout="constrained")
        if kind in TABLE_FIGURES:
            TABLE_FIGURES[kind](figure, result)
        else:
            ROUND_FIGURES[kind](figure, result, runs)
        paragraphs = [
            fill(p, int(LETTERS_PER_INCH * figure.get_figwidth())) for p in describe_figure(result)
        ]
        style.set_figure_title(figure, "\n".join(paragraphs), 14, linespacing=1.4)
    return figure


def describe_figure(result: ReproductionResult) -> list[str]:
    """Describe the figure of a reproduced table: title, variant and whether numbers are comparable."""
    experiment = result.table.published
    lines = [f"{experiment.paper}, {experiment.where}: {experiment.what}"]
    if experiment.variant:
        lines.append(f"Variant {experiment.variant}")
    if not is_comparable(result):
        setups = "; ".join(dict.fromkeys(number.setup for number in result.numbers))
        lines.append(
            f"Ours, {result.table.scale} scale ({setups}): not comparable with the printed"
        )
    elif experiment.figure == "grid" and experiment.printed:
        lines.append("Ours, and in brackets as printed")
    return lines


def save_paper_figure(
    result: ReproductionResult, runs: Iterable[tuple[CellRun, list[Event]]], folder: Path
) -> None:
    """Write the figure of a reproduced table as ``figure.svg`` and ``figure.png``, with any variant in the names."""
    figure, variant = draw_paper_figure(result, runs), get_file_suffix(result.table.published)
    for suffix in (".svg", ".png"):
        save_figure(figure, folder / f"figure{variant}{suffix}")
