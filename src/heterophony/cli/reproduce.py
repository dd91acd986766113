"""``reproduce --claims``: what was found out about the claims of the five works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from ..papers.table import TableScale
from . import terminal
from .options import (
    SAME_COMMAND,
    EngineOption,
    JsonOption,
    SeedsCommand,
    check_only_engine_settings,
    parse_seeds,
)
from .paper_tables import (
    format_duration,
    show_all_tables,
    show_cells,
    show_table_result,
    show_variants,
)

if TYPE_CHECKING:
    from ..papers.claim_verdicts import ClaimVerdict
    from ..papers.evidence import StoredRun
    from ..papers.reproduce import ReproductionResult, TableSelection


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
    from ..papers.evidence import list_cells_at_scales, match_runs
    from ..papers.table import load_tables
    from ..results.runs import load_runs

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


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(cls=SeedsCommand)(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Without it: list all tables and their cost here."),
    ] = None,
    rows: Annotated[str, typer.Option(help="Only these, as in 'Fed*'.")] = "*",
    columns: Annotated[str, typer.Option(help="Only these, as in 'CIFAR-10*'.")] = "*",
    seeds: Annotated[
        str | None,
        typer.Option(help="As in 0 1, or 0-4; default: the paper's; quick: one, medium: five."),
    ] = None,
    scale: Annotated[
        TableScale, typer.Option(help="Minutes on digits, orderings on small data, or as printed.")
    ] = TableScale.quick,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Other settings that the paper may have run; may be repeated."),
    ] = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="List the variants of the table, run nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; default: runs/TABLE-SCALE.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Jobs at a time; default: one per core.")
    ] = None,
    pairs: EngineOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and their cost, run nothing.")
    ] = False,
    claims: Annotated[
        bool,
        typer.Option("--claims", help="Show what was found out about every claim, run nothing."),
    ] = False,
    page: Annotated[
        Path | None, typer.Option("-o", help="With --claims: write a page, .html or .md.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a published table: the printed number, ours, and a verdict. Re-run to continue."""
    if claims:
        show_claims(name, out, page, json)
        return
    if page is not None:
        raise ConfigError(f"-o {page}: only with --claims; the folder of runs is --out")
    if name is None:
        show_all_tables(json)
        return
    check_only_engine_settings(pairs)
    from ..papers.reproduce import TableSelection
    from ..papers.scaling import choose_seeds
    from ..papers.table import load_table

    paper_table = load_table(name).choose_variants(variant or [])
    if variants:
        show_variants(paper_table, json)
        return
    default = choose_seeds(paper_table, scale)
    chosen = default if seeds is None else tuple(dict.fromkeys(parse_seeds(seeds)))
    if min(chosen) < 0:
        raise ConfigError(f"--seeds {seeds}: a seed is at least 0")
    table = TableSelection(paper_table, scale, rows, columns, chosen)
    if dry_run:
        show_cells(table, json)
        return
    parent = out or Path("runs") / f"{name}-{scale}"
    show_table_result(run_table(table, parent, workers, json, pairs or []), parent, json)


def run_table(
    table: TableSelection, parent: Path, workers: int | None, quiet: bool, pairs: list[str]
) -> ReproductionResult:
    """Run what is left of the table's runs, and show their progress."""
    from ..config.reading import read_config
    from ..engines.base import check_engine_installed, count_cores
    from ..papers.reproduce import build_result, prepare_due_runs, run_due

    engine, cores = read_config(None, pairs).engine, workers or count_cores()
    check_engine_installed(engine.name)
    engine.choose_compute()  # raises if the device is not here
    due = prepare_due_runs(table, parent, cores)
    if due and not quiet:
        runs = f"{len(due)} run{'s' if len(due) > 1 else ''}"
        time = format_duration(sum(d.seconds for d in due))
        terminal.print_note(f"{runs}, about {time} on this machine; {SAME_COMMAND}")
    folders = [d.folder for d in due]
    with terminal.show_interruptible_progress(SAME_COMMAND, folders) as shown:
        failed = run_due(due, engine, pairs, cores, workers, shown, terminal.print_note)
    return build_result(table, parent, failed)
