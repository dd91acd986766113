"""Figures of the comparison as SVG: ranks over data sets, and the curves of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from heterophony.algorithms import get_display_name
from heterophony.papers.leaderboard import Entry
from heterophony.report.figures.style import spread_label_heights

from .numbers import Board, P, Table, rank_in
from .plan import BASELINES

COLORS = ("#3b6fd4", "#2a9d6f", "#c2571a", "#8a4fbf", "#b8336a")
SHOWN = ("fedavg", "fedavg_ft", "fedreg", "fedavg2rep", "pfakd", "feddecomp")  # besides the best
STRONGEST = 4
WIDTH, LEFT, RIGHT, TOP, LINE = 760, 110, 20, 70, 20
PANEL, HEIGHT, GAP = 360, 330, 96


def open_svg(width: int, height: int, about: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="12" role="img" aria-labelledby="t"><title id="t">{about}</title>'
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>'
    )


# Ranks ------------------------------------------------------------------------------------------


def draw_ranks(board: Board) -> str:
    """Draw a line for each algorithm of all tables: its rank of P in each, and the mean."""
    tables, most = list(board.tables.values()), len(board.common)
    ranks = [rank_in(table, board.common, P) for table in tables]
    average = {name: fmean(one[name] for one in ranks) for name in board.common}
    order = sorted(board.common, key=lambda name: average[name])
    about = f"Rank of P of {most} algorithms in {len(tables)} settings; {get_display_name(order[0])} has the best average"
    height = TOP + LINE * most + 12
    parts = [open_svg(WIDTH, height, about), *draw_rank_axis(tables, most)]
    for i, name in enumerate(order):
        y = TOP + LINE * i + 6
        x = place_rank(average[name], most)
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" fill="#222">{get_display_name(name)}</text>'
            f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
            f'<path d="M{x:.1f} {y - 7}V{y + 7}" stroke="#222" stroke-width="2"/>'
        )
        for at, (table, one, color) in enumerate(zip(tables, ranks, COLORS, strict=False)):
            fill = color if table.groups[name] == 1 else "#fff"
            shifted = y + 3 * (at - (len(tables) - 1) / 2)  # equal ranks stay visible
            parts.append(
                f'<circle cx="{place_rank(one[name], most):.1f}" cy="{shifted}" r="4" fill="{fill}" stroke="{color}" stroke-width="1.6"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_rank_axis(tables: Sequence[Table], most: int) -> list[str]:
    """Draw the legend and the ticks."""
    parts, x = list[str](), LEFT
    for table, color in zip(tables, COLORS, strict=False):
        parts.append(
            f'<circle cx="{x}" cy="20" r="4" fill="{color}"/><text x="{x + 9}" y="24" fill="#222">{table.setting.title}</text>'
        )
        x += 30 + 6 * len(table.setting.title)
    parts.append(
        f'<text x="{LEFT}" y="42" fill="#555">rank of P; filled: in the first group of its table; black: the average</text>'
    )
    for tick in [1, *range(5, most + 1, 5)]:
        parts.append(
            f'<text x="{place_rank(tick, most):.1f}" y="60" text-anchor="middle" fill="#555">{tick}</text>'
        )
    return parts


def place_rank(rank: float, most: int) -> float:
    return LEFT + 6 + (WIDTH - LEFT - RIGHT - 12) * (rank - 1) / max(1, most - 1)


# Curves -----------------------------------------------------------------------------------------


def draw_setting(table: Table) -> str:
    """Draw the mean P and G of a setting over the rounds; some algorithms have a colour and a label."""
    about = f"P and G over the rounds: {table.setting.title}"
    parts = [open_svg(2 * (PANEL + GAP) + 20, HEIGHT, about)]
    for i, measure in enumerate(("P", "G")):
        parts.append(f'<g transform="translate({i * (PANEL + GAP) + 40} 0)">')
        parts += [*draw_panel(table, measure), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_panel(table: Table, measure: str) -> list[str]:
    """Draw the curves of one measure, those without a label in grey."""
    curves = {n: average_curve(table.entries[n], measure) for n in table.names}
    curves = {n: c for n, c in curves.items() if c}
    chosen = choose_labelled(table)
    labelled = [n for n in chosen if n in curves]
    floor = 10 * int(
        10 * max(0.0, min(c[len(c) // 4][1] for n, c in curves.items() if n in labelled))
    )
    last = table.setting.rounds
    low = min(floor, 90)

    def place(t: int, value: float) -> str:
        height = (100 * value - low) / (100 - low)
        return f"{(PANEL - 50) * t / last:.1f},{20 + (HEIGHT - 50) * (1 - max(0.0, height)):.1f}"

    parts = [f'<text x="0" y="14" fill="#222" font-weight="bold">{measure} in %</text>']
    for value in range(low, 101, 5 if low >= 70 else 10):
        x, y = place(last, value / 100).split(",")
        parts.append(
            f'<path d="M0 {y}H{x}" stroke="#e4e4e4"/><text x="-6" y="{float(y) + 4:.1f}" text-anchor="end" fill="#555">{value}</text>'
        )
    for t in (0, last // 2, last):
        parts.append(
            f'<text x="{place(t, 0).split(",")[0]}" y="{HEIGHT - 12}" text-anchor="middle" fill="#555">{t}</text>'
        )
    for name in [n for n in curves if n not in labelled] + labelled[::-1]:
        color, width = (
            ("#d8d8d8", 1) if name not in labelled else (get_color(chosen.index(name)), 2)
        )
        dash = ' stroke-dasharray="5 3"' if name in chosen[len(COLORS) :] else ""
        points = " ".join(place(t, v) for t, v in curves[name])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>'
        )
    ends = sorted(labelled, key=lambda n: -float(place(*curves[n][-1]).split(",")[1]))
    rising = [1 - float(place(*curves[n][-1]).split(",")[1]) / HEIGHT for n in ends]
    for name, height in zip(ends, spread_label_heights(rising, 13 / HEIGHT), strict=True):
        parts.append(
            f'<text x="{PANEL - 44}" y="{HEIGHT * (1 - height) + 4:.1f}" fill="{get_color(chosen.index(name))}">{get_display_name(name)}</text>'
        )
    return parts


def choose_labelled(table: Table) -> list[str]:
    """Choose the algorithms with a label: the strongest, the baselines, and those of the five works."""
    best = [n for n in table.names if n not in BASELINES][:STRONGEST]
    return list(dict.fromkeys([*best, *BASELINES, *(n for n in SHOWN if n in table.entries)]))


def get_color(place: int) -> str:
    return COLORS[place % len(COLORS)]


def average_curve(entry: Entry, measure: str) -> list[tuple[int, float]]:
    """Average a curve over the seeds."""
    found = [seed.curves.get(measure, []) for seed in entry.seeds.values()]
    return [(points[0][0], fmean(v for _, v in points)) for points in zip(*found, strict=True)]
