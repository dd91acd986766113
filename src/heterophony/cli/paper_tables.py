"""Print published tables: all of them with their cost, the cells of one, or its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.settings import flatten_config
from ..papers.table import TableScale
from . import terminal

if TYPE_CHECKING:
    from ..papers.reproduce import ReproductionResult, TableSelection
    from ..papers.table import Cell, PublishedTable


# Costs --------------------------------------------------------------------------------------


def estimate_costs(cells: Sequence[Cell], cores: int) -> list[float]:
    """Estimate the seconds of one run of each cell, on all cores."""
    from ..papers.cost import estimate_seconds, measure_speed

    rate = measure_speed()
    return [estimate_seconds(c.config, rate, cores) for c in cells]


def format_duration(seconds: float) -> str:
    """Format a duration: ``40 s``, ``12 min``, ``3 h``, ``5 days``."""
    for size, word in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(1, seconds):.0f} s"


# Showing ------------------------------------------------------------------------------------


def list_paper_tables() -> list[dict[str, Any]]:
    """List all tables and figures, one line each."""
    from ..papers.table import load_tables

    return [
        {
            "name": e.name,
            "paper": f"{e.paper}, {e.where}",
            "what": e.what,
            "cells": len(e.cells),
            "runnable": sum(c.needs is None for c in e.cells),
            "needs": e.missing_requirements,
            "variants": list(e.variants),
        }
        for e in load_tables()
    ]


def show_all_tables(json: bool) -> None:
    """Print every table with its cost on this machine, at every scale."""
    from ..engines.base import count_cores
    from ..papers.cost import estimate_seconds, measure_speed
    from ..papers.reproduce import TableSelection
    from ..papers.scaling import choose_seeds
    from ..papers.table import load_tables

    rate, rows = measure_speed(), []
    for found in load_tables():
        line: dict[str, Any] = {"name": found.name, "what": found.what}
        for scale in TableScale:
            if not any(c.needs is None for c in found.cells):
                line |= {f"{scale}_runs": 0, f"{scale}_here": 0, f"{scale}_seconds": None}
                continue
            table = TableSelection(found, scale, "*", "*", choose_seeds(found, scale))
            able = [c for c in table.distinct_cells if c.needs is None]
            each = [estimate_seconds(c.config, rate, count_cores()) for c in able]
            line |= {
                f"{scale}_runs": len(able) * len(table.seeds),
                f"{scale}_here": len(table.runs),
                f"{scale}_seconds": round(sum(each) * len(table.seeds), 1),
            }
        rows.append(line)
    if json:
        terminal.print_json(rows)
        return
    shown = []
    for r in rows:
        costs = [
            cell
            for s in TableScale
            for cell in (
                f"{r[f'{s}_here']} of {r[f'{s}_runs']}",
                "–" if r[f"{s}_seconds"] is None else format_duration(r[f"{s}_seconds"]),
            )
        ]
        shown.append([r["name"], r["what"], *costs])
    scales = [title for s in TableScale for title in (f"{s}: runs here", "time")]
    titles = ["table", "what", *scales]
    terminal.print_table("", titles, shown, text=2)
    terminal.print_note(
        "runs here: those whose data are on this machine; times: estimated from the operations of all"
        " runs and the speed of this machine, to a factor of two"
    )


def show_cells(table: TableSelection, json: bool) -> None:
    """Print the runs of a table, their cost and their settings."""
    from ..engines.base import count_cores
    from ..papers.reproduce import describe_duplicates

    found, cells = table.published, table.distinct_cells
    able = [c for c in cells if c.needs is None]
    each = dict(zip(map(id, able), estimate_costs(able, count_cores()), strict=True))
    if json:
        terminal.print_json([describe_cell(table, c, each.get(id(c))) for c in cells])
        return
    shared = find_common_settings([flatten_settings(c.config) for c in cells])
    rows = []
    for cell in cells:
        own = [f"{k}={v}" for k, v in flatten_settings(cell.config).items() if k not in shared]
        said = [f"{k} {n.value:g}" for k, n in cell.printed.items()]
        cost = format_duration(each[id(cell)]) if id(cell) in each else "–"
        place = ", ".join(table.stand_ins.get(cell.column, [cell.column]))
        printed = [] if table.stand_ins else [", ".join(said) or "–"]
        rows.append([cell.row, place, *printed, cost, " ".join(own)])
    titles = ["row", *(["in place of"] if table.stand_ins else ["column", "printed"])]
    titles += ["each run", "settings of its own"]
    terminal.print_table(format_table_title(table), titles, rows, text=len(titles))
    together = "\n".join(f"{k} = {v}" for k, v in shared.items())
    terminal.print_note(f"settings of all:\n{together}")
    how, seeds = found.measured, ", ".join(map(str, table.seeds))
    terminal.print_note(f"{how.rounds} of the rounds, clients {how.clients}, seeds {seeds}")
    if able:
        whole = format_duration(sum(each.values()) * len(table.seeds))
        terminal.print_note(f"all runs: about {whole} on this machine")
    for missing in dict.fromkeys(filter(None, map(table.explain_unavailable, cells))):
        terminal.print_note(f"{'not all' if able else 'none'} can be run: {missing}")
    print_scale_notes(table, describe_duplicates(table))


def show_variants(table: PublishedTable, json: bool) -> None:
    """Print the variants of a table: what each changes, why, and by which source."""
    from ..papers.table import describe_variants

    found = describe_variants(table, table.variants)
    if json:
        terminal.print_json(found)
        return
    if not found:
        terminal.print_note(f"{table.name} has no variants")
        return
    titles = ["variant", "what", "reason", "source"]
    rows = [list(variant.values()) for variant in found]
    terminal.print_table(f"{table.paper}, {table.where}: variants", titles, rows, text=4)
    terminal.print_note(
        f"run one: heterophony reproduce {table.name} --variant {found[0]['name']}; several together:"
        " --variant again"
    )


def format_table_title(table: TableSelection) -> str:
    found = table.published
    title = f"{found.paper}, {found.where}: {found.what}"
    if found.variant:
        title = f"{title}\nvariant {found.variant}"
    return f"{title}\n{table.scale} scale, not as printed" if table.stand_ins else title


def print_scale_notes(table: TableSelection, same: Sequence[str]) -> None:
    from ..papers.scaling import SCALE_NOTES

    if note := SCALE_NOTES.get(table.scale):
        terminal.print_note(note)
        for words in same:
            terminal.print_note(words)


def describe_cell(table: TableSelection, cell: Cell, seconds: float | None) -> dict[str, Any]:
    stands_for = table.stand_ins.get(cell.column, ())
    printed = {k: {"value": n.value, "std": n.std} for k, n in cell.printed.items()}
    return {
        "row": cell.row,
        "column": table.describe_column(cell),
        "in_place_of": list(stands_for),
        "printed": {} if stands_for else printed,
        "seeds": list(table.seeds),
        "config": cell.config,
        "needs": table.explain_unavailable(cell),
        "seconds": seconds and round(seconds, 1),
    }


def find_common_settings(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Find the settings that all cells share."""
    first, *others = configs
    return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted keys and values, as ``-c`` takes them."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in flatten_config(config)}


