"""Statistics of a comparison: what the seeds can and cannot show, in numbers and in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .significance import ALPHA, compute_smallest_p, count_pairs_needed
from .tables import Row, format_percentage_points

MEASURES = {"G.last10": "G last 10", "P.last10": "P last 10"}
COLUMN_TITLES = ("mean", "95 % interval", "Δ", "95 % interval of Δ", "p (Holm)")


def build_statistics_section(table: Sequence[Row]) -> dict[str, Any] | None:
    """The section of the page; None for a single run."""
    if len(table) < 2 and all(len(row["seeds"]) < 2 for row in table):
        return None
    several = any(len(row["seeds"]) > 1 for row in table)  # one seed has no intervals
    known = {k: v for k, v in MEASURES.items() if any(k in r["over_seeds"] for r in table)}
    measures = known if several else {}
    return {
        "conclusions": list_conclusions(table),
        "titles": list(COLUMN_TITLES),
        "measures": [
            {"title": title, "rows": [build_statistics_row(row, key) for row in table]}
            for key, title in measures.items()
        ],
    }


def build_statistics_row(row: Row, key: str) -> dict[str, Any]:
    """The texts of a row under ``COLUMN_TITLES``."""
    own, gap = row["over_seeds"].get(key), (row["difference"] or {}).get(key)
    means = [f"{100 * own['mean']:.2f}", format_interval(own)] if own else ["–", "–"]
    gaps = (
        [
            format_percentage_points(gap["mean"]),
            format_interval(gap, format_percentage_points),
            format_p_value(gap),
        ]
        if gap
        else ["–", "–", "–"]
    )
    return {"name": row["name"], "seeds": row["seeds"], "cells": [*means, *gaps]}


def format_p_value(gap: Row) -> str:
    return f"{gap['p_holm']:.2g}" if gap["ci95"] else "–"  # one pair cannot be tested


def format_interval(of: Row, text: Callable[[float], str] = lambda v: f"{100 * v:.2f}") -> str:
    """Format a 95 % interval."""
    return " … ".join(map(text, of["ci95"])).replace("-", "−") if of["ci95"] else "–"


def format_difference_interval(row: Row, key: str) -> str:
    """Format a paired difference and, of several pairs, its interval, in one cell."""
    gap = (row["difference"] or {}).get(key)
    if gap is None:
        return "–"
    return (
        f"{format_percentage_points(gap['mean'])} ({format_interval(gap, format_percentage_points)})"
        if gap["ci95"]
        else format_percentage_points(gap["mean"])
    )


# In words -----------------------------------------------------------------------------------


def list_conclusions(table: Sequence[Row]) -> list[str]:
    """Sentences about G and P; the same conclusion about both becomes one sentence."""
    titles: dict[str, list[str]] = {}
    for key, title in MEASURES.items():
        if conclusion := describe_conclusion(table, key):
            titles.setdefault(conclusion, []).append(title)
    return [f"{' and '.join(of)}: {conclusion}" for conclusion, of in titles.items()]


def describe_conclusion(table: Sequence[Row], key: str) -> str | None:
    """Which rows differ from the first one, or why that cannot be decided; None without a pair."""
    gaps = {r["name"]: r["difference"] for r in table if key in (r["difference"] or {})}
    if not gaps:
        return None
    pairs = max(len(gap["seeds"]) for gap in gaps.values())
    needed = count_pairs_needed(len(gaps))
    if pairs < needed:
        return explain_too_few_pairs(pairs, needed, len(gaps) - 1)
    return describe_significant_differences(
        {name: gap[key] for name, gap in gaps.items()}, str(table[0]["name"])
    )


def explain_too_few_pairs(pairs: int, needed: int, others: int) -> str:
    beside = f" beside {others} other comparison{'s' * (others > 1)}" if others else ""
    if pairs == 1:
        return (
            "one pair of runs with the same seed and data, which cannot tell a difference from"
            f" chance; for p < {ALPHA}{beside} it takes at least {needed} seeds."
        )
    return (
        f"{pairs} pairs of runs with the same seed and data are too few for p < {ALPHA}"
        f"{beside}: at least {needed}. With {pairs} the exact paired test cannot give less than"
        f" p = {compute_smallest_p(pairs):.2g}, whatever they show; the intervals say which differences"
        " are plausible."
    )


def describe_significant_differences(gaps: dict[str, Row], first: str) -> str:
    sides: dict[str, list[str]] = {"higher": [], "lower": []}
    for name, gap in gaps.items():
        if gap["p_holm"] < ALPHA:
            side = "higher" if gap["mean"] > 0 else "lower"
            sides[side].append(f"{name} (p = {gap['p_holm']:.2g})")
    parts = [f"{side} than {first}: {', '.join(who)}" for side, who in sides.items() if who]
    if not parts:
        return f"no difference to {first} is shown, which does not mean that there is none."
    rest = len(gaps) - sum(map(len, sides.values()))
    return "; ".join([*parts, *([f"of {rest} more, no difference is shown"] if rest else [])]) + "."
