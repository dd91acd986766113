"""Lists of published tables, their cells with estimated costs, and their variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.settings import flatten_config
from ..engines.base import count_cores
from ..results.table import Column, Columns, ResultTable, Rows, Value
from .reproduce import TableSelection
from .result_table import format_table_title, list_scale_notes
from .scaling import choose_seeds, estimate_seconds, format_duration, measure_speed
from .table import Cell, PublishedTable, TableScale, describe_variants, load_tables


def list_paper_tables() -> list[dict[str, Any]]:
    """List all published tables and figures, for ``heterophony list papers``."""
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


# Costs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaleCost:
    """The cost of a published table at one scale: number of runs, number of runs whose data are here, and seconds."""

    runs: int
    here: int
    seconds: float | None


@dataclass(frozen=True)
class TableCost:
    """The cost of a published table on this machine at every scale."""

    name: str
    what: str
    scales: dict[TableScale, ScaleCost]

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as plain data for JSON."""
        out: dict[str, Any] = {"name": self.name, "what": self.what}
        for scale, cost in self.scales.items():
            out |= {f"{scale}_{key}": value for key, value in vars(cost).items()}
        return out


def estimate_tables() -> list[TableCost]:
    """Estimate the cost of every published table on this machine."""
    speed, cores = measure_speed(), count_cores()
    return [
        TableCost(t.name, t.what, {s: estimate_scale(t, s, speed, cores) for s in TableScale})
        for t in load_tables()
    ]


def estimate_scale(
    published: PublishedTable, scale: TableScale, speed: float, cores: int
) -> ScaleCost:
    """Estimate the cost of a published table at one scale."""
    if not any(c.needs is None for c in published.cells):
        return ScaleCost(0, 0, None)
    table = TableSelection(published, scale, "*", "*", choose_seeds(published, scale))
    able = [c for c in table.distinct_cells if c.needs is None]
    seconds = sum(estimate_seconds(c.config, speed, cores) for c in able) * len(table.seeds)
    return ScaleCost(len(able) * len(table.seeds), len(table.runs), round(seconds, 1))


def build_cost_table(costs: Sequence[TableCost]) -> ResultTable:
    """Build the table of all published tables with their cost at every scale."""
    columns: Columns = ["table", "what"]
    for scale in TableScale:
        columns += [Column(f"{scale}: runs here"), Column("time")]
    rows: Rows = []
    for cost in costs:
        row: list[Value] = [cost.name, cost.what]
        for at in cost.scales.values():
            time = None if at.seconds is None else format_duration(at.seconds)
            row += [f"{at.here} of {at.runs}", time]
        rows.append(row)
    note = (
        "runs here: those whose data are on this machine; times: estimated from the operations of"
        " all runs and the speed of this machine, to a factor of two"
    )
    return ResultTable.build(columns, rows, notes=[note])


# Cells --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellCost:
    """A cell of a published table, and the seconds of one run here; None if it cannot be run."""

    cell: Cell
    seconds: float | None


def estimate_cells(table: TableSelection) -> list[CellCost]:
    """Estimate the cost of every distinct cell of a published table's selection."""
    speed, cores = measure_speed(), count_cores()
    return [
        CellCost(c, None if c.needs else estimate_seconds(c.config, speed, cores))
        for c in table.distinct_cells
    ]


def describe_cell(table: TableSelection, cost: CellCost) -> dict[str, Any]:
    """Return a cell of a published table and its cost as plain data for JSON."""
    cell = cost.cell
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
        "seconds": cost.seconds and round(cost.seconds, 1),
    }


def build_cell_table(table: TableSelection, costs: Sequence[CellCost]) -> ResultTable:
    """Build the table of a published table's cells, with their cost and distinct settings."""
    shared = find_common_settings([flatten_settings(c.cell.config) for c in costs])
    rows = []
    for cell, seconds in ((c.cell, c.seconds) for c in costs):
        settings = flatten_settings(cell.config)
        own = " ".join(f"{k}={v}" for k, v in settings.items() if k not in shared)
        printed = ", ".join(f"{k} {n.value:g}" for k, n in cell.printed.items()) or "–"
        place = ", ".join(table.stand_ins.get(cell.column, [cell.column]))
        time = "–" if seconds is None else format_duration(seconds)
        rows.append([cell.row, place, *([] if table.stand_ins else [printed]), time, own])
    places = ["in place of"] if table.stand_ins else ["column", "printed"]
    columns = ["row", *places, "each run", "settings of its own"]
    return ResultTable.build(
        columns, rows, format_table_title(table), list_cell_notes(table, costs, shared)
    )


def list_cell_notes(
    table: TableSelection, costs: Sequence[CellCost], shared: Mapping[str, str]
) -> list[str]:
    """List the notes below the cells: common settings, measurement rule, and cells that cannot be run."""
    how, seeds = table.published.measured, ", ".join(map(str, table.seeds))
    able = [c.seconds for c in costs if c.seconds is not None]
    together = "\n".join(f"{k} = {v}" for k, v in shared.items())
    total = format_duration(sum(able) * len(table.seeds))
    missing = dict.fromkeys(filter(None, (table.explain_unavailable(c.cell) for c in costs)))
    return [
        f"settings of all:\n{together}",
        f"{how.rounds} of the rounds, clients {how.clients}, seeds {seeds}",
        *([f"all runs: about {total} on this machine"] if able else []),
        *(f"{'not all' if able else 'none'} can be run: {reason}" for reason in missing),
        *list_scale_notes(table),
    ]


def find_common_settings(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings that all cells have in common."""
    first, *others = configs
    return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}


def flatten_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as dotted keys with values, in the form that ``-c`` accepts."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in flatten_config(config)}


def build_variant_table(table: PublishedTable) -> ResultTable:
    """Build the table of a published table's variants: what each changes, why, and its source."""
    columns: Columns = [Column("variant", "name", "text"), "what", "reason", "source"]
    rows = [list(variant.values()) for variant in describe_variants(table, table.variants)]
    title = f"{table.paper}, {table.where}: variants" if rows else ""
    note = f"{table.name} has no variants"
    if rows:
        note = (
            f"run one: heterophony reproduce {table.name} --variant {rows[0][0]}; several together:"
            " --variant again"
        )
    return ResultTable.build(columns, rows, title, [note])
