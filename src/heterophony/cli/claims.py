"""``reproduce --claims``: what was found out about the claims of the five works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConfigError
from ..papers.scale import TableScale
from . import terminal

if TYPE_CHECKING:
    from ..papers.claim_verdicts import ClaimVerdict
    from ..papers.evidence import StoredRun

RUNS_FOLDER = Path("runs")  # where `reproduce` puts runs, unless told otherwise


def show_claims(name: str | None, own_runs: Path | None, page: Path | None, json: bool) -> None:
    """Print every claim with its verdict, of one table with all that was found; or write a page."""
    from ..papers.claim_data import (
        count_findings,
        judge_all_claims,
        list_verdicts,
        summarise_verdict,
    )
    from ..papers.evidence import merge_runs, read_stored_runs
    from ..papers.table import load_table

    if name is not None:
        load_table(name)  # raises if there is none of that name
    runs = merge_runs(read_stored_runs(), read_own_runs(own_runs))
    found = judge_all_claims(runs, name)
    if not found:
        raise ConfigError(
            f"reproduce {name} --claims: this table has no claims; without a name, all are shown"
        )
    claims = list_verdicts(found, name)
    if page is not None:
        from ..report.claims_page import save_claims

        save_claims(found, page, name)
        terminal.print_note(f"wrote {page}")
    elif json:
        terminal.print_json([summarise_verdict(one) for one in claims])
    else:
        print_claims(claims, detailed=name is not None)
        terminal.print_note(count_findings(found))


def read_own_runs(folder: Path | None) -> list[StoredRun]:
    """Read the user's runs of published tables: in the folder named, or where they usually are."""
    from ..analysis.runs import load_runs
    from ..papers.evidence import list_cells_at_scales, match_runs
    from ..papers.table import load_tables

    judged = (TableScale.medium, TableScale.full)
    folders = [folder] if folder else [p for s in judged for p in RUNS_FOLDER.glob(f"*-{s}")]
    audits = read_own_audits([folder] if folder else sorted(RUNS_FOLDER.glob("*")))
    if not folders:
        return audits
    # all tables: what a claim is measured by may be another table's FedAvg, or centralised training
    cells = list_cells_at_scales(load_tables())
    return [*match_runs(load_runs(folders, terminal.print_note), cells), *audits]


def read_own_audits(folders: Sequence[Path]) -> list[StoredRun]:
    """Read the user's audits that are evidence for claims; others are of something else."""
    from ..core.errors import FolderError
    from ..privacy.evidence import describe_audit, is_audit

    found: list[StoredRun] = []
    for folder in folders:
        if is_audit(folder):
            try:
                found += describe_audit(folder)
            except FolderError as error:
                terminal.print_note(f"left out: {error}")
    return found


def print_claims(found: Sequence[ClaimVerdict], detailed: bool) -> None:
    """Print a table of the claims; in detail, also everything that was found about each."""
    from ..papers.claim_data import CASE_TITLES, describe_cost, describe_found, list_cases

    rows = [
        [
            f"{one.claim.table.paper}, {one.claim.table.where}",
            one.claim.says,
            one.claim.printed,
            one.verdict,
            describe_cost(one),
        ]
        for one in found
    ]
    titles = ["work", "claim", "printed", "verdict", "core-hours: medium / full"]
    terminal.print_table("", titles, rows, text=4, optional=["printed"])
    if not detailed:
        terminal.print_note("what was found, of one table: heterophony reproduce TABLE --claims")
        return
    for one in found:
        terminal.print_note(f"{one.claim.says}: {one.claim.how}")
        terminal.print_note(f"  {describe_found(one)}")
        if one.cases:  # without the differences over the rounds, which are too long for a terminal
            cases = [row[:-1] for row in list_cases(one)]
            terminal.print_table("", CASE_TITLES[:-1], cases, text=len(CASE_TITLES) - 1)
