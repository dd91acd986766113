"""Export the comparison of runs as CSV, Markdown or LaTeX."""

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
    """Write the comparison in the format of the file's suffix."""
    write_atomically(path, TABLE_FORMATS[path.suffix](build_comparison_rows(runs)).encode())


def format_comparison_csv(table: Sequence[Row]) -> str:
    """Format every number in full, accuracies as fractions; std and interval only of several seeds."""
    out, keys = StringIO(), list(select_columns(table))
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "std", "low95", "high95")
    writer.writerow(["name", "seeds", *(f"{k} {part}" for k in keys for part in parts)])
    for row in table:
        numbers = [n for k in keys for n in list_spread_cells(row["over_seeds"].get(k))]
        writer.writerow([row["name"], " ".join(map(str, row["seeds"])), *numbers])
    return out.getvalue()


def list_spread_cells(spread: Row | None) -> list[float | str]:
    """Mean, std and the ends of the interval; empty if unknown."""
    if spread is None:
        return [""] * 4
    interval = spread["ci95"]  # None with one seed
    return [spread["mean"], *([spread["std"], *interval] if interval else [""] * 3)]


def format_comparison_markdown(table: Sequence[Row]) -> str:
    """Format the table as the page shows it; the highest is bold."""
    titles = ["algorithm", *select_columns(table).values()]
    return format_markdown_table(titles, format_comparison_rows(table, escape_markdown, "**{}**"))


def format_comparison_latex(table: Sequence[Row]) -> str:
    """Format the table with booktabs' rules; the highest is bold."""
    titles = ["algorithm", *select_columns(table).values()]
    return format_latex_table(titles, format_comparison_rows(table, escape_latex, r"\textbf{{{}}}"))


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
    table: Sequence[Row], escape: Callable[[str], str], bold: str
) -> list[list[str]]:
    """Names and cells of all rows; the highest value of each measure is bold."""
    best, out = {k: find_leaders(table, k) for k in select_columns(table)}, []
    for row in table:
        cells = {k: escape(format_cell(row, k)) for k in best}
        marked = [bold.format(v) if row["name"] in best[k] else v for k, v in cells.items()]
        out.append([escape(str(row["name"])), *marked])
    return out


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX_ESCAPES.get(c, c) for c in text)


TABLE_FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    ".csv": format_comparison_csv,
    ".md": format_comparison_markdown,
    ".tex": format_comparison_latex,
}
