"""The comparison of runs as a file for other programs and papers: CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path

from ..core.files import write
from .runs import Run
from .tables import (
    Row,
    cell,
    columns,
    leaders,
    rows,
)

LATEX = {
    **{c: f"\\{c}" for c in "%_&#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


def export(runs: Sequence[Run], path: Path) -> None:
    """The table in the format that the suffix says."""
    write(path, FORMATS[path.suffix](rows(runs)).encode())


def as_csv(table: Sequence[Row]) -> str:
    """Every number in full, fractions as fractions: mean; of several seeds, std and interval."""
    out, keys = StringIO(), list(columns(table))
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "std", "low95", "high95")
    writer.writerow(["name", "seeds", *(f"{k} {part}" for k in keys for part in parts)])
    for row in table:
        numbers = [n for k in keys for n in spelled(row["over_seeds"].get(k))]
        writer.writerow([row["name"], " ".join(map(str, row["seeds"])), *numbers])
    return out.getvalue()


def spelled(spread: Row | None) -> list[float | str]:
    """Mean, std and the interval's ends; empty where there is nothing to say."""
    if spread is None:
        return [""] * 4
    several = spread["ci95"]
    return [spread["mean"], *([spread["std"], *several] if several else [""] * 3)]


def as_markdown(table: Sequence[Row]) -> str:
    """As the page shows it; the highest is bold."""
    titles = ["algorithm", *columns(table).values()]
    return markdown(titles, shown(table, piped, "**{}**"))


def as_latex(table: Sequence[Row]) -> str:
    """With booktabs' rules; the highest is bold."""
    titles = ["algorithm", *columns(table).values()]
    return latex(titles, shown(table, escaped, r"\textbf{{{}}}"))


def markdown(titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1) -> str:
    """A table of escaped lines; so many columns of text on the left, then numbers."""
    rule = ["---"] * text + ["--:"] * (len(titles) - text)
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, rule, *lines))


def latex(titles: Sequence[str], lines: Iterable[Iterable[str]], text: int = 1) -> str:
    """The same with booktabs' rules."""
    head = " & ".join(map(escaped, titles))
    body = "".join(f"  {' & '.join(line)} \\\\\n" for line in lines)
    return (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{{'l' * text}{'r' * (len(titles) - text)}}}\n"
        f"  \\toprule\n  {head} \\\\\n  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
    )


def piped(text: str) -> str:
    """Text as a Markdown table holds it."""
    return text.replace("|", "\\|")


def shown(table: Sequence[Row], escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Names and cells; per measure the highest is emphasised where there is a choice."""
    best, out = {k: leaders(table, k) for k in columns(table)}, []
    for row in table:
        cells = {k: escape(cell(row, k)) for k in best}
        marked = [bold.format(v) if row["name"] in best[k] else v for k, v in cells.items()]
        out.append([escape(str(row["name"])), *marked])
    return out


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(LATEX.get(c, c) for c in text)


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    ".csv": as_csv,
    ".md": as_markdown,
    ".tex": as_latex,
}
