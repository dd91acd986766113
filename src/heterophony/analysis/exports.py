"""The comparison of runs as a file for other programs and papers: CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path

from ..core.files import write_atomically
from .runs import Run
from .tables import Row, build_comparison_rows, find_leaders, format_cell, select_columns

LATEX_ESCAPES = {
    **{c: f"\\{c}" for c in "%_&#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


def export_comparison(runs: Sequence[Run], path: Path) -> None:
    """The table in the format that the suffix says."""
    write_atomically(path, TABLE_FORMATS[path.suffix](build_comparison_rows(runs)).encode())


def format_comparison_csv(table: Sequence[Row]) -> str:
    """Every number in full, fractions as fractions: mean; of several seeds, std and interval."""
    out, keys = StringIO(), list(select_columns(table))
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "std", "low95", "high95")
    writer.writerow(["name", "seeds", *(f"{k} {part}" for k in keys for part in parts)])
    for row in table:
        numbers = [n for k in keys for n in list_spread_cells(row["over_seeds"].get(k))]
        writer.writerow([row["name"], " ".join(map(str, row["seeds"])), *numbers])
    return out.getvalue()


def list_spread_cells(spread: Row | None) -> list[float | str]:
    """Mean, std and the interval's ends; empty where there is nothing to say."""
    if spread is None:
        return [""] * 4
    several = spread["ci95"]
    return [spread["mean"], *([spread["std"], *several] if several else [""] * 3)]


def format_comparison_markdown(table: Sequence[Row]) -> str:
    """As the page shows it; the highest is bold."""
    titles = ["algorithm", *select_columns(table).values()]
    return format_markdown_table(titles, format_comparison_rows(table, escape_markdown, "**{}**"))


def format_comparison_latex(table: Sequence[Row]) -> str:
    """With booktabs' rules; the highest is bold."""
    titles = ["algorithm", *select_columns(table).values()]
    return format_latex_table(titles, format_comparison_rows(table, escape_latex, r"\textbf{{{}}}"))


def format_markdown_table(
    titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1
) -> str:
    """A table of escaped lines; so many columns of text on the left, then numbers."""
    rule = ["---"] * text + ["--:"] * (len(titles) - text)
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, rule, *lines))


def format_latex_table(titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1) -> str:
    """The same with booktabs' rules."""
    head = " & ".join(map(escape_latex, titles))
    body = "".join(f"  {' & '.join(line)} \\\\\n" for line in lines)
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{'l' * text}{'r' * (len(titles) - text)}}}\n"
        f"  \\toprule\n  {head} \\\\\n  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
    )


def escape_markdown(text: str) -> str:
    """Text as a Markdown table holds it."""
    return text.replace("|", "\\|")


def format_comparison_rows(
    table: Sequence[Row], escape: Callable[[str], str], bold: str
) -> list[list[str]]:
    """Names and cells; per measure the highest is emphasised where there is a choice."""
    best, out = {k: find_leaders(table, k) for k in select_columns(table)}, []
    for row in table:
        cells = {k: escape(format_cell(row, k)) for k in best}
        marked = [bold.format(v) if row["name"] in best[k] else v for k, v in cells.items()]
        out.append([escape(str(row["name"])), *marked])
    return out


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX_ESCAPES.get(c, c) for c in text)


TABLE_FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    ".csv": format_comparison_csv,
    ".md": format_comparison_markdown,
    ".tex": format_comparison_latex,
}
