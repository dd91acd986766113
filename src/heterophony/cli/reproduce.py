"""The commands ``reproduce`` and ``leaderboard``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from ..papers.table import TableScale
from . import options, terminal

if TYPE_CHECKING:
    from ..papers.reproduce import ReproductionResult, TableSelection
    from ..papers.table import PublishedTable


def register(app: typer.Typer) -> None:
    """Add ``reproduce`` and the command group ``leaderboard`` to the app."""
    app.command(cls=options.SeedsCommand)(reproduce)
    app.add_typer(board_app, name="leaderboard")


NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TABLE]",
        help="A published table. Without it, list all tables and their cost on this machine.",
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Seeds, as in 0 1 or 0-4. Default: the paper's; one at scale quick, five at medium."
    ),
]
ScaleOption = Annotated[
    TableScale,
    typer.Option(
        help="quick: minutes, on digits; medium: orderings, on small data; full: as printed."
    ),
]
VariantOption = Annotated[
    list[str] | None,
    typer.Option(help="A variant: different settings that the paper may have used; repeatable."),
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Jobs at a time; default: one per core.")
]


def reproduce(
    name: NameArgument = None,
    rows: Annotated[str, typer.Option(help="Only these rows, as in 'Fed*'.")] = "*",
    columns: Annotated[str, typer.Option(help="Only these columns, as in 'CIFAR-10*'.")] = "*",
    seeds: SeedsOption = None,
    scale: ScaleOption = TableScale.quick,
    variant: VariantOption = None,
    variants: Annotated[
        bool, typer.Option("--variants", help="List the variants of the table; run nothing.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; default: runs/TABLE-SCALE.")
    ] = None,
    workers: WorkersOption = None,
    pairs: options.EngineOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and their cost; run nothing.")
    ] = False,
    claims: Annotated[
        bool, typer.Option("--claims", help="Show the verdict on every claim; run nothing.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("-o", help="With --claims: write a page, .html or .md.")
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Run a published table; show printed numbers, ours and a verdict. Run again to continue."""
    if claims:
        show_claims(name, out, page, json)
        return
    if page is not None:
        raise ConfigError(f"-o {page}: only with --claims; the folder of runs is --out")
    if name is None:
        show_tables(json)
        return
    options.check_only_engine_settings(pairs)
    from ..papers.reproduce import TableSelection
    from ..papers.scaling import choose_seeds
    from ..papers.table import load_table

    published = load_table(name).choose_variants(variant or [])
    if variants:
        show_variants(published, json)
        return
    default = choose_seeds(published, scale)
    chosen = default if seeds is None else tuple(dict.fromkeys(options.parse_seeds(seeds)))
    if min(chosen) < 0:
        raise ConfigError(f"--seeds {seeds}: a seed must be at least 0")
    table = TableSelection(published, scale, rows, columns, chosen)
    if dry_run:
        show_cells(table, json)
    else:
        run_and_show(table, out or Path("runs") / f"{name}-{scale}", workers, pairs or [], json)


def run_and_show(
    table: TableSelection, parent: Path, workers: int | None, pairs: list[str], json: bool
) -> None:
    """Execute the remaining runs of a published table and show the result."""
    from ..papers.reproduce import run_table

    open_progress = partial(terminal.show_interruptible_progress, options.SAME_COMMAND)
    result = run_table(table, parent, pairs, workers, open_progress, terminal.print_note)
    show_result(result, parent, json)


def show_result(result: ReproductionResult, parent: Path, json: bool) -> None:
    """Print a reproduced table; write the table and its figure next to the runs."""
    from ..papers.reproduce import read_finished
    from ..papers.result_table import build_paper_table, list_result_notes, save_paper_table
    from ..report.figures.paper_curves import save_paper_figure

    save_paper_table(result, parent)
    save_paper_figure(result, read_finished(result.table, parent), parent)
    if json:
        terminal.print_json(result.to_dict())
        return
    terminal.print_table(build_paper_table(result))
    for note in list_result_notes(result, parent):
        terminal.print_note(note)


def show_tables(json: bool) -> None:
    """Print all published tables with their cost on this machine at every scale."""
    from ..papers.listing import build_cost_table, estimate_tables

    costs = estimate_tables()
    if json:
        terminal.print_json([cost.to_dict() for cost in costs])
    else:
        terminal.print_table(build_cost_table(costs))


def show_cells(table: TableSelection, json: bool) -> None:
    """Print the cells of a published table with their cost and settings."""
    from ..papers.listing import build_cell_table, describe_cell, estimate_cells

    costs = estimate_cells(table)
    if json:
        terminal.print_json([describe_cell(table, cost) for cost in costs])
    else:
        terminal.print_table(build_cell_table(table, costs))


