"""A published table with our numbers beside the printed ones, as text and as files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from ..core.files import quote_formula, write_atomically, write_json
from ..papers.scaling import SCALE_NOTES
from ..papers.table import describe_variants
from ..papers.verdicts import AVERAGED_NOTE, describe_claim
from ..results.exports import (
    escape_latex,
    escape_markdown,
    format_latex_table,
    format_markdown_table,
)

if TYPE_CHECKING:
    from ..papers.reproduce import ReproductionResult
    from ..papers.table import PublishedTable
    from ..papers.verdicts import ComparedNumber


ROW, COLUMN, SETUP, STANDS_FOR = "row", "column", "data, net", "in place of"
MEASURE, PRINTED, OURS, LAST10 = "", "printed", "ours", "last 10"
DIFFERENCE, VERDICT = "difference", "verdict"
TEXT_TITLES = (ROW, COLUMN, SETUP, STANDS_FOR, MEASURE)
CSV_COLUMNS = (
    *(
        "variant",
        "row",
        "column",
        "in_place_of",
        "data",
        "model",
        "measure",
        "unit",
        "printed",
        "printed_std",
    ),
    *("ours", "std", "last10", "difference", "seeds", "verdict", "why"),
)


def choose_titles(result: ReproductionResult) -> list[str]:
    """The columns of the table: printed numbers and verdicts only of what was run as printed."""
    if not result.table.stand_ins:
        return [ROW, COLUMN, SETUP, MEASURE, PRINTED, OURS, LAST10, DIFFERENCE, VERDICT]
    several = len({line.in_place_of for line in result.numbers}) > 1
    return [ROW, SETUP, *([STANDS_FOR] if several else []), MEASURE, OURS, LAST10]


def count_text_titles(titles: Sequence[str]) -> int:
    return sum(title in TEXT_TITLES for title in titles)


def format_table_rows(result: ReproductionResult, titles: Sequence[str]) -> list[list[str]]:
    """Format the compared numbers as rows of cells."""
    rows = map(format_table_row, result.numbers)
    return [[row[title] for title in titles] for row in rows]


def format_table_row(line: ComparedNumber) -> dict[str, str]:
    """Format one compared number; cells by the titles of their columns."""
    printed = line.printed
    digits = 4 if line.measure == "score" else 2
    printed_text = "–" if printed is None else format_mean_std([printed.value], digits, printed.std)
    gap = line.difference
    verdict = f"{line.verdict}: {line.why}" if line.verdict == "not comparable" else line.verdict
    return {
        ROW: line.row,
        COLUMN: line.column,
        SETUP: line.setup,
        STANDS_FOR: ", ".join(line.in_place_of),
        MEASURE: f"{line.measure_label}, {line.unit}" if line.unit else line.measure_label,
        PRINTED: printed_text,
        OURS: format_mean_std(line.values, digits),
        LAST10: format_mean_std(line.last10, digits),
        DIFFERENCE: "–" if gap is None else f"{gap:+.{digits}f}".replace("-", "−"),
        VERDICT: verdict,
    }


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
    """Write ``table.json``, ``table.csv`` (numbers in full), ``table.md`` and ``table.tex``.

    Those of a variant have its name: ``table--momentum-0.json``.
    """
    path = folder / f"table{get_file_suffix(result.table.published)}"
    write_json(path.with_name(f"{path.name}.json"), result.to_dict())
    titles = choose_titles(result)
    rows, text = format_table_rows(result, titles), count_text_titles(titles)
    write_atomically(path.with_name(f"{path.name}.csv"), format_paper_csv(result).encode())
    description = [escape_markdown(line) for line in describe_paper_table(result)]
    table = format_markdown_table(titles, [map(escape_markdown, line) for line in rows], text)
    write_atomically(
        path.with_name(f"{path.name}.md"),
        "\n\n".join([f"# {description[0]}", *description[1:], table]).encode(),
    )
    comments = "".join(f"% {line}\n" for line in describe_paper_table(result))
    table = format_latex_table(titles, [map(escape_latex, line) for line in rows], text)
    write_atomically(path.with_name(f"{path.name}.tex"), (comments + table).encode())


def describe_paper_table(result: ReproductionResult) -> list[str]:
    """Describe the table: its title, how the numbers are measured, and which claims hold."""
    table, how = result.table, result.table.published.measured
    rounds = {"best": "best of all", "last": "last", "last10": "mean of the last ten"}[how.rounds]
    clients = {"pooled": "all test examples count alike", "mean": "all clients count alike"}
    seeds = ", ".join(map(str, table.seeds))
    return [
        f"{table.published.paper}, {table.published.where}: {table.published.what}",
        *map(format_variant, describe_variants(table.published, table.published.chosen)),
        f"Ours: {rounds} evaluations, {clients[how.clients]}; seeds {seeds}; {table.scale} scale.",
        *describe_stand_ins(result),
        *describe_marks(result),
        *describe_diverged(result),
        *(describe_claim(claim, how.rounds) for claim in result.claims),
    ]


def format_variant(variant: Mapping[str, str]) -> str:
    """Say in a sentence what a variant is, why it is tried, and by which source."""
    return (
        f"Variant {variant['name']}: {variant['what']}; {variant['reason']} ({variant['source']})."
    )


def get_file_suffix(table: PublishedTable) -> str:
    """Return what the names of a variant's files have behind ``table`` or ``figure``."""
    return f"--{table.variant}" if table.variant else ""


def describe_stand_ins(result: ReproductionResult) -> list[str]:
    """Say what was run in place of the paper's columns; nothing if it was run as printed."""
    if not result.table.stand_ins:
        return []
    run = dict.fromkeys(f"Run here: {line.label}." for line in result.numbers)
    note = SCALE_NOTES[result.table.scale]
    return [*run, f"{note[0].upper()}{note[1:]}."]


def describe_marks(result: ReproductionResult) -> list[str]:
    """Explain the mark of measures that rest on parameters averaged only for them, if there is one."""
    return [f"{AVERAGED_NOTE}."] if any(line.averaged for line in result.numbers) else []


def describe_diverged(result: ReproductionResult) -> list[str]:
    """Say which runs diverged: the numbers of their row are of the other seeds."""
    return [f"Diverged, and left out of the numbers: {run}." for run in result.diverged]


def format_paper_csv(result: ReproductionResult) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in result.numbers:
        printed = line.printed
        cells = {
            "variant": result.table.published.variant,
            "row": line.row,
            "column": line.label,
            "in_place_of": "; ".join(line.in_place_of),
            "data": line.data,
            "model": line.model,
            "measure": line.measure,
            "unit": line.unit,
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
        writer.writerow({key: quote_formula(cell) for key, cell in cells.items()})
    return out.getvalue()
