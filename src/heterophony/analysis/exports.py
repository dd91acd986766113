"""Export the comparison of runs as CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from ..core.errors import choose
from ..core.files import write_atomically
from ..core.plain_text import quote_formula
from .leads import explain_highlighting
from .runs import Run
from .tables import PERCENT_COLUMNS, Row, build_comparison_rows, format_cell, select_columns

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
