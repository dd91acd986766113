"""Figures of a published table over the setting that it varies, as lines or heat maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ...papers.table import TableScale
from . import style

if TYPE_CHECKING:
    from ...papers.reproduce import ReproductionResult
    from ...papers.verdicts import ComparedNumber


MARKERS = "os^"  # the next marker after all colours of the palette are used
PRINTED_STYLE: Any = {"linestyle": (0, (3, 2)), "markerfacecolor": "white", "linewidth": 1}
MEASURE_LABELS = {"G": "G, %", "P": "P, %", "score": "ln(G / 10) + ln(P / 10)"}
SETTING_PATTERN = re.compile(r"(?P<name>.*?)(?: = | )(?P<number>[\d.]+)")
LABEL_LETTERS = 30  # in a line of a panel's title
CELL_INCHES = 0.75  # side of a cell of a heat map
LOG_SPAN = 50  # a setting whose values span this factor has a logarithmic axis


def is_comparable(result: ReproductionResult) -> bool:
    """Return True if our numbers can be compared with the printed ones: only at full scale."""
    return result.table.scale is TableScale.full


def remove_duplicates(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def get_column_label(numbers: Iterable[ComparedNumber], column: str) -> str:
    """Return the title of a column's panel: what was run for it, in lines that fit."""
    label = next((x.label for x in numbers if x.column == column), column)
    return fill(label, LABEL_LETTERS)


def get_decimals(measure: str) -> int:
    return 2 if measure == "score" else 1


# Lines over a setting -----------------------------------------------------------------------


def draw_over_clients(figure: Figure, result: ReproductionResult) -> None:
    """Draw one line per row over the number of clients."""
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
    """Draw one line per column over the setting that the rows vary."""
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
    """Draw one panel per measure, with one line per series."""
    numbers, both = result.numbers, is_comparable(result)
    measures, names = (
        remove_duplicates(x.measure for x in numbers),
        remove_duplicates(map(series, numbers)),
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
    """Draw printed values dashed and ours solid with deviations; return the positions of names."""
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
    """Draw heat maps of rows against the setting in the column labels.

    A column ``CIFAR-10, R_c = 0.2`` is drawn in the panel ``CIFAR-10`` at 0.2.
    """
    numbers = result.numbers
    rows, measures = (
        remove_duplicates(x.row for x in numbers),
        remove_duplicates(x.measure for x in numbers),
    )
    across = remove_duplicates(x.column.rpartition(", ")[2] for x in numbers)
    sets = remove_duplicates(x.column.rpartition(", ")[0] for x in numbers)
    size = (1.2 + CELL_INCHES * len(across), 1.3 + CELL_INCHES * len(rows))
    for axes, (measure, name), _ in style.create_panels(
        figure, style.arrange_panels(sets, measures, 3), size
    ):
        here = {
            (x.row, x.column.rpartition(", ")[2]): x
            for x in numbers
            if (x.measure, x.column.rpartition(", ")[0]) == (measure, name)
        }
        draw_heatmap(
            axes, [[here.get((r, c)) for c in across] for r in rows], is_comparable(result)
        )
        label = name
        if stand_in := next((x for x in here.values() if x.in_place_of), None):
            sets_here = remove_duplicates(c.rpartition(", ")[0] for c in stand_in.in_place_of)
            label = f"{stand_in.setup} in place of {', '.join(sets_here)}"
        axes.set_title(fill(f"{label}: {measure}", LABEL_LETTERS))
        axes.set_xticks(np.arange(len(across)) + 0.5, [parse_setting_label(c)[1] for c in across])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [parse_setting_label(r)[1] for r in rows])
        axes.set(xlabel=parse_setting_label(across[0])[0], ylabel=parse_setting_label(rows[0])[0])


def draw_heatmap(axes: Axes, cells: Sequence[Sequence[ComparedNumber | None]], both: bool) -> None:
    """Draw our number with its colour, and the printed number below it in brackets."""
    means = [[np.nan if x is None or x.mean is None else x.mean for x in row] for row in cells]
    texts = [[format_pair(x, both) if x else "" for x in row] for row in cells]
    style.draw_number_grid(axes, means, texts, fontsize=10)
    axes.set_aspect("equal")


def format_pair(number: ComparedNumber, both: bool) -> str:
    digits = get_decimals(number.measure)
    ours = [] if number.mean is None else [f"{number.mean:.{digits}f}"]
    printed = number.printed if both else None
    return "\n".join([*ours, *([f"({printed.value:.{digits}f})"] if printed else [])])
