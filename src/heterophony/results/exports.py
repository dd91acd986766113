"""Statistics of a comparison: what the seeds can and cannot show, in numbers and in words."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ..core.errors import choose
from ..core.files import quote_formula, write_atomically
from .runs import Run
from .statistics import ALPHA, compute_smallest_p, count_pairs_needed
from .tables import (
    PERCENT_COLUMNS,
    Row,
    build_comparison_rows,
    explain_highlighting,
    format_cell,
    format_percentage_points,
    select_columns,
)

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


LATEX_ESCAPES = {
    **{c: f"\\{c}" for c in "%_&#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


def export_comparison(runs: Sequence[Run], path: Path, columns: Sequence[str] = ()) -> None:
    """Write the comparison in the format of the file's suffix; ``columns`` are keys, default: all."""
    table = build_comparison_rows(runs)
    chosen = choose_columns(table, columns)
    write_atomically(path, TABLE_FORMATS[path.suffix](table, chosen).encode())


def choose_columns(table: Sequence[Row], keys: Sequence[str] = ()) -> dict[str, str]:
    """Choose columns of the table by their keys, in this order; without keys, all columns."""
    known = select_columns(table)
    return {key: choose(known, key, "--columns") for key in keys} if keys else known


def format_comparison_csv(table: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Format every number in full, accuracies in percent; std and interval only of several seeds."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "std", "low95", "high95")
    heads = [
        f"{k} {part} %" if k in PERCENT_COLUMNS else f"{k} {part}"
        for k in columns
        for part in parts
    ]
    writer.writerow(["algorithm", "name", "seeds", *map(quote_formula, heads)])
    for row in table:
        numbers = [n for k in columns for n in list_spread_cells(row, k)]
        who = [row["algorithm"], row["name"], " ".join(map(str, row["seeds"]))]
        writer.writerow([*map(quote_formula, who), *numbers])
    return out.getvalue()


def list_spread_cells(row: Row, key: str) -> list[float | str]:
    """Mean, std and the ends of the interval in the unit of the table; empty if unknown."""
    spread = row["over_seeds"].get(key)
    if spread is None:
        return [""] * 4
    several = [spread["std"], *spread["ci95"]] if spread["ci95"] else []  # None with one seed
    numbers = [convert_unit(v, key) for v in (spread["mean"], *several)]
    return [*numbers, *[""] * (4 - len(numbers))]


def convert_unit(value: float, key: str) -> float:
    """Return an accuracy in percent, without the last bits that the product adds; others as they are."""
    return float(f"{100 * value:.12g}") if key in PERCENT_COLUMNS else value


def format_comparison_markdown(table: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Format the table as the page shows it; clear leads are bold."""
    lines = format_comparison_rows(table, columns, escape_markdown, "**{}**")
    note = explain_highlighting(table, list(columns))
    return format_markdown_table(list_titles(columns), lines) + (f"\n{note}\n" if note else "")


def format_comparison_latex(table: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Format the table with booktabs' rules; clear leads are bold."""
    lines = format_comparison_rows(table, columns, escape_latex, r"\textbf{{{}}}")
    note = explain_highlighting(table, list(columns))
    return (f"% {note}\n" if note else "") + format_latex_table(list_titles(columns), lines)


def list_titles(columns: Mapping[str, str]) -> list[str]:
    """The titles of a table for people, with the unit of accuracies."""
    return [
        "algorithm",
        *(f"{title} (%)" if k in PERCENT_COLUMNS else title for k, title in columns.items()),
    ]


def format_markdown_table(
    titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1
) -> str:
    """Format lines that are already escaped; the first ``text`` columns are aligned left."""
    rule = ["---"] * text + ["--:"] * (len(titles) - text)
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, rule, *lines))


def format_latex_table(titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1) -> str:
    """Format the same with booktabs' rules."""
    head = " & ".join(map(escape_latex, titles))
    body = "".join(f"  {' & '.join(line)} \\\\\n" for line in lines)
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{'l' * text}{'r' * (len(titles) - text)}}}\n"
        f"  \\toprule\n  {head} \\\\\n  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
    )


def escape_markdown(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return text.replace("|", "\\|")


def format_comparison_rows(
    table: Sequence[Row], columns: Iterable[str], escape: Callable[[str], str], bold: str
) -> list[list[str]]:
    """Names and cells of all rows; what a row leads in beyond chance is bold."""
    out = []
    for row in table:
        cells = {k: escape(format_cell(row, k)) for k in columns}
        marked = [bold.format(v) if k in row["leads"] else v for k, v in cells.items()]
        out.append([escape(str(row["name"])), *marked])
    return out


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX_ESCAPES.get(c, c) for c in text)


TABLE_FORMATS: dict[str, Callable[[Sequence[Row], Mapping[str, str]], str]] = {
    ".csv": format_comparison_csv,
    ".md": format_comparison_markdown,
    ".tex": format_comparison_latex,
}
