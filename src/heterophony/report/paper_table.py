"""A published table with our numbers beside the printed ones, as text and as files."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ..analysis.exports import (
    escape_latex,
    escape_markdown,
    format_latex_table,
    format_markdown_table,
)
from ..core.files import write_atomically, write_json
from ..papers.quick import QUICK_SCALE_NOTE
from ..papers.scale import TableScale

if TYPE_CHECKING:
    from ..papers.reproduce import ReproductionResult
    from ..papers.verdicts import ComparedNumber

COLUMN_TITLES = [
    "row",
    "column",
    "data here",
    "",
    "printed",
    "ours",
    "last 10",
    "difference",
    "verdict",
]
CSV_COLUMNS = (
    *("row", "column", "data", "measure", "printed", "printed_std", "ours", "std", "last10"),
    *("difference", "seeds", "verdict", "why"),
)


def format_table_row(line: ComparedNumber) -> list[str]:
    """Format one compared number as the cells of a row."""
    printed = line.printed
    digits = 4 if line.measure == "score" else 2
    printed_text = "–" if printed is None else format_mean_std([printed.value], digits, printed.std)
    gap = line.difference
    verdict = f"{line.verdict}: {line.why}" if line.verdict == "not comparable" else line.verdict
    return [
        line.row,
        line.column,
        line.data,
        line.measure,
        printed_text,
        format_mean_std(line.values, digits),
        format_mean_std(line.last10, digits),
        "–" if gap is None else f"{gap:+.{digits}f}".replace("-", "−"),
        verdict,
    ]


def format_mean_std(
    values: list[float] | tuple[float, ...], digits: int, std: float | None = None
) -> str:
    """Format the mean and, of several values, their standard deviation."""
    if not values:
        return "–"
    std = stdev(values) if len(values) > 1 else std
    text = f"{fmean(values):.{digits}f}"
    return text if std is None else f"{text} ± {std:.{digits}f}"


def save_paper_table(result: ReproductionResult, folder: Path) -> None:
    """Write ``table.json``, ``table.csv`` (numbers in full), ``table.md`` and ``table.tex``."""
    write_json(folder / "table.json", result.to_dict())
    rows = [format_table_row(line) for line in result.numbers]
    write_atomically(folder / "table.csv", format_paper_csv(result).encode())
    description = [escape_markdown(text) for text in describe_paper_table(result)]
    table = format_markdown_table(
        COLUMN_TITLES, [map(escape_markdown, line) for line in rows], text=4
    )
    write_atomically(
        folder / "table.md", "\n\n".join([f"# {description[0]}", *description[1:], table]).encode()
    )
    comments = "".join(f"% {text}\n" for text in describe_paper_table(result))
    table = format_latex_table(COLUMN_TITLES, [map(escape_latex, line) for line in rows], text=4)
    write_atomically(folder / "table.tex", (comments + table).encode())


def describe_paper_table(result: ReproductionResult) -> list[str]:
    """Describe the table: its title, how the numbers are measured, and which claims hold."""
    table, how = result.table, result.table.published.measured
    rounds = {"best": "best of all", "last": "last", "last10": "mean of the last ten"}[how.rounds]
    clients = {"pooled": "all test examples count alike", "mean": "all clients count alike"}
    seeds = ", ".join(map(str, table.seeds))
    verdicts = {True: "holds", False: "does not hold", None: "cannot be decided"}
    return [
        f"{table.published.paper}, {table.published.where}: {table.published.what}",
        f"Ours: {rounds} evaluations, {clients[how.clients]}; seeds {seeds}; {table.scale} scale.",
        *([QUICK_SCALE_NOTE] if table.scale is TableScale.quick else []),
        *(f"{verdicts[c.holds]}: {c.text} ({c.why})" for c in result.claims),
    ]


def format_paper_csv(result: ReproductionResult) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in result.numbers:
        printed = line.printed
        writer.writerow(
            {
                "row": line.row,
                "column": line.column,
                "data": line.data,
                "measure": line.measure,
                "printed": printed and printed.value,
                "printed_std": printed and printed.std,
                "ours": line.mean,
                "std": line.std,
                "last10": fmean(line.last10) if line.last10 else None,
                "difference": line.difference,
                "seeds": " ".join(map(str, line.seeds)),
                "verdict": line.verdict,
                "why": line.why,
            }
        )
    return out.getvalue()
