"""A reproduced table with our numbers next to the printed ones, for a terminal and as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

from ..core.files import write_atomically, write_json
from ..results.table import (
    Cell,
    Column,
    ResultTable,
    Rows,
    Value,
    render_csv,
    render_latex,
    render_markdown,
)
from .reproduce import ReproductionResult, TableSelection
from .scaling import SCALE_NOTES
from .table import PublishedTable, describe_variants
from .verdicts import AVERAGED_NOTE, ComparedNumber, describe_claim

TEXT_COLUMNS = {
    "row": Column("row", kind="text"),
    "column": Column("column", kind="text"),
    "setup": Column("data, net", "setup", kind="text", drop=1),
    "in_place_of": Column("in place of", "in_place_of", kind="text"),
    "measure": Column("", "measure", kind="text"),
}
NUMBER_COLUMNS = {
    "printed": Column("printed", show="std"),
    "ours": Column("ours", show="std"),
    "last10": Column("last 10", "last10", show="std"),
    "difference": Column("difference", form="+.2f", drop=2),
    "verdict": Column("verdict"),
}
AS_PRINTED = ("row", "column", "setup", "measure", *NUMBER_COLUMNS)
CSV_COLUMNS = (
    *("variant", "row", "column", "in_place_of", "data", "model", "measure", "unit", "printed"),
    *("printed_std", "ours", "std", "last10", "difference", "seeds", "verdict", "why"),
)


def build_paper_table(result: ReproductionResult) -> ResultTable:
    """Build the reproduced table; only cells run as printed have printed numbers and verdicts."""
    keys: Sequence[str] = AS_PRINTED
    columns = {**TEXT_COLUMNS, **NUMBER_COLUMNS}
    if result.table.stand_ins:
        several = len({line.in_place_of for line in result.numbers}) > 1
        place = ["in_place_of"] if several else []
        keys = ["row", "setup", *place, "measure", "ours", "last10"]
        columns["setup"] = replace(columns["setup"], drop=0)
    rows = [[list_number_cells(line)[key] for key in keys] for line in result.numbers]
    return ResultTable.build([columns[key] for key in keys], rows, format_table_title(result.table))


def list_number_cells(line: ComparedNumber) -> dict[str, Value]:
    """Return the table cells of a compared number, by the keys of their columns."""
    digits, printed = (4 if line.measure == "score" else 2), line.printed
    verdict = f"{line.verdict}: {line.why}" if line.verdict == "not comparable" else line.verdict
    return {
        "row": line.row,
        "column": line.column,
        "setup": line.setup,
        "in_place_of": ", ".join(line.in_place_of),
        "measure": f"{line.measure_label}, {line.unit}" if line.unit else line.measure_label,
        "printed": Cell(printed.value, printed.std, form=f".{digits}f") if printed else None,
        "ours": build_average_cell(line.values, digits),
        "last10": build_average_cell(line.last10, digits),
        "difference": Cell(line.difference, form=f"+.{digits}f"),
        "verdict": verdict,
    }


def build_average_cell(values: Sequence[float], digits: int) -> Cell:
    """Return a table cell with the mean and, for several values, the sample standard deviation."""
    if not values:
        return Cell()
    std = stdev(values) if len(values) > 1 else None
    return Cell(fmean(values), std, form=f".{digits}f")


def format_table_title(table: TableSelection) -> str:
    """Return the title of a reproduced table: paper, place, content and, if any, variant and scale."""
    found = table.published
    title = f"{found.paper}, {found.where}: {found.what}"
    if found.variant:
        title = f"{title}\nvariant {found.variant}"
    return f"{title}\n{table.scale} scale, not as printed" if table.stand_ins else title


# Files --------------------------------------------------------------------------------------


def save_paper_table(result: ReproductionResult, folder: Path) -> None:
    """Write a reproduced table as ``table.json``, ``table.csv`` (numbers in full), ``table.md`` and ``table.tex``.

    File names include the variant, as in ``table--momentum-0.json``.
    """
    name = f"table{get_file_suffix(result.table.published)}"
    title, *sentences = describe_paper_table(result)
    table = build_paper_table(result)
    texts = {
        "csv": render_csv(build_csv_table(result)),
        "md": "\n\n".join([f"# {title}", *sentences, render_markdown(table)]),
        "tex": render_latex(replace(table, notes=(title, *sentences))),
    }
    write_json(folder / f"{name}.json", result.to_dict())
    for suffix, text in texts.items():
        write_atomically(folder / f"{name}.{suffix}", text.encode())


def build_csv_table(result: ReproductionResult) -> ResultTable:
    """Build the reproduced table for CSV, with a column for each number."""
    rows: Rows = [
        [
            *(result.table.published.variant, line.row, line.label, "; ".join(line.in_place_of)),
            *(line.data, line.model, line.measure, line.unit),
            *((line.printed.value, line.printed.std) if line.printed else (None, None)),
            *(line.mean, line.std, fmean(line.last10) if line.last10 else None, line.difference),
            *(" ".join(map(str, line.seeds)), line.verdict, line.why),
        ]
        for line in result.numbers
    ]
    return ResultTable.build(CSV_COLUMNS, rows)


def get_file_suffix(table: PublishedTable) -> str:
    """Return the suffix of a variant's file names, after ``table`` or ``figure``."""
    return f"--{table.variant}" if table.variant else ""


