"""Numbers of a published table as bars: the printed value beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from .paper_sweeps import (
    MEASURE_LABELS,
    get_column_label,
    get_decimals,
    is_comparable,
    remove_duplicates,
)
from .style import GRID_COLOR, MUTED_COLOR, PALETTE, TEXT_COLOR, arrange_panels, create_panels

if TYPE_CHECKING:
    from ...papers.reproduce import ReproductionResult
    from ...papers.verdicts import ComparedNumber

LINE_INCHES = 0.3  # of a title that takes more lines than one
VERDICT_COLORS = {
    "within noise": PALETTE[0],
    "better": PALETTE[2],
    "worse": PALETTE[1],
    "undecided": MUTED_COLOR,
}


def draw_bars(figure: Figure, result: ReproductionResult) -> None:
    """Draw for every row of the table a hollow bar (printed) and a filled one (ours)."""
    numbers, both = result.numbers, is_comparable(result)
    rows = remove_duplicates(number.row for number in numbers)
    columns, measures = (
        remove_duplicates(x.column for x in numbers),
        remove_duplicates(x.measure for x in numbers),
    )
    name_inches = 0.085 * max(map(len, rows))
    labels = {column: get_column_label(numbers, column) for column in columns}
    lines = max(label.count("\n") for label in labels.values())
    height = (0.44 if both else 0.3) * max(2, len(rows))  # titles need the room of two rows
    size = (3.1, 0.9 + LINE_INCHES * lines + height)
    for axes, (measure, column), first in create_panels(
        figure, arrange_panels(columns, measures, 4), size, name_inches
    ):
        here = {x.row: x for x in numbers if (x.measure, x.column) == (measure, column)}
        draw_bar_panel(axes, here, rows, both)
        axes.set_title(f"{labels[column]}: {measure}" if len(measures) > 1 else labels[column])
        axes.set_xlabel(MEASURE_LABELS.get(measure, measure))
        axes.set_xlim(0, 1.22 * find_longest_bar(here.values()))
        axes.set_yticks(range(len(rows)), rows if first else [], color=TEXT_COLOR)
    add_bar_legend(figure, numbers, both)


def draw_bar_panel(
    axes: Axes, here: Mapping[str, ComparedNumber], rows: Sequence[str], both: bool
) -> None:
    """Draw both bars of each row, from the top down, with their numbers."""
    height = 0.36 if both else 0.66
    for row, number in here.items():
        at = rows.index(row)
        if both and number.printed is not None:
            hollow = {"facecolor": "white", "edgecolor": MUTED_COLOR, "linewidth": 1}
            axes.barh(at - 0.2, number.printed.value, height, **hollow)  # type: ignore[arg-type]
            write_value(
                axes,
                number.printed.value,
                number.printed.std,
                at - 0.2,
                number.measure,
                MUTED_COLOR,
            )
        if number.mean is not None:
            color, y = VERDICT_COLORS.get(number.verdict, PALETTE[0]), at + 0.2 * both
            axes.barh(y, number.mean, height, color=color, linewidth=0)
            write_value(axes, number.mean, number.std, y, number.measure, TEXT_COLOR)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.grid(color=GRID_COLOR, linewidth=0.8)
    axes.tick_params(length=0)


def write_value(
    axes: Axes, value: float, std: float | None, at: float, measure: str, color: str
) -> None:
    """Write the number at the end of its bar, after its deviation."""
    if std:
        axes.errorbar(value, at, xerr=std, color=TEXT_COLOR, linewidth=1, capsize=2)
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
    ends = [0.0]
    for number in numbers:
        ends.append((number.mean or 0) + (number.std or 0))
        if number.printed is not None:
            ends.append(number.printed.value + (number.printed.std or 0))
    return max(ends) or 1.0


def add_bar_legend(figure: Figure, numbers: Sequence[ComparedNumber], both: bool) -> None:
    if not both:
        return
    handles = [Patch(facecolor="white", edgecolor=MUTED_COLOR, label="printed")]
    for verdict, color in VERDICT_COLORS.items():
        if any(number.verdict == verdict for number in numbers):
            handles.append(Patch(color=color, label=f"ours: {verdict}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