def show_variants(table: PublishedTable, json: bool) -> None:
    """Print the variants of a published table: what each changes, why, and its source."""
    from ..papers.listing import build_variant_table
    from ..results.table import render_json

    found = build_variant_table(table)
    if json:
        terminal.print_json(render_json(found))
    elif found.rows:
        terminal.print_table(found)
    else:
        terminal.print_note(found.notes[0])


def show_claims(name: str | None, own_runs: Path | None, page: Path | None, json: bool) -> None:
    """Print the verdicts on published claims, with all evidence for a single table; or write a page."""
    from ..papers import claim_data
    from ..papers.evidence import merge_stored_runs, read_stored_runs
    from ..papers.table import load_table
    from ..privacy.run_audit import read_own_runs

    if name is not None:
        load_table(name)  # raises if there is none of that name
    runs = merge_stored_runs(read_stored_runs(), read_own_runs(own_runs, terminal.print_note))
    found = claim_data.judge_all_claims(runs, name)
    if not found:
        raise ConfigError(
            f"reproduce {name} --claims: this table has no claims; without a name, all are shown"
        )
    claims = claim_data.list_verdicts(found, name)
    if page is not None:
        from ..report.page.claims_page import save_claims

        save_claims(found, page, name)
        terminal.print_note(f"wrote {page}")
        return
    if json:
        terminal.print_json([claim_data.summarise_verdict(one) for one in claims])
        return
    terminal.print_table(claim_data.build_claim_overview(claims))
    if name is None:
        terminal.print_note("what was found for one table: heterophony reproduce TABLE --claims")
    for one in claims if name is not None else ():
        terminal.print_note(
            f"{one.claim.says}: {one.claim.how}\n  {claim_data.describe_found(one)}"
        )
        if one.cases:
            terminal.print_table(claim_data.build_case_table(one, rounds=False))
    terminal.print_note(claim_data.summarise_findings(found))


board_app = typer.Typer(no_args_is_help=True, help="A table of results that anyone can check.")
BoardArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LEADERBOARD",
        help="A leaderboard: a folder with one folder per entry, or a .zip of it.",
    ),
]


@board_app.command()
def show(
    board: BoardArgument,
    page: Annotated[
        Path | None, typer.Option("-o", help="Write a self-contained HTML page.")
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Show the entries of a leaderboard for each setting, with intervals and ranks."""
    from ..papers.leaderboard import MEASURES, build_ranking_table, build_rankings, read_leaderboard

    rankings = build_rankings(read_leaderboard(board))
    if page is not None:
        from ..report.page.html import write_leaderboard_page

        write_leaderboard_page(rankings, page)
    if json:
        settings = [ranking.to_dict() for ranking in rankings]
        terminal.print_json({"measures": list(MEASURES), "settings": settings})
        return
    for ranking in rankings:
        terminal.print_table(build_ranking_table(ranking))
    if page is not None:
        terminal.print_note(f"page: {page}")


@board_app.command()
def add(
    board: BoardArgument,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of them.")
    ],
    code: Annotated[
        Path | None, typer.Option(help="The file of an algorithm that is not built in.")
    ] = None,
    remark: Annotated[str, typer.Option(help="A remark to show with the entry.")] = "",
) -> None:
    """Add finished runs to a leaderboard; runs that differ only in their seed become one entry."""
    from ..papers.leaderboard import add_entries
    from ..results.runs import load_runs

    loaded = load_runs(runs, terminal.print_note)
    for folder, seeds in add_entries(board, loaded, code, remark).items():
        terminal.print_note(f"{folder}: {seeds} seed{'s' * (seeds > 1)}")


@board_app.command()
def check(
    board: BoardArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ENTRY…", help="Default: all entries.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed to repeat; default: the first of each entry.")
    ] = None,
    trust: options.TrustOption = False,
    pairs: options.EngineOption = None,
    json: options.JsonOption = False,
) -> None:
    """Repeat one seed of each entry and compare the hash; exit with code 1 if one differs."""
    from ..papers.leaderboard import build_check_table, check_seed, choose_entries, open_leaderboard

    options.check_only_engine_settings(pairs)
    with open_leaderboard(board) as entries:
        chosen = choose_entries(entries, names or [], seed, trust, str(board))
        with terminal.show_interruptible_progress("run the same command again", []) as progress:
            found = [check_seed(entry, one, progress, pairs or []) for entry, one in chosen]
    if json:
        terminal.print_json([{**vars(c), "equal": c.equal} for c in found])
    else:
        terminal.print_table(build_check_table(found))
    if not all(c.equal for c in found):
        raise SystemExit(1)