# Sentences ----------------------------------------------------------------------------------


def describe_paper_table(result: ReproductionResult) -> list[str]:
    """Describe a reproduced table: its title, how its numbers are measured and which claims hold."""
    table, how = result.table, result.table.published.measured
    rounds = {"best": "best of all", "last": "last", "last10": "mean of the last ten"}[how.rounds]
    clients = {"pooled": "all test examples count alike", "mean": "all clients count alike"}
    seeds = ", ".join(map(str, table.seeds))
    return [
        f"{table.published.paper}, {table.published.where}: {table.published.what}",
        *describe_chosen_variants(table.published),
        f"Ours: {rounds} evaluations, {clients[how.clients]}; seeds {seeds}; {table.scale} scale.",
        *describe_stand_ins(result),
        *describe_averaged_measures(result),
        *describe_diverged(result),
        *(describe_claim(claim, how.rounds) for claim in result.claims),
    ]


def describe_chosen_variants(table: PublishedTable) -> list[str]:
    """Describe each chosen variant in one sentence: what it is, why it is tried, and its source."""
    return [
        f"Variant {v['name']}: {v['what']}; {v['reason']} ({v['source']})."
        for v in describe_variants(table, table.chosen)
    ]


def describe_stand_ins(result: ReproductionResult) -> list[str]:
    """Describe what was run in place of the paper's columns; empty if they were run as printed."""
    if not result.table.stand_ins:
        return []
    run = dict.fromkeys(f"Run here: {line.label}." for line in result.numbers)
    note = SCALE_NOTES[result.table.scale]
    return [*run, f"{note[0].upper()}{note[1:]}."]


def describe_averaged_measures(result: ReproductionResult) -> list[str]:
    """Explain the mark of measures whose personal parameters were averaged, if a number has it."""
    return [f"{AVERAGED_NOTE}."] if any(line.averaged for line in result.numbers) else []


def describe_diverged(result: ReproductionResult) -> list[str]:
    """Describe the runs that diverged, which are left out of the numbers."""
    return [f"Diverged and left out of the numbers: {run}." for run in result.diverged]


def list_result_notes(result: ReproductionResult, folder: Path) -> list[str]:
    """List the notes below a reproduced table in a terminal."""
    table, suffix = result.table, get_file_suffix(result.table.published)
    claimed = result.claims or table.published.claims
    labels = dict.fromkeys(f"run here: {n.label}" for n in result.numbers if n.in_place_of)
    return [
        *describe_chosen_variants(table.published),
        *describe_averaged_measures(result),
        *describe_diverged(result),
        *([] if claimed else ["this table claims no ordering"]),
        *(describe_claim(claim, table.published.measured.rounds) for claim in result.claims),
        *(f"also claimed, not checked: {words}" for words in table.published.claims),
        *labels,
        *result.remarks,
        *list_scale_notes(table),
        f"{folder}/table{suffix}.md, .csv, .tex, .json; {folder}/figure{suffix}.svg, .png;"
        f" a page: heterophony report {folder}",
    ]


def list_scale_notes(table: TableSelection) -> list[str]:
    """Describe what the scale of a table changes and which rows or columns become the same."""
    note = SCALE_NOTES.get(table.scale)
    return [note, *table.describe_duplicates()] if note else []
