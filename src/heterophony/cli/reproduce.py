"""``reproduce``: a published table, run here, our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, DataError, DivergedError
from ..papers.scale import TableScale
from . import terminal
from .paper_tables import (
    estimate_costs,
    format_duration,
    show_all_tables,
    show_cells,
    show_table_result,
)
from .runs import (
    EngineOption,
    JsonOption,
    check_only_engine_settings,
    continue_runs,
    parse_seeds,
    run_on_cluster,
    run_parallel_with_bars,
)

if TYPE_CHECKING:
    from ..papers.reproduce import CellRun, ReproductionResult, TableSelection

SHORT_RUN_SECONDS = 60  # seconds: shorter runs are played side by side


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Without it: all tables, and what they cost here."),
    ] = None,
    rows: Annotated[str, typer.Option(help="Only these, as in 'Fed*'.")] = "*",
    columns: Annotated[str, typer.Option(help="Only these, as in 'CIFAR-10*'.")] = "*",
    seeds: Annotated[
        str | None, typer.Option(help="As in 0,1; default: the paper's; at quick scale its first.")
    ] = None,
    scale: Annotated[
        TableScale, typer.Option(help="Minutes on small data, or everything as printed.")
    ] = TableScale.quick,
    out: Annotated[
        Path | None, typer.Option(help="Folder of its runs; default: runs/TABLE-SCALE.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Default: one per core.")] = None,
    pairs: EngineOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and their cost, run nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """A published table, run here: printed number, ours, and a verdict; again, it goes on."""
    if name is None:
        show_all_tables(json)
        return
    check_only_engine_settings(pairs)
    from ..papers.reproduce import TableSelection
    from ..papers.table import load_table

    found = load_table(name)
    own = tuple(found.measured.seeds)
    usual = own if scale is TableScale.full else own[:1]
    chosen = usual if seeds is None else tuple(dict.fromkeys(parse_seeds(seeds)))
    if min(chosen) < 0:
        raise ConfigError(f"--seeds {seeds}: a seed is at least 0")
    table = TableSelection(found, scale, rows, columns, chosen)
    if dry_run:
        show_cells(table, json)
        return
    parent = out or Path("runs") / f"{name}-{scale}"
    show_table_result(run_table(table, parent, workers, json, pairs), parent, json)


# Running ------------------------------------------------------------------------------------


def run_table(
    table: TableSelection,
    parent: Path,
    workers: int | None,
    quiet: bool,
    pairs: list[str] | None = None,
) -> ReproductionResult:
    """Play what is left of the table's runs."""
    from ..config.reading import read_config
    from ..engines.base import check_engine_installed, count_cores
    from ..papers.reproduce import build_result, create_run_folders, list_unfinished

    where = read_config(None, pairs or []).engine
    check_engine_installed(where.name)
    if not table.runs:
        why = dict.fromkeys(
            filter(None, (table.explain_unavailable(c) for c in table.distinct_cells))
        )
        raise DataError(f"reproduce {table.published.name}: {'; '.join(why)}")
    how = "the same command goes on"
    create_run_folders(table, parent)
    due, width = list_unfinished(table, parent), workers or count_cores()
    estimates = estimate_costs([t.cell for t in due], width)
    if due and not quiet:
        many = f"{len(due)} run{'s' if len(due) > 1 else ''}"
        terminal.print_note(
            f"{many}, about {format_duration(sum(estimates))} on this machine; {how}"
        )
    shown = {parent / t.folder_name: (format_task_label(t), t.cell.config["rounds"]) for t in due}
    if len(due) > 1 and where.name == "ray":
        failed = key_by_folder_name(run_on_cluster(shown, where, workers, quiet, how))
    elif len(due) > 1 and max(estimates) < SHORT_RUN_SECONDS:
        failed = key_by_folder_name(run_parallel_with_bars(shown, width, quiet, how))
    else:
        failed = run_one_by_one(due, parent, workers, quiet, pairs)
    return build_result(table, parent, failed)


def format_task_label(task: CellRun) -> str:
    return f"{task.cell.row}, {task.cell.column} (seed {task.seed})"


def key_by_folder_name(failed: Mapping[Path, str]) -> dict[str, str]:
    """By the name of the run's folder, which is the task's label."""
    return {path.name: why for path, why in failed.items()}


def run_one_by_one(
    due: Sequence[CellRun],
    parent: Path,
    workers: int | None,
    quiet: bool,
    pairs: list[str] | None = None,
) -> dict[str, str]:
    """Each on all cores; returns which failed, and why."""
    from ..run.store import RunFolder

    failed = {}
    for task in due:
        folder = RunFolder(parent / task.folder_name)
        try:
            continue_runs([folder], parent, workers, quiet, pairs=pairs)
        except DivergedError as error:
            failed[task.folder_name] = str(error)
    return failed
