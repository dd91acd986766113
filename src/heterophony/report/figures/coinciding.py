"""Coinciding lines: where lines lie on each other, their colours alternate, so that none is hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes

COINCIDING_FRACTION = 0.004  # of the panel's height; lines that are closer cover each other
STRIPE_WIDTHS = 5.0  # length of a stripe, in widths of the line


class DrawnLine(NamedTuple):
    """A line in data coordinates."""

    x: Sequence[float]
    y: Sequence[float]
    color: str


class Stretch(NamedTuple):
    """Where the same lines coincide: their positions, and the first and last x."""

    members: tuple[int, ...]
    first: float
    last: float


def draw_stripes(axes: Axes, lines: Sequence[DrawnLine], linewidth: float) -> None:
    """Draw stripes where lines coincide; the last of them is on top already."""
    low, high = axes.get_ylim()
    for members, first, last in find_coinciding(lines, COINCIDING_FRACTION * (high - low)):
        for i, line in enumerate(lines[m] for m in members[:-1]):
            points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if first <= x <= last]
            gap = STRIPE_WIDTHS * (len(members) - 1)
            dashes = (-STRIPE_WIDTHS * i, (STRIPE_WIDTHS, gap))
            axes.plot(
                *zip(*points, strict=True),
                color=line.color,
                linewidth=linewidth,
                linestyle=dashes,
                dash_capstyle="butt",
                label="_stripe",  # not in a legend
            )


def find_coinciding(lines: Sequence[DrawnLine], near: float) -> list[Stretch]:
    """Find where lines that were measured at the same x are nearer than this, and for how long."""
    segments: dict[tuple[float, float], list[tuple[int, float, float]]] = {}
    for k, line in enumerate(lines):
        points = list(zip(line.x, line.y, strict=True))
        for (left, y), (right, z) in pairwise(points):
            segments.setdefault((left, right), []).append((k, y, z))
    found: list[Stretch] = []
    for (left, right), together in sorted(segments.items()):
        for members in group_near(together, near):
            before = next((s for s in found if s.members == members and s.last == left), None)
            if before:
                found.remove(before)
            found.append(Stretch(members, before.first if before else left, right))
    return found


def group_near(
    segments: Sequence[tuple[int, float, float]], near: float
) -> Iterator[tuple[int, ...]]:
    """Group segments with the same ends on the x axis by their heights; only groups of several."""
    groups: list[list[tuple[int, float, float]]] = []
    for own in segments:
        for group in groups:
            if abs(group[0][1] - own[1]) < near and abs(group[0][2] - own[2]) < near:
                group.append(own)
                break
        else:
            groups.append([own])
    yield from (tuple(k for k, _, _ in group) for group in groups if len(group) > 1)
