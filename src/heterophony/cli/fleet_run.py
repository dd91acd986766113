"""The commands ``fleet run`` and ``fleet table``: whole runs on boards, from check to report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..papers.table import TableScale
from . import fleet as steps
from . import terminal
from .options import SAME_COMMAND, ConfigArgument, JsonOption, SettingsOption, read_settings
from .terminal import show_run

if TYPE_CHECKING:
    from ..boards.fleet.run import Preparation
    from ..config.config import Config
    from ..runs.folder import RunFolder
    from ..runs.summary import Summary


LateOption = Annotated[
    bool,
    typer.Option("--late", help="Begin without boards that fail; they join when they are ready."),
]


def register(app: typer.Typer) -> None:
    """Add the group ``fleet`` with all its commands to the app."""
    group = steps.make_group()
    for command in (run, table):
        group.command()(command)
    app.add_typer(group, name="fleet")


def run(
    context: typer.Context,
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    out: Annotated[Path, typer.Option(help="The run's folder; a run in it is continued.")] = Path(
        "runs/fleet"
    ),
    late: LateOption = False,
    json: JsonOption = False,
) -> None:
    """Do all steps: check, install, enrol, copy data, start, serve the run, collect and report."""
    from ..runs.folder import RunFolder

    config, folder = read_settings(file, pairs), RunFolder(out)
    require_all_boards(context.obj)
    with steps.prepare(context.obj) as prepared:
        summary = run_on_fleet(prepared, config, folder, late)
    show_run(summary, folder.path, json, trained=True)


def table(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="A published table, as in `heterophony reproduce`."),
    ],
    rows: Annotated[str, typer.Option(help="Only these rows, as in 'Fed*'.")] = "*",
    scale: Annotated[
        TableScale, typer.Option(help="Minutes on small data, or everything as printed.")
    ] = TableScale.quick,
    out: Annotated[
        Path | None, typer.Option(help="The folder of its runs; default: runs/TABLE-SCALE-fleet.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a published testbed table on the boards, row by row. Run again to continue."""
    from ..config.reading import read_config
    from ..papers.reproduce import TableSelection, build_result, create_run_folders, list_unfinished
    from ..papers.table import load_table
    from ..runs.folder import RunFolder
    from .reproduce import show_result

    require_all_boards(context.obj)
    # the requirement is a set of boards, which are here
    published = replace(load_table(name), needs=None)
    selection = TableSelection(published, scale, rows, "*", tuple(published.measured.seeds)[:1])
    parent = out or Path("runs") / f"{name}-{scale}-fleet"
    create_run_folders(selection, parent)
    failed: dict[str, str] = {}
    with steps.prepare(context.obj) as prepared:
        for cell_run in list_unfinished(selection, parent):
            folder = RunFolder(parent / cell_run.folder_name)
            terminal.print_note(f"{cell_run.cell.row}: {folder.path}")
            try:
                run_on_fleet(prepared, read_config(folder.config_file), folder, late=False)
            except DivergedError as error:
                failed[folder.path.name] = str(error)
    show_result(build_result(selection, parent, failed), parent, json)


def require_all_boards(chosen: steps.Chosen) -> None:
    if len(chosen.boards) < len(chosen.fleet.boards):
        raise ConfigError(
            "--only: a run needs all boards in the file; list this run's boards in their own file"
        )


def run_on_fleet(prepared: Preparation, config: Config, folder: RunFolder, late: bool) -> Summary:
    """Run one configuration on the boards, or continue it; collect logs and write the page."""
    from ..algorithms import get_display_name
    from ..boards.fleet.run import name_run, serve_run
    from ..report.page.html import write_report
    from ..results.boards import write_board_rounds
    from ..results.runs import load_runs
    from ..studies.spec import RunSpec

    if config.engine.accelerator not in ("auto", "cpu"):
        raise ConfigError(
            "engine.accelerator: boards have their own (accelerator in the list); leave it out"
        )
    steps.load_run(prepared, config)
    if prepared.federation is not None:
        config.build_board_plan(prepared.federation)  # raises before anything is written
        config = config.fill_model_defaults(prepared.federation)
    RunSpec(config).open_folder(folder)
    try:
        steps.start_broker(prepared)
        prepared.run = name_run(folder)
        waiting = set[str]() if folder.result_file.exists() else make_ready(prepared, late)
        with terminal.show_interruptible_progress(SAME_COMMAND, [folder, prepared.ssh]) as shown:
            status = shown.begin_run(get_display_name(config.algorithm_name), config.top.rounds)
            note = terminal.print_note
            summary = serve_run(config, folder, prepared, waiting, note, status)
    finally:
        folder.close()
    steps.collect_all(prepared, prepared.fleet.boards, folder.path / "boards")
    page = folder.path / "report.html"
    runs = load_runs([folder.path])
    write_report(runs, page)
    write_board_rounds(runs, folder.path / "boards.csv")
    terminal.print_note(f"wrote {page} and boards.csv beside it")
    return summary


def make_ready(prepared: Preparation, late: bool) -> set[str]:
    """Do all steps on all boards; return the boards that are not ready, if ``late`` allows any."""
    boards, failed = prepared.fleet.boards, dict[str, str]()
    for title, step in (
        ("check", prepared.check),
        ("install", prepared.install),
        ("enrol", prepared.enrol),
        ("data", prepared.copy_data),
        ("start", prepared.start),
    ):
        ready = [b for b in boards if b.name not in failed]
        failed |= steps.do_step(title, ready, step, quiet=title == "check").failed
    if failed and not late:
        raise HeterophonyError(
            f"{len(failed)} of {len(boards)} boards failed; repair them and {SAME_COMMAND},"
            " or add --late"
        )
    return set(failed)
