"""``testbed``: a run on devices rehearsed on this machine, with faults on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import FolderError
from . import terminal
from .broker import open_broker
from .result_tables import show_run
from .runs import ConfigFile, JsonOption, SettingsOption, exit_on_interrupt

if TYPE_CHECKING:
    from ..config.config import Config
    from ..run.store import RunFolder

DEFAULT_SETTINGS = ["algorithm.name=fedreg", "data.clients=30"]  # where no file says otherwise


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command("testbed")(run_testbed)


def run_testbed(
    file: ConfigFile = None,
    pairs: SettingsOption = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="How many; clients are dealt evenly. Default: as before, or 10."),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            help="Something goes wrong after every round with one of devices, server, broker,"
            " network, or all; as in devices,broker."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; one that is there goes on.")] = Path(
        "runs/testbed"
    ),
    json: JsonOption = False,
) -> None:
    """Rehearse a run on devices: broker, server and devices as processes of this machine."""
    from ..devices.broker.process import find_mosquitto

    find_mosquitto()
    open_broker(out)  # says if its packages are missing
    from ..config.reading import read_config
    from ..devices.admission import check_devices_can_run
    from ..devices.testbed.fault_injection import parse_fault_kinds
    from ..devices.testbed.testbed import Testbed, assign_clients, start_testbed_fork_server
    from ..run.store import RunFolder
    from ..run.summary import summarise

    kinds = parse_fault_kinds(faults or [])
    config, folder = (
        read_config(file, [*([] if file else DEFAULT_SETTINGS), *(pairs or [])]),
        RunFolder(out),
    )
    check_devices_can_run(config)
    start_testbed_fork_server()
    federation = config.build_federation()
    config.build_device_plan(federation)  # what is wrong with it is said before anything is written
    hands = assign_clients(federation.clients, devices, folder)
    claim_run_folder(folder, config.fill_model_defaults(federation))
    try:
        with terminal.show_progress_bars(not json) as bars:
            sizes = list(federation.sizes("test").values())
            bar = terminal.RunProgressBar(bars, config.algorithm_name, config.top.rounds, sizes)
            bed = Testbed(folder, hands, config.top.seed, kinds, terminal.print_note, bar)

            def clean_up() -> None:
                bars.stop()
                bed.stop()

            with exit_on_interrupt("the same command goes on", clean_up, [folder]):
                if not folder.result_file.exists():
                    with bed:
                        bed.supervise()
    finally:
        folder.close()
    show_run(summarise(list(folder.iterate_events())), folder.path, json, trained=True)


def claim_run_folder(folder: RunFolder, config: Config) -> None:
    """The folder is ours: new, or that of the same run."""
    if not folder.config_file.exists():
        folder.create(config.to_toml())
    elif folder.reopen() != config.to_toml():
        folder.close()
        raise FolderError(f"{folder.path} holds a run with other settings; choose another --out")
