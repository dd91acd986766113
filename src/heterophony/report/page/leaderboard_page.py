"""The HTML page of a leaderboard: one self-contained file with filters, intervals and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...analysis.leaderboard import MEASURES, BoardRow, BoardTable
from ...core.files import write_atomically
from .html import render_page


def write_leaderboard_page(tables: Sequence[BoardTable], path: Path) -> None:
    """Write the page as one file."""
    write_atomically(path, render_leaderboard_page(tables).encode())


def render_leaderboard_page(tables: Sequence[BoardTable]) -> str:
    """Render the page as text."""
    entries = sum(len(table.rows) for table in tables)
    settings = f"{len(tables)} setting{'s' * (len(tables) != 1)}"
    return render_page(
        "leaderboard.html",
        ("leaderboard.js", "elements.js"),
        build_leaderboard_data(tables),
        title="Leaderboard",
        summary=f"{entries} entries in {settings}, each with the hash of its models, by which anyone can check it.",
    )


def build_leaderboard_data(tables: Sequence[BoardTable]) -> dict[str, Any]:
    """Collect the numbers of all settings as plain data."""
    return {"measures": list(MEASURES), "settings": [describe_table(table) for table in tables]}


def describe_table(table: BoardTable) -> dict[str, Any]:
    """Describe the entries of one setting."""
    compared = {
        measure: None
        if c is None
        else {"p": c.p, "critical_difference": c.critical_difference, "seeds": c.blocks}
        for measure, c in table.comparisons.items()
    }
    return {
        "setting": table.setting,
        "common_seeds": table.common_seeds,
        "ranks": compared,
        "entries": [describe_row(row) for row in table.rows],
    }


def describe_row(row: BoardRow) -> dict[str, Any]:
    """Describe one entry."""
    return {
        "name": row.entry.folder.name,
        "algorithm": row.entry.algorithm,
        "remark": row.entry.remark,
        "seeds": {str(s): r.model_sha256 for s, r in row.entry.seeds.items()},
        "means": dict(row.means),
        "intervals": {m: list(i) if i else None for m, i in row.intervals.items()},
        "ranks": dict(row.ranks),
    }
