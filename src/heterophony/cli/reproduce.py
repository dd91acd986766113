"""``reproduce``: a published table, run here, our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, DataError, DivergedError
from ..papers.scale import Scale
from . import terminal
from .paper_tables import (
    costs,
    show_all,
    show_cells,
    show_outcome,
    told,
)
from .runs import (
    Json,
    Where,
    elsewhere,
    numbers,
    on_cluster,
    reopened,
    side_by_side,
)

if TYPE_CHECKING:
    from ..papers.reproduce import Outcome, Table, Task

SHORT = 60  # seconds: shorter runs are played side by side


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
        Scale, typer.Option(help="Minutes on small data, or everything as printed.")
    ] = Scale.quick,
    out: Annotated[
        Path | None, typer.Option(help="Folder of its runs; default: runs/TABLE-SCALE.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Default: one per core.")] = None,
    pairs: Where = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and their cost, run nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """A published table, run here: printed number, ours, and a verdict; again, it goes on."""
    if name is None:
        show_all(json)
        return
    elsewhere(pairs)
    from ..papers.reproduce import Table
    from ..papers.table import experiment

    found = experiment(name)
    own = tuple(found.measured.seeds)
    usual = own if scale is Scale.full else own[:1]
    chosen = usual if seeds is None else tuple(dict.fromkeys(numbers(seeds)))
    if min(chosen) < 0:
        raise ConfigError(f"--seeds {seeds}: a seed is at least 0")
    table = Table(found, scale, rows, columns, chosen)
    if dry_run:
        show_cells(table, json)
        return
    parent = out or Path("runs") / f"{name}-{scale}"
    show_outcome(played(table, parent, workers, json, pairs), parent, json)


# Running ------------------------------------------------------------------------------------


def played(
    table: Table, parent: Path, workers: int | None, quiet: bool, pairs: list[str] | None = None
) -> Outcome:
    """Play what is left of the table's runs."""
    from ..config.config import read
    from ..engines.base import available, cores
    from ..papers.reproduce import left, outcome, prepare

    where = read(None, pairs or []).engine
    available(where.name)
    if not table.tasks:
        why = dict.fromkeys(filter(None, (table.missing(c) for c in table.cells)))
        raise DataError(f"reproduce {table.found.name}: {'; '.join(why)}")
    how = "the same command goes on"
    prepare(table, parent)
    due, width = left(table, parent), workers or cores()
    estimates = costs([t.cell for t in due], width)
    if due and not quiet:
        many = f"{len(due)} run{'s' if len(due) > 1 else ''}"
        terminal.note(f"{many}, about {told(sum(estimates))} on this machine; {how}")
    shown = {parent / t.label: (labelled(t), t.cell.config["rounds"]) for t in due}
    if len(due) > 1 and where.name == "ray":
        failed = named(on_cluster(shown, where, workers, quiet, how))
    elif len(due) > 1 and max(estimates) < SHORT:
        failed = named(side_by_side(shown, width, quiet, how))
    else:
        failed = one_by_one(due, parent, workers, quiet, pairs)
    return outcome(table, parent, failed)


def labelled(task: Task) -> str:
    return f"{task.cell.row}, {task.cell.column} (seed {task.seed})"


def named(failed: Mapping[Path, str]) -> dict[str, str]:
    """By the name of the run's folder, which is the task's label."""
    return {path.name: why for path, why in failed.items()}


def one_by_one(
    due: Sequence[Task],
    parent: Path,
    workers: int | None,
    quiet: bool,
    pairs: list[str] | None = None,
) -> dict[str, str]:
    """Each on all cores; returns which failed, and why."""
    from ..run.store import RunFolder

    failed = {}
    for task in due:
        folder = RunFolder(parent / task.label)
        try:
            reopened([folder], parent, workers, quiet, pairs=pairs)
        except DivergedError as error:
            failed[task.label] = str(error)
    return failed
