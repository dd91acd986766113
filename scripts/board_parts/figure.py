"""Draw average ranks over all settings, with the critical difference, as SVG."""

from __future__ import annotations

from heterophony.algorithms import get_display_name

from .numbers import Board, G, P, rank_over_settings

WIDTH, LEFT, RIGHT, TOP, LINE = 760, 110, 20, 64, 16
P_COLOR, G_COLOR, TEXT_COLOR, LINE_COLOR, BAND_COLOR = (
    "#3b6fd4",
    "#2a9d6f",
    "#222",
    "#ddd",
    "#e9f0fd",
)


def draw_ranks(board: Board) -> str:
    """Draw a line for each algorithm, the best P first: P filled, G as a ring."""
    names, p = rank_over_settings(board, P)
    g_names, g = rank_over_settings(board, G)
    of_p = dict(zip(names, p.average_ranks, strict=True))
    of_g = dict(zip(g_names, g.average_ranks, strict=True))
    order = sorted(names, key=lambda name: of_p[name])
    most = len(names)
    height = TOP + LINE * most + 12
    about = (
        f"Average ranks of {most} algorithms; {get_display_name(order[0])} has the best P,"
        f" {of_p[order[0]]:.1f}; the critical difference of P is {p.critical_difference:.1f}"
    )
    low, high = min(of_p.values()), min(of_p.values()) + p.critical_difference
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" role="img" aria-labelledby="t"><title id="t">{about}</title>',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
        f'<rect x="{place(low, most):.1f}" y="{TOP - 8}" width="{place(high, most) - place(low, most):.1f}"'
        f' height="{LINE * most + 4}" fill="{BAND_COLOR}"/>',
        *draw_head(most),
    ]
    for i, name in enumerate(order):
        y = TOP + LINE * i + 6
        parts.append(
            f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" fill="{TEXT_COLOR}">{get_display_name(name)}</text>'
            f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{LINE_COLOR}"/>'
        )
        if name in of_g:
            parts.append(
                f'<circle cx="{place(of_g[name], most):.1f}" cy="{y}" r="3.5" fill="#fff" stroke="{G_COLOR}" stroke-width="1.8"/>'
            )
        parts.append(
            f'<circle cx="{place(of_p[name], most):.1f}" cy="{y}" r="4" fill="{P_COLOR}"/>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_head(most: int) -> list[str]:
    """Draw the legend and the ticks."""
    ticks = [1, *range(5, most + 1, 5)]
    numbers = "".join(
        f'<text x="{place(t, most):.1f}" y="48" text-anchor="middle" fill="#555">{t}</text>'
        for t in ticks
    )
    return [
        f'<circle cx="{LEFT + 4}" cy="20" r="4" fill="{P_COLOR}"/>'
        f'<text x="{LEFT + 14}" y="24" fill="{TEXT_COLOR}">P (shaded: not significantly different from the first)</text>'
        f'<circle cx="{LEFT + 290}" cy="20" r="3.5" fill="#fff" stroke="{G_COLOR}" stroke-width="1.8"/>'
        f'<text x="{LEFT + 300}" y="24" fill="{TEXT_COLOR}">G, among those with a generic model</text>',
        numbers,
    ]


def place(rank: float, most: int) -> float:
    return LEFT + 6 + (WIDTH - LEFT - RIGHT - 12) * (rank - 1) / (most - 1)
