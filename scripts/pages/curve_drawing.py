"""Draw an algorithm's curves as SVG, in the colours of the page, with FedAvg for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heterophony.algorithms import get_display_name

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 260, 40, 30
Curves = Sequence[Sequence[float]]


def draw_curves(name: str, curves: dict[str, Any]) -> str:
    """Draw G and P side by side: the algorithm in colour, FedAvg in grey."""
    found = curves[name]
    panels = [m for m in ("G", "P") if m in found]
    width = WIDTH / 2
    shown = get_display_name(name)
    parts = [
        f'<svg class="curves" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{describe(shown, found)}">'
    ]
    for i, measure in enumerate(panels):
        parts.append(f'<g transform="translate({i * width:.0f} 0)">')
        parts += draw_axes(measure, found["rounds"][measure][-1], width)
        if name != "fedavg" and measure in curves.get("fedavg", {}):
            parts += draw_series(
                curves["fedavg"]["rounds"][measure], curves["fedavg"][measure], "other", width
            )
        parts += draw_series(found["rounds"][measure], found[measure], "own", width)
        parts.append("</g>")
    parts.append("</svg>")
    note = f"{shown} in colour" + ("" if name == "fedavg" else ", FedAvg in grey")
    return "".join(parts) + f'\n<p class="caption">{note}; accuracy in % over the rounds.</p>\n'


def describe(shown: str, found: dict[str, Any]) -> str:
    """Describe the last points for readers who cannot see the drawing."""
    ends = [
        f"{m} {sum(c[-1] for c in found[m]) / len(found[m]):.1f} %"
        for m in ("G", "P")
        if m in found
    ]
    return f"{shown} after {found['rounds']['P'][-1]} rounds: {', '.join(ends)}"


def place(t: float, last: float, value: float, width: float) -> str:
    x = LEFT + (width - LEFT - 20) * t / last
    y = 20 + (HEIGHT - BOTTOM - 20) * (1 - value / 100)
    return f"{x:.1f},{y:.1f}"


def draw_axes(measure: str, last: int, width: float) -> list[str]:
    parts = [f'<text x="{LEFT}" y="13" class="title">{measure}</text>']
    for value in (0, 25, 50, 75, 100):
        x0, y = place(0, 1, value, width).split(",")
        x1 = place(1, 1, value, width).split(",")[0]
        parts.append(f'<path class="grid" d="M{x0} {y}H{x1}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value}</text>'
        )
    for t in (0, last / 2, last):
        x = place(t, last, 0, width).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 12}" text-anchor="middle">{t:.0f}</text>')
    return parts


def draw_series(rounds: Sequence[int], seeds: Curves, kind: str, width: float) -> list[str]:
    """Draw the band over the seeds, and their mean."""
    columns = list(zip(*seeds, strict=True))
    at = [(t, c) for t, c in zip(rounds, columns, strict=True)]
    top = [place(t, rounds[-1], max(c), width) for t, c in at]
    low = [place(t, rounds[-1], min(c), width) for t, c in reversed(at)]
    mean = [place(t, rounds[-1], sum(c) / len(c), width) for t, c in at]
    return [
        f'<polygon class="band {kind}" points="{" ".join([*top, *low])}"/>',
        f'<polyline class="mean {kind}" points="{" ".join(mean)}"/>',
    ]
