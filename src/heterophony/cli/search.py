"""The commands ``sweep`` and ``tune``, which search settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..runs.events import Measure
from . import options, terminal

if TYPE_CHECKING:
    from ..results.search_tables import TuneTable
    from ..runs.folder import RunFolder
    from ..studies.spec import RunSpec
    from ..studies.tune import Tune


ByOption = Annotated[Measure, typer.Option(help="Choose by P or G, on validation examples.")]
SamplerOption = Annotated[
    Literal["tpe", "random", "grid"], typer.Option(help="The method that proposes settings.")
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")
]


def register(app: typer.Typer) -> None:
    """Add the commands ``sweep`` and ``tune`` to the app."""
    app.command(cls=options.SeedsCommand)(sweep)
    app.command(cls=options.SeedsCommand)(tune)


def sweep(
    file: options.ConfigArgument = None,
    swept: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            "--set",
            help="A setting to vary, as in training.lr=0.005,0.01,0.05, or with --random"
            " training.lr=0.001..0.1; repeatable.",
        ),
    ] = None,
    pairs: options.SettingsOption = None,
    draws: Annotated[
        int | None,
        typer.Option(
            "--random", min=1, help="Number of random combinations to try, instead of all."
        ),
    ] = None,
    seeds: options.SeedsOption = None,
    by: ByOption = "P",
    workers: WorkersOption = None,
    out: options.OutOption = None,
    figure: Annotated[
        Path | None,
        typer.Option("-o", help="The figure (.png, .svg, .pdf); default: sweep.png in --out."),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Try many settings and choose on validation examples. To continue, repeat it with the same --out."""
    from ..engines.base import prepare_engine
    from ..studies.search import create_sweep
    from ..studies.sweep import build_sweep

    config, chosen = options.locate_settings(file, pairs or [])
    numbers = None if seeds is None else options.parse_seeds(seeds)
    settings = [*chosen, *(pairs or [])]
    options.check_foreign_file(config, settings)
    plan = build_sweep(config, settings, swept or [], numbers, draws, terminal.print_note)
    first = plan.maker.make_spec("", plan.combinations[0], plan.seeds[0]).config
    prepare_engine(first.engine)
    parent = out or options.find_free_folder(f"sweep-{Path(first.data.name).stem}")
    runs = create_sweep(parent, plan.combinations, plan.seeds, plan.maker.make_spec)
    run_and_show_sweep(parent, runs, by, workers, figure, json)


def resume_sweep(
    parent: Path, workers: int | None, json: bool, pairs: Sequence[str], trust: bool
) -> None:
    """Continue the sweep in a folder; ``pairs`` are settings of the engine."""
    from ..studies.search import list_due_folders
    from ..studies.spec import read_spec

    runs = {f: read_spec(f, pairs, trust) for f in list_due_folders(parent)}
    named = {f: replace(spec, name=f.path.name) for f, spec in runs.items()}
    run_and_show_sweep(parent, named, "P", workers, None, json)


def run_and_show_sweep(
    parent: Path,
    runs: dict[RunFolder, RunSpec],
    by: Measure,
    workers: int | None,
    figure: Path | None,
    json: bool,
) -> None:
    """Execute the remaining runs of a sweep; print its table and draw its figure."""
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep
    from ..results.search_tables import build_sweep_table, read_sweep
    from ..studies.many import RunOptions
    from ..studies.search import run_sweep

    if runs and not json:
        count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        terminal.print_note(f"{count} in {parent}; {options.format_same_command(parent)}")
    hint = options.format_resume_hint(parent, [n for s in runs.values() for n in s.config.own_code])
    with terminal.show_interruptible_progress(hint, list(runs)) as shown:
        run_sweep(parent, runs, RunOptions(shown, workers, True, warn=terminal.print_note))
    table = read_sweep(parent, by)
    path = figure or parent / "sweep.png"
    save_figure(draw_sweep(table), path)
    if json:
        terminal.print_json(table.to_dict())
    else:
        terminal.print_table(build_sweep_table(table))
        terminal.print_note(
            f"{parent}; figure: {path}; a page with curves: heterophony report {parent}"
        )


AlgorithmsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="ALGO…", help="Names from `heterophony list algorithms`, or package.module:Class."
    ),
]
SearchedOption = Annotated[
    list[str] | None,
    typer.Option(
        "-s",
        "--set",
        help="A setting to search, as in training.lr=0.005..0.1, training.batch=10,20 or, for one algorithm,"
        " fedprox.mu=0.001..1.0; repeatable.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Trials of every algorithm; default: 20; with grid: all combinations."
    ),
]
StopEarlyOption = Annotated[
    bool,
    typer.Option(
        "--stop-early/--no-stop-early",
        help="Stop a trial that is below the median of earlier ones.",
    ),
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Run every trial to the end, and do not select a winner.")
]
FigureOption = Annotated[
    Path | None,
    typer.Option("-o", help="The figure (.png, .svg, .pdf); default: tune.png in --out."),
]


