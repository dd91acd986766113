"""A critical-difference diagram: average ranks of several series over seeds and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...core.errors import ConfigError
from ...results.comparison import index_measures_by_block
from ...results.runs import Run, group_by_series, iterate_setting_texts, label_runs
from ...results.statistics import ALPHA, RankComparison, compare_ranks
from .style import MUTED_COLOR, STYLE, TEXT_COLOR, get_series_style

MEASURES = {
    "P.last10": "P last 10: personalised models",
    "G.last10": "G last 10: the generic model",
}
LETTER_INCHES, LINE_INCHES = 0.1, 0.3  # width of a letter in a name; distance between two names
AXIS_INCHES, BAR_INCHES = 1.8, 0.13  # distance from the top to the axis, and between two bars
BlockKey = tuple[int, str]  # seed and digest of the data


@dataclass(frozen=True)
class BlockMeasures:
    """The measures of every series in every block (a seed and its data)."""

    names: tuple[str, ...]
    blocks: tuple[tuple[dict[str, float], ...], ...]

    def compute_ranks(self, measure: str) -> RankComparison | None:
        """Rank the series by a measure in all blocks; None if a series lacks the measure."""
        if not all(measure in measures for block in self.blocks for measures in block):
            return None
        return compare_ranks([[measures[measure] for measures in b] for b in self.blocks])


def collect_common_blocks(runs: Sequence[Run]) -> BlockMeasures:
    """Collect the measures of the finished series in the blocks (seed and data) common to all."""
    measured = collect_measures_by_series(runs)
    if len(measured) < 3:
        raise ConfigError(
            f"ranks need at least 3 finished series, but there are {len(measured)}"
            f" ({', '.join(measured) or 'none'}); compare more algorithms"
        )
    every = dict.fromkeys(block for own in measured.values() for block in own)
    common = [b for b in every if all(b in own for own in measured.values())]
    if len(common) < 2:
        lacking = (
            f"; {n} lacks seed {b[0]}" for n, own in measured.items() for b in every if b not in own
        )
        raise ConfigError(
            "ranks need at least 2 seeds or data sets that all series have in common, but"
            f" there is {len(common) or 'none'}{next(lacking, '')}; compare with more --seeds"
        )
    rows = tuple(tuple(own[b] for own in measured.values()) for b in common)
    return BlockMeasures(tuple(measured), rows)


def collect_measures_by_series(runs: Sequence[Run]) -> dict[str, dict[BlockKey, dict[str, float]]]:
    """Collect the measures of each series by block.

    Series are labelled on each data set separately, so that the same algorithm has the same name
    on all of them.
    """
    settings = [tuple(iterate_setting_texts(run.config.get("data", {}))) for run in runs]
    out: dict[str, dict[BlockKey, dict[str, float]]] = {}
    for data in dict.fromkeys(settings):
        finished = [r for r, own in zip(runs, settings, strict=True) if own == data and r.summary]
        for name, group in group_by_series(label_runs(finished)).items():
            out.setdefault(name, {}).update(index_measures_by_block(group))
    return out


# Drawing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankPanel:
    """A panel of a CD diagram with its axis of ranks; coordinates are inches from the upper left corner."""

    axes: Axes
    ranks: RankComparison
    names: Sequence[str]
    left: float  # where rank 1 is
    right: float  # where the last rank is

    def rank_to_x(self, rank: float) -> float:
        """Return the horizontal position of a rank in inches."""
        return self.left + (self.right - self.left) * (rank - 1) / (len(self.names) - 1)

    def draw_panel_line(self, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
        """Draw a line between points in inches."""
        self.axes.plot(x, y, **{"color": TEXT_COLOR, "lw": 1.4, **style})


def draw_cd_diagram(runs: Sequence[Run]) -> Figure:
    """Draw a critical-difference diagram of runs: a panel for P and, if all have a generic model, one for G."""
    measures = collect_common_blocks(runs)
    panels = {title: r for key, title in MEASURES.items() if (r := measures.compute_ranks(key))}
    margin = 0.5 + LETTER_INCHES * (6 + max(map(len, measures.names)))
    wide = max(4.5, min(9.0, 0.75 * len(measures.names))) + 2 * margin
    heights = [compute_panel_height(r) for r in panels.values()]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(wide, sum(heights)))
        grid = figure.subplots(
            len(panels),
            squeeze=False,
            height_ratios=heights,
            gridspec_kw={"left": 0, "right": 1, "bottom": 0, "top": 1, "hspace": 0},
        )
        for axes, high, (title, ranks) in zip(grid[:, 0], heights, panels.items(), strict=True):
            axes.set(xlim=(0, wide), ylim=(high, 0))
            axes.axis("off")
            draw_rank_panel(RankPanel(axes, ranks, measures.names, margin, wide - margin), title)
    return figure


def compute_panel_height(ranks: RankComparison) -> float:
    """Compute the height of a CD diagram's panel in inches."""
    return (
        AXIS_INCHES
        + BAR_INCHES * len(arrange_group_bars(ranks))
        + LINE_INCHES * ((len(ranks.average_ranks) + 1) // 2)
        + 0.55
    )


def draw_rank_panel(panel: RankPanel, title: str) -> None:
    """Draw a panel of a CD diagram: title, critical difference, axis, bars of groups, names."""
    ranks, bar_lines = panel.ranks, arrange_group_bars(panel.ranks)
    over = f"average rank over {ranks.blocks} blocks (seed and data); 1 is the best"
    panel.axes.text(0.25, 0.3, title, fontweight="bold", fontsize=13, va="center")
    panel.axes.text(
        0.25,
        0.68,
        f"{over}\n{describe_friedman_test(ranks)}",
        color=MUTED_COLOR,
        fontsize=10,
        va="center",
    )
    draw_critical_difference(panel)
    panel.draw_panel_line([panel.left, panel.right], [AXIS_INCHES, AXIS_INCHES], color=MUTED_COLOR)
    for rank in range(1, len(panel.names) + 1):
        x = panel.rank_to_x(rank)
        panel.draw_panel_line([x, x], [AXIS_INCHES - 0.07, AXIS_INCHES], color=MUTED_COLOR)
        panel.axes.text(
            x, AXIS_INCHES - 0.12, str(rank), ha="center", color=MUTED_COLOR, fontsize=11
        )
    for level, intervals in enumerate(bar_lines):
        y = AXIS_INCHES + 0.2 + BAR_INCHES * level
        for interval in intervals:
            panel.draw_panel_line(
                [panel.rank_to_x(r) for r in interval], [y, y], lw=4, solid_capstyle="round"
            )
    draw_series_labels(panel, AXIS_INCHES + 0.35 + BAR_INCHES * len(bar_lines))


def describe_friedman_test(ranks: RankComparison) -> str:
    """Describe the result of Friedman's test and the meaning of the bars."""
    p = "< 0.001" if ranks.p < 0.001 else f"= {ranks.p:.2g}"
    if ranks.p >= ALPHA:
        return f"Friedman p {p}: no difference is shown"
    return f"Friedman p {p}; joined by a bar: no difference at {100 * ALPHA:.0f} % (Nemenyi)"


def draw_critical_difference(panel: RankPanel) -> None:
    """Draw the critical difference as a scale above the axis of ranks."""
    most, y = len(panel.names) - 1, AXIS_INCHES - 0.48
    width = panel.ranks.critical_difference
    end = panel.rank_to_x(1 + min(width, most))
    panel.draw_panel_line([panel.left, end], [y, y])
    for x in (panel.left, end):
        panel.draw_panel_line([x, x], [y - 0.06, y + 0.06])
    text = f"CD = {width:.2f}"
    if width > most:  # then no two average ranks can be that far apart
        text += ", wider than the axis: too few blocks to show any difference"
    panel.axes.text(panel.left, y - 0.12, text, fontsize=10)


def draw_series_labels(panel: RankPanel, top: float) -> None:
    """Connect each average rank to its name: the better half on the left, the other half on the right."""
    average = panel.ranks.average_ranks
    order = sorted(range(len(average)), key=lambda i: average[i])
    half = (len(order) + 1) // 2
    for row, i in [*enumerate(order[:half]), *enumerate(reversed(order[half:]))]:
        left, x, y = i in order[:half], panel.rank_to_x(average[i]), top + LINE_INCHES * row
        end = panel.left - 0.15 if left else panel.right + 0.15
        panel.draw_panel_line(
            [x, x, end], [AXIS_INCHES, y, y], **{"lw": 1.2, "zorder": 1, **get_series_style(i)}
        )
        panel.draw_panel_line(
            [x],
            [AXIS_INCHES],
            marker="o",
            markersize=6,
            color=get_series_style(i)["color"],
            zorder=3,
        )
        parts = [panel.names[i], f"{average[i]:.2f}"]
        panel.axes.text(
            end - 0.08 if left else end + 0.08,
            y,
            "  ".join(parts if left else parts[::-1]),
            ha="right" if left else "left",
            va="center",
            color=get_series_style(i)["color"],
            fontweight="bold",
            fontsize=11,
        )


def arrange_group_bars(ranks: RankComparison) -> list[list[tuple[float, float]]]:
    """Arrange the bars of groups, as intervals of ranks, on as few lines as possible without overlap."""
    lines: list[list[tuple[float, float]]] = []
    for group in ranks.groups:
        interval = (ranks.average_ranks[group[0]], ranks.average_ranks[group[-1]])
        free = next((line for line in lines if line[-1][1] < interval[0] - 0.1), None)
        if free is None:
            lines.append([interval])
        else:
            free.append(interval)
    return lines
