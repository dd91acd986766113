"""``reproduce``: run a published table, and show our numbers beside the printed ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from ..papers.scale import TableScale
from . import terminal
from .claims import show_claims
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
    from ..papers.reproduce import ReproductionResult, TableSelection


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
    from ..papers.reproduce import build_result
    from ..papers.run_table import prepare_due_runs, run_due

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