def tune(
    algorithms: AlgorithmsArgument,
    searched: SearchedOption = None,
    pairs: options.SettingsOption = None,
    trials: TrialsOption = None,
    sampler: SamplerOption = "tpe",
    seeds: options.SeedsOption = None,
    by: ByOption = "P",
    stop_early: StopEarlyOption = True,
    keep: KeepOption = False,
    file: Annotated[Path | None, typer.Option(help="A CONFIG.toml to start from.")] = None,
    workers: WorkersOption = None,
    out: options.OutOption = None,
    figure: FigureOption = None,
    json: options.JsonOption = False,
) -> None:
    """Give every algorithm the same number of trials; choose its settings on validation examples.

    To continue, repeat the command with the same --out; with more --trials, only the new ones run.
    """
    from ..engines.base import prepare_engine
    from ..studies.tune import TuneRequest, build_tune, write_tune_request

    engine = [p for p in pairs or [] if p.strip().startswith("engine.")]
    request = TuneRequest(
        algorithms=algorithms,
        settings=searched or [],
        overrides=[p for p in pairs or [] if p not in engine],
        seeds=[0] if seeds is None else options.parse_seeds(seeds),
        trials=trials,
        sampler=sampler,
        by=by,
        stop_early=stop_early,
        keep=keep,
    )
    options.check_foreign_file(file, pairs or [], ["model.name"])
    plan = build_tune(request, file, engine, terminal.print_note, trust=True)
    config = plan.search.make_first_spec().config
    prepare_engine(config.engine)
    parent = out or options.find_free_folder(f"tune-{Path(config.data.name).stem}")
    write_tune_request(parent, request, file)
    run_and_show_trials(plan, parent, workers, figure, json)


def resume_tune(
    parent: Path, workers: int | None, json: bool, engine: Sequence[str] | None, trust: bool
) -> None:
    """Continue the tune in a folder; ``trust`` allows external algorithms."""
    from ..engines.base import prepare_engine
    from ..studies.spec import check_cluster_address
    from ..studies.tune import BASE_FILE, build_tune, read_tune_request

    file = parent / BASE_FILE
    file_or_none = file if file.exists() else None
    plan = build_tune(read_tune_request(parent), file_or_none, engine or [], trust=trust)
    config = plan.search.make_first_spec().config
    check_cluster_address(config, file, engine or [])
    prepare_engine(config.engine)
    run_and_show_trials(plan, parent, workers, None, json)


def run_and_show_trials(
    plan: Tune, parent: Path, workers: int | None, figure: Path | None, json: bool
) -> None:
    """Run the remaining trials of a tune; print its table and draw its figure."""
    from ..report.figures.run_figures import save_figure
    from ..report.figures.search import draw_sweep, draw_tune
    from ..results.search_tables import read_tune
    from ..studies.many import RunOptions
    from ..studies.search import run_search
    from ..studies.tune import write_chosen_settings

    if not json:
        count = plan.search.trials * len(plan.search.seeds) * len(plan.names)
        terminal.print_note(
            f"up to {count} runs in {parent}; {options.format_same_command(parent)}"
        )
    code = [*plan.names.values(), *plan.search.make_first_spec().config.own_code]
    hint = options.format_resume_hint(parent, code)
    with terminal.show_interruptible_progress(hint, []) as shown:
        common = RunOptions(shown, workers, True, warn=terminal.print_note)
        run_search(plan.search, parent, common)
    table = read_tune(parent, plan.names, plan.search.by)
    path = figure or parent / "tune.png"
    save_figure(draw_tune(table), path)
    for algorithm in table.algorithms:
        save_figure(draw_sweep(algorithm.sweep), parent / algorithm.label / "sweep.png")
    if not plan.request.keep:
        write_chosen_settings(plan, parent, table.best)
    if json:
        terminal.print_json(table.to_dict())
    else:
        show_tune(plan, table, path)


def show_tune(plan: Tune, table: TuneTable, figure: Path) -> None:
    """Print the table of a tune and how to train with the chosen settings."""
    from ..results.search_tables import build_tune_table

    keep = plan.request.keep
    terminal.print_table(build_tune_table(table, plan.search.trials, keep))
    terminal.print_note(f"{table.folder}; figure: {figure}")
    if not keep and any(table.best.values()):
        first = next(label for label, best in table.best.items() if best)
        terminal.print_note(
            "train with the chosen settings on all examples: heterophony run"
            f" {table.folder / 'chosen' / f'{first}.toml'}"
        )
