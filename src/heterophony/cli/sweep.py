"""``sweep``: one experiment with many settings, side by side; a sorted table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import terminal
from .options import (
    SAME_COMMAND,
    ConfigArgument,
    JsonOption,
    OutOption,
    SeedsCommand,
    SeedsOption,
    SettingsOption,
    check_foreign_file,
    find_free_folder,
    format_resume_hint,
    locate_settings,
    parse_seeds,
)


class SortKey(StrEnum):
    """What settings are chosen by, on validation examples."""

    P = "P"
    G = "G"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(cls=SeedsCommand)(sweep)


def sweep(
    file: ConfigArgument = None,
    swept: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            help="What to vary, as in local.lr=0.005,0.01,0.05, or with --random"
            " local.lr=0.001..0.1; repeatable.",
        ),
    ] = None,
    pairs: SettingsOption = None,
    draws: Annotated[
        int | None,
        typer.Option("--random", min=1, help="So many random combinations, instead of all."),
    ] = None,
    seeds: SeedsOption = None,
    by: Annotated[SortKey, typer.Option(help="Choose by P or G, on validation examples.")] = (
        SortKey.P
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")
    ] = None,
    out: OutOption = None,
    figure: Annotated[
        Path | None,
        typer.Option("-o", help="The picture (.png, .svg, .pdf); default: sweep.png in --out."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try many settings, and choose by validation examples. Re-run with the same --out to continue."""
    from ..engines.base import prepare_engine
    from ..studies.sweep import build_sweep, prepare_sweep
    from ..studies.tasks import list_engine_settings

    config, chosen = locate_settings(file, pairs or [])
    numbers = None if seeds is None else parse_seeds(seeds)
    settings = [*chosen, *(pairs or [])]
    check_foreign_file(config, settings)
    plan = build_sweep(config, settings, swept or [], numbers, draws, terminal.print_note)
    first = next(iter(plan.runs.values())).config
    prepare_engine(first.engine)
    parent = out or find_free_folder(f"sweep-{Path(first.data.name).stem}")
    prepare_sweep(plan, parent)
    settings = list_engine_settings(first.engine, pairs or [])
    names = {run.config.algorithm_name for run in plan.runs.values()}
    hint = format_resume_hint(parent, names)
    run_and_show(parent, by, workers, figure, json, settings, hint, trust=True)


def run_and_show(
    parent: Path,
    by: SortKey,
    workers: int | None,
    figure: Path | None,
    json: bool,
    pairs: Sequence[str],
    hint: str,
    trust: bool,
) -> None:
    """Run what is left of a sweep; print its table and draw its picture.

    ``hint`` says how to continue after an interruption.
    """
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep
    from ..results.search_tables import build_sweep_table, read_sweep
    from ..studies.sweep import list_due_runs, run_due_sweep

    due = list_due_runs(parent)
    if due and not json:
        again = (
            SAME_COMMAND if parent.parent != Path("runs") else f"{SAME_COMMAND} with --out {parent}"
        )
        terminal.print_note(f"{len(due)} run{'s' if len(due) > 1 else ''} in {parent}; {again}")
    with terminal.show_interruptible_progress(hint, due) as progress:
        run_due_sweep(parent, due, progress, workers, pairs, terminal.print_note, trust)
    table = read_sweep(parent, by.value)
    path = figure or parent / "sweep.png"
    save_figure(draw_sweep(table), path)
    if json:
        terminal.print_json(table.to_dict())
    else:
        terminal.print_table(build_sweep_table(table))
        terminal.print_note(
            f"{parent}; picture: {path}; a page with curves: heterophony report {parent}"
        )
