"""``tune``: search the settings of several algorithms with equal budgets, by validation examples."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .options import (
    JsonOption,
    OutOption,
    SeedsCommand,
    SeedsOption,
    SettingsOption,
    find_free_folder,
    format_resume_hint,
    format_same_command,
    parse_seeds,
)
from .sweep import SortKey

if TYPE_CHECKING:
    from ..results.search_tables import TuneTable
    from ..studies.tune import Tune


class SamplerChoice(StrEnum):
    """Who proposes settings."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(cls=SeedsCommand)(tune)


def tune(
    algorithms: Annotated[
        list[str],
        typer.Argument(
            metavar="ALGO…", help="As in `heterophony list algorithms`, or package.module:Class."
        ),
    ],
    searched: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            help="What to search, as in training.lr=0.005..0.1, training.batch=10,20 or, of one algorithm,"
            " fedprox.mu=0.001..1.0; repeatable.",
        ),
    ] = None,
    pairs: SettingsOption = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Of every algorithm; default: 20, with grid all combinations."),
    ] = None,
    sampler: Annotated[SamplerChoice, typer.Option(help="Who proposes settings.")] = (
        SamplerChoice.tpe
    ),
    seeds: SeedsOption = None,
    by: Annotated[SortKey, typer.Option(help="Choose by P or G, on validation examples.")] = (
        SortKey.P
    ),
    stop_early: Annotated[
        bool,
        typer.Option(
            "--stop-early/--no-stop-early",
            help="Stop a trial that is below the median of earlier ones.",
        ),
    ] = True,
    keep: Annotated[
        bool, typer.Option("--keep", help="Run everything to its end, and choose nothing.")
    ] = False,
    file: Annotated[Path | None, typer.Option(help="A CONFIG.toml to start from.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")
    ] = None,
    out: OutOption = None,
    figure: Annotated[
        Path | None,
        typer.Option("-o", help="The picture (.png, .svg, .pdf); default: tune.png in --out."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Give every algorithm the same number of trials, and choose its settings on validation examples.

    Re-run with the same --out to continue; with more --trials, only what is new runs.
    """
    from ..engines.base import prepare_engine
    from ..studies.tune import TuneRequest, build_tune, write_request

    engine = [p for p in pairs or [] if p.strip().startswith("engine.")]
    request = TuneRequest(
        algorithms=algorithms,
        settings=searched or [],
        overrides=[p for p in pairs or [] if p not in engine],
        seeds=[0] if seeds is None else parse_seeds(seeds),
        trials=trials,
        sampler=sampler.value,
        by=by.value,
        stop_early=stop_early,
        keep=keep,
    )
    plan = build_tune(request, file, engine, terminal.print_note, trust=True)
    config = plan.search.make_first().config
    prepare_engine(config.engine)
    parent = out or find_free_folder(f"tune-{Path(config.data.name).stem}")
    write_request(parent, request, file)
    run_and_show(plan, parent, workers, figure, json)


def resume_tune(
    parent: Path, workers: int | None, json: bool, engine: Sequence[str] | None, trust: bool
) -> None:
    """Continue the tune in a folder; with ``trust``, import algorithms of other packages."""
    from ..engines.base import prepare_engine
    from ..studies.spec import check_address
    from ..studies.tune import BASE_FILE, build_tune, read_request

    file = parent / BASE_FILE
    file_or_none = file if file.exists() else None
    plan = build_tune(read_request(parent), file_or_none, engine or [], trust=trust)
    config = plan.search.make_first().config
    check_address(config, file, engine or [])
    prepare_engine(config.engine)
    run_and_show(plan, parent, workers, None, json)


def run_and_show(
    plan: Tune, parent: Path, workers: int | None, figure: Path | None, json: bool
) -> None:
    """Run what is left of a tune; print its table and draw its picture."""
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep, draw_tune
    from ..results.search_tables import read_tune
    from ..studies.many import RunOptions
    from ..studies.search import run_search
    from ..studies.tune import write_chosen

    if not json:
        count = plan.search.trials * len(plan.search.seeds) * len(plan.names)
        terminal.print_note(f"up to {count} runs in {parent}; {format_same_command(parent)}")
    hint = format_resume_hint(parent, plan.names.values())
    with terminal.show_interruptible_progress(hint, []) as shown:
        options = RunOptions(shown, workers, True, warn=terminal.print_note)
        run_search(plan.search, parent, options)
    table = read_tune(parent, plan.names, plan.search.by)
    path = figure or parent / "tune.png"
    save_figure(draw_tune(table), path)
    for algorithm in table.algorithms:
        save_figure(draw_sweep(algorithm.sweep), parent / algorithm.label / "sweep.png")
    if not plan.request.keep:
        write_chosen(plan, parent, table.best)
    if json:
        terminal.print_json(table.to_dict())
    else:
        show_tune(plan, table, path)


def show_tune(plan: Tune, table: TuneTable, figure: Path) -> None:
    """Print what was chosen for every algorithm, and how to train with it."""
    from ..results.search_tables import build_tune_table

    keep = plan.request.keep
    terminal.print_table(build_tune_table(table, plan.search.trials, keep))
    terminal.print_note(f"{table.folder}; picture: {figure}")
    if not keep and any(table.best.values()):
        first = next(label for label, best in table.best.items() if best)
        terminal.print_note(
            "train with the chosen settings on all examples: heterophony run"
            f" {table.folder / 'chosen' / f'{first}.toml'}"
        )
