"""``testbed``: rehearse a run on boards on this machine, with faults on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .broker import open_broker
from .options import SAME_COMMAND, ConfigArgument, JsonOption, SettingsOption, read_settings
from .result_tables import show_run

if TYPE_CHECKING:
    from ..boards.testbed import Testbed
    from ..config.config import Config
    from ..runs.folder import RunFolder

DEFAULT_ALGORITHM, DEFAULT_CLIENTS = "fedreg", 30  # without a configuration file


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("testbed")(run_testbed)


def run_testbed(
    file: ConfigArgument = None,
    pairs: SettingsOption = None,
    boards: Annotated[
        int | None,
        typer.Option(
            "--boards",
            "--devices",
            min=1,
            help="Number of boards; clients are distributed evenly. Default: as before, or 10.",
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a fault after every round into one of boards, server, broker, network,"
            " or all; as in boards,broker."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; a run in it continues.")] = Path(
        "runs/testbed"
    ),
    json: JsonOption = False,
) -> None:
    """Rehearse a run on boards: broker, server and boards are processes of this machine."""
    from ..boards.broker.process import find_mosquitto

    find_mosquitto()
    open_broker(out)  # raises if its packages are missing
    from ..boards.server import check_boards_can_run
    from ..boards.testbed import (
        Testbed,
        assign_clients,
        parse_fault_kinds,
        start_testbed_fork_server,
    )
    from ..core.errors import ConfigError
    from ..runs.folder import RunFolder
    from ..runs.summary import summarise
    from ..studies.spec import RunSpec, read_federation

    kinds = parse_fault_kinds(faults or [])
    config = read_settings(file, pairs, list_default_settings(pairs or []))
    if config.engine.accelerator not in ("auto", "cpu"):
        raise ConfigError("engine.accelerator: a testbed computes on the CPU; leave it out")
    folder = RunFolder(out)
    check_boards_can_run(config)
    start_testbed_fork_server()
    federation = read_federation(config)
    config.build_board_plan(federation)  # raises before anything is written
    assignment = assign_clients(federation.clients, boards, folder)
    RunSpec(config.fill_model_defaults(federation)).open_folder(folder)
    try:
        if not folder.result_file.exists():
            bed = Testbed(folder, assignment, config.top.seed, kinds, terminal.print_note)
            supervise(bed, config, folder, list(federation.sizes("test").values()))
    finally:
        folder.close()
    show_run(summarise(list(folder.iterate_events())), folder.path, json, trained=True)


def supervise(bed: Testbed, config: Config, folder: RunFolder, sizes: list[int]) -> None:
    """Run a testbed and show its progress; ``sizes`` are the clients' numbers of test examples."""
    from ..algorithms import get_display_name
    from ..studies.progress import show_progress

    with show_progress() as shown:
        name = get_display_name(config.algorithm_name)
        bed.on_event = shown.begin_run(name, config.top.rounds, sizes)

        def clean_up() -> None:
            shown.stop()
            bed.stop()

        with terminal.exit_on_interrupt(SAME_COMMAND, clean_up, [folder]), bed:
            bed.supervise()


def list_default_settings(pairs: list[str]) -> list[str]:
    """List the settings of a testbed without a file; without a number of clients if the data name them."""
    from ..config.short_keys import expand_section, find_choice
    from ..data.sources import find_named_clients

    chosen = [expand_section(pair) for pair in pairs]
    name, *users = (find_choice({}, chosen, k, "") for k in ("data.name", "data.users", "users"))
    named = bool(name) and find_named_clients(name, "".join(users) or None).names
    usual = [f"algorithm.name={DEFAULT_ALGORITHM}"]
    return usual if named else [*usual, f"data.clients={DEFAULT_CLIENTS}"]
