"""``sweep``: one experiment with many settings, side by side; a sorted table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .options import (
    ConfigArgument,
    JsonOption,
    OutOption,
    SeedsCommand,
    SeedsOption,
    SettingsOption,
    check_foreign_file,
    find_free_folder,
    format_resume_hint,
    format_same_command,
    locate_settings,
    parse_seeds,
)

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..studies.spec import RunSpec


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
            help="What to vary, as in training.lr=0.005,0.01,0.05, or with --random"
            " training.lr=0.001..0.1; repeatable.",
        ),
    ] = None,
    pairs: SettingsOption = None,
    draws: Annotated[
        int | None,
        typer.Option(
            "--random", min=1, help="Number of random combinations to try, instead of all."
        ),
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
    from ..studies.search import create_sweep
    from ..studies.sweep import build_sweep

    config, chosen = locate_settings(file, pairs or [])
    numbers = None if seeds is None else parse_seeds(seeds)
    settings = [*chosen, *(pairs or [])]
    check_foreign_file(config, settings)
    plan = build_sweep(config, settings, swept or [], numbers, draws, terminal.print_note)
    first = plan.maker.make("", plan.combinations[0], plan.seeds[0]).config
    prepare_engine(first.engine)
    parent = out or find_free_folder(f"sweep-{Path(first.data.name).stem}")
    runs = create_sweep(parent, plan.combinations, plan.seeds, plan.maker.make)
    run_and_show(parent, runs, by, workers, figure, json)


def resume_sweep(
    parent: Path, workers: int | None, json: bool, pairs: Sequence[str], trust: bool
) -> None:
    """Continue the sweep in a folder; ``pairs`` may change the section [engine]."""
    from ..studies.search import list_due_folders
    from ..studies.spec import read_spec

    runs = {f: read_spec(f, pairs, trust) for f in list_due_folders(parent)}
    named = {f: replace(spec, name=f.path.name) for f, spec in runs.items()}
    run_and_show(parent, named, SortKey.P, workers, None, json)


def run_and_show(
    parent: Path,
    runs: dict[RunFolder, RunSpec],
    by: SortKey,
    workers: int | None,
    figure: Path | None,
    json: bool,
) -> None:
    """Run what is left of a sweep; print its table and draw its picture."""
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep
    from ..results.search_tables import build_sweep_table, read_sweep
    from ..studies.many import RunOptions
    from ..studies.search import run_sweep

    if runs and not json:
        count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        terminal.print_note(f"{count} in {parent}; {format_same_command(parent)}")
    hint = format_resume_hint(parent, {spec.config.algorithm_name for spec in runs.values()})
    with terminal.show_interruptible_progress(hint, list(runs)) as shown:
        run_sweep(parent, runs, RunOptions(shown, workers, True, warn=terminal.print_note))
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
