"""The figure of one result: G and P over the rounds, in files and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# as in a report's figures: the colours differ, and stay distinct in greyscale print
LINES = {"G": ("#0072B2", "G: generic model"), "P": ("#D55E00", "P: own models")}


class NotebookFigure(Figure):
    """A figure that a notebook displays, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=100)
        return content.getvalue()


def draw_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]], title: str, score: str = "accuracy"
) -> NotebookFigure:
    """Draw the scores of G and P over the rounds."""
    figure = NotebookFigure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for measure, (color, label) in LINES.items():
        if curves[measure]:
            rounds, values = zip(*curves[measure], strict=True)
            axes.plot(rounds, values, color=color, label=label, marker="o", markersize=2.5)
    negative = any(v < 0 for k in LINES for _, v in curves[k])  # as R² can be
    axes.set(title=title, xlabel="round", ylabel=score, ylim=(None if negative else 0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False)
    return figure
