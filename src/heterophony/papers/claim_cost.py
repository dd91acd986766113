"""What it costs to decide a claim: core-hours of its cells with five seeds, at both scales."""

from __future__ import annotations

from functools import cache

from .claim_list import PaperClaim
from .cost import estimate_seconds
from .medium import MIN_SEEDS, keeps_dataset, shrink_config
from .scale import TableScale
from .table import Cell, PublishedTable, load_table

REFERENCE_SPEED = 90e9  # operations per second of one core: that of benchmarks/README.md
HOUR = 3600


def estimate_core_hours(claim: PaperClaim) -> dict[str, float | None]:
    """Estimate the core-hours of a claim by scale; None where it cannot be decided at that scale."""
    return {
        scale.value: estimate_at_scale(claim, scale)
        for scale in (TableScale.medium, TableScale.full)
    }


def estimate_at_scale(claim: PaperClaim, scale: TableScale) -> float | None:
    """Estimate the core-hours of all cells of a claim; None if one cannot be run at this scale."""
    cells = index_cells(claim.table.name)
    # what is not decided by comparisons is read from the whole table
    found = [cells[key] for key in claim.cells or cells]
    if not found or claim.command or any(cell.needs for cell in found):
        return None
    seeds = max(MIN_SEEDS, len(claim.table.measured.seeds))
    each = [estimate_cell(claim.table.name, cell.row, cell.column, scale) for cell in found]
    known = [seconds for seconds in each if seconds is not None]
    return seeds * sum(known) / HOUR if len(known) == len(each) else None


@cache
def estimate_cell(table: str, row: str, column: str, scale: TableScale) -> float | None:
    """Estimate the seconds of one run of a cell; None if other data stand in at this scale."""
    config = index_cells(table)[row, column].config
    if scale is TableScale.medium:
        small = shrink_config(config, stand_ins="never")
        if not keeps_dataset(config["data"]["name"], small["data"]["name"]):
            return None
        config = small
    return estimate_seconds(config, REFERENCE_SPEED, 1)


@cache
def index_cells(table: str) -> dict[tuple[str, str], Cell]:
    published: PublishedTable = load_table(table)
    return {(cell.row, cell.column): cell for cell in published.cells}


def format_core_hours(hours: float | None) -> str:
    """Format core-hours: ``–`` if unknown, ``0.4``, ``12``, ``1,300``."""
    if hours is None:
        return "–"
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def explain_missing_cost(claim: PaperClaim) -> str:
    """Say why a claim has no cost at either scale."""
    if claim.command:
        return f"by `{claim.command}`"
    cells = index_cells(claim.table.name)
    needs = dict.fromkeys(c.needs for c in (cells[key] for key in claim.cells or cells) if c.needs)
    return f"needs {'; '.join(n for n in needs if n)}" if needs else ""
