"""A table's numbers over the setting that it varies, ours and the printed: lines, heat maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from ...papers.scale import Scale
from .style import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    SHADES,
    Named,
    arranged,
    name_ends,
    panels,
)

if TYPE_CHECKING:
    from ...papers.reproduce import Outcome
    from ...papers.verdicts import Line

MARKERS = "os^"  # once more through the palette
AS_PRINTED: Any = {"linestyle": (0, (3, 2)), "markerfacecolor": "white", "linewidth": 1}
NAMES = {"G": "G, %", "P": "P, %", "score": "ln(G / 10) + ln(P / 10)"}
SETTING = re.compile(r"(?P<name>.*?)(?: = | )(?P<number>[\d.]+)")
SIDE = 0.75  # inches of a cell of a heat map


def compared(outcome: Outcome) -> bool:
    """Whether our numbers and the printed ones measure the same."""
    return outcome.table.scale is Scale.full


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def digits(measure: str) -> int:
    return 2 if measure == "score" else 1


# Lines over a setting -----------------------------------------------------------------------


def clients(figure: Figure, outcome: Outcome) -> None:
    """Over the number of clients, a line for each row."""
    count = {c.column: c.config["data"]["clients"] for c in outcome.table.asked}
    axes = over(figure, outcome, lambda x: x.row, lambda x: count[x.column])
    for panel in axes:
        panel.set(xscale="log", xlabel="clients")
        panel.xaxis.set_major_locator(FixedLocator(sorted(set(count.values()))))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter("{x:.0f}")


def sweep(figure: Figure, outcome: Outcome) -> None:
    """Over the setting that the rows vary, a line for each column."""
    axes = over(figure, outcome, lambda x: x.column, lambda x: float(told(x.row)[1]))
    for panel in axes:
        panel.set_xlabel(told(outcome.lines[0].row)[0])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def over(
    figure: Figure, outcome: Outcome, series: Callable[[Line], str], at: Callable[[Line], float]
) -> list[Axes]:
    """A panel for each measure."""
    lines, both = outcome.lines, compared(outcome)
    measures, names = distinct(x.measure for x in lines), distinct(map(series, lines))
    drawn = []
    for axes, (measure, _), _ in panels(figure, [[(m, "") for m in measures]], (6.2, 4.8)):
        ends = []
        for i, name in enumerate(names):
            mine = [x for x in lines if series(x) == name and x.measure == measure]
            ends += setting_line(axes, i, name, sorted(mine, key=at), at, both)
        axes.set_ylabel(NAMES.get(measure, measure))
        axes.grid(color=FAINT, linewidth=0.8)
        axes.tick_params(length=0)
        name_ends(axes, ends)
        drawn.append(axes)
    if both and any(x.printed for x in lines):
        plain: dict[str, Any] = {"color": MUTED, "marker": "o"}
        handles = [
            Line2D([], [], **plain, **AS_PRINTED, label="printed"),
            Line2D([], [], **plain, label="ours"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def setting_line(
    axes: Axes,
    i: int,
    name: str,
    rising: Sequence[Line],
    at: Callable[[Line], float],
    both: bool,
) -> list[Named]:
    """Printed dashed with open marks, ours full with deviations; where its name belongs."""
    color = PALETTE[i % len(PALETTE)]
    marker = MARKERS[i // len(PALETTE) % len(MARKERS)]
    mark: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
    ends = []
    said = [(at(x), x.printed.value) for x in rising if both and x.printed]
    if said:
        axes.plot(*zip(*said, strict=True), **mark, **AS_PRINTED, label=f"{name}, printed")
        ends = [Named(name, *said[-1], color)]
    ours = [(at(x), x.mean, x.std or 0.0) for x in rising if x.mean is not None]
    if ours:
        x, y, std = zip(*ours, strict=True)
        axes.plot(x, y, **mark, linewidth=1.7, label=name)
        if any(std):
            axes.errorbar(x, y, yerr=std, color=color, linestyle="", capsize=2, linewidth=1)
        ends = [Named(name, x[-1], y[-1], color)]
    return ends


def told(label: str) -> tuple[str, str]:
    """What a label varies, and to what: ``E_lora = 2``, ``batch 32``."""
    found = SETTING.fullmatch(label)
    return (found["name"], found["number"]) if found else ("", label)


# Heat maps ----------------------------------------------------------------------------------


def grid(figure: Figure, outcome: Outcome) -> None:
    """Rows against the last word of columns (``CIFAR-10, R_c = 0.2``), a panel for the others."""
    lines = outcome.lines
    rows, measures = distinct(x.row for x in lines), distinct(x.measure for x in lines)
    across = distinct(x.column.rpartition(", ")[2] for x in lines)
    sets = distinct(x.column.rpartition(", ")[0] for x in lines)
    size = (1.2 + SIDE * len(across), 1.3 + SIDE * len(rows))
    for axes, (measure, name), _ in panels(figure, arranged(sets, measures, 3), size):
        here = {
            (x.row, x.column.rpartition(", ")[2]): x
            for x in lines
            if (x.measure, x.column.rpartition(", ")[0]) == (measure, name)
        }
        heat(axes, [[here.get((r, c)) for c in across] for r in rows], compared(outcome))
        axes.set_title(f"{name}: {measure}")
        axes.set_xticks(np.arange(len(across)) + 0.5, [told(c)[1] for c in across])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [told(r)[1] for r in rows])
        axes.set(xlabel=told(across[0])[0], ylabel=told(rows[0])[0])


def heat(axes: Axes, cells: Sequence[Sequence[Line | None]], both: bool) -> None:
    """Ours as colour and number, the printed number below it in brackets."""
    means = [[np.nan if x is None or x.mean is None else x.mean for x in row] for row in cells]
    values = np.ma.masked_invalid(np.array(means, dtype=float))
    axes.pcolormesh(values, cmap=SHADES, edgecolor="white", linewidth=1.5)
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 0.0)
    for i, row in enumerate(cells):
        for j, line in enumerate(row):
            if line is None:
                continue
            words = [] if line.mean is None else [f"{line.mean:.{digits(line.measure)}f}"]
            if both and line.printed is not None:
                words.append(f"({line.printed.value:.{digits(line.measure)}f})")
            dark = line.mean is not None and line.mean - low > 0.45 * (high - low) > 0
            color, place = "white" if dark else INK, (j + 0.5, i + 0.5)
            axes.text(*place, "\n".join(words), ha="center", va="center", color=color, fontsize=10)
    axes.set_aspect("equal")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
