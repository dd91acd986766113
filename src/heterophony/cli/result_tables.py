"""Print results: the table of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..runs.summary import Summary


def show_run(summary: Summary, folder: Path, json: bool, trained: bool = False) -> None:
    """Print the table of a run; with ``trained``, also P of clients right after they trained."""
    from ..results.run_table import build_run_tables

    if json:
        terminal.print_json(summary.to_dict())
    else:
        terminal.print_tables(build_run_tables(summary, folder, trained))


def show_comparison(parent: Path, json: bool) -> None:
    """Print the table of a comparison, and what can be concluded from it."""
    from ..results.comparison import compare_runs
    from ..results.comparison_tables import build_overview_tables
    from ..results.runs import load_runs

    runs = load_runs([parent], terminal.print_note)
    if json:
        terminal.print_json([row.to_dict() for row in compare_runs(runs)])
        return
    terminal.print_tables(build_overview_tables(runs))
    terminal.print_note(f"{parent}; a page with curves: heterophony report {parent}")