def show_table_result(outcome: ReproductionResult, parent: Path, json: bool) -> None:
    """Print the table with verdicts and claims; write it and its figure beside the runs."""
    from ..papers.reproduce import describe_duplicates, read_finished
    from ..papers.table import describe_variants
    from ..papers.verdicts import describe_claim
    from ..report.figures import paper_curves as paper_figures
    from ..report.paper_table import (
        DIFFERENCE,
        SETUP,
        choose_titles,
        count_text_titles,
        describe_diverged,
        describe_marks,
        format_table_rows,
        format_variant,
        get_file_suffix,
        save_paper_table,
    )
    from ..runs.events import get_start

    save_paper_table(outcome, parent)
    paper_figures.save_paper_figure(outcome, read_finished(outcome.table, parent), parent)
    if json:
        terminal.print_json(outcome.to_dict())
        return
    table, titles = outcome.table, choose_titles(outcome)
    terminal.print_table(
        format_table_title(table),
        titles,
        format_table_rows(outcome, titles),
        text=count_text_titles(titles),
        optional=[] if table.stand_ins else [SETUP, DIFFERENCE],
    )
    for variant in describe_variants(table.published, table.published.chosen):
        terminal.print_note(format_variant(variant))
    for words in (*describe_marks(outcome), *describe_diverged(outcome)):
        terminal.print_note(words)
    if not (outcome.claims or table.published.claims):
        terminal.print_note("this table claims no ordering")
    for claim in outcome.claims:
        terminal.print_note(describe_claim(claim, table.published.measured.rounds))
    for words in table.published.claims:
        terminal.print_note(f"also claimed, not checked: {words}")
    for label in dict.fromkeys(n.label for n in outcome.numbers if n.in_place_of):
        terminal.print_note(f"run here: {label}")
    starts = (get_start(events) for _, events in read_finished(table, parent))
    for remark in dict.fromkeys(start.get("data_remark", "") for start in starts):
        if remark:
            terminal.print_note(remark)
    print_scale_notes(table, describe_duplicates(table))
    suffix = get_file_suffix(table.published)
    terminal.print_note(
        f"{parent}/table{suffix}.md, .csv, .tex, .json; {parent}/figure{suffix}.svg, .png;"
        f" a page: heterophony report {parent}"
    )
