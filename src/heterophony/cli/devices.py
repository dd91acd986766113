"""``server`` and ``device``: a run on real devices, over MQTT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import terminal
from .result_tables import show_run
from .runs import ConfigFile, JsonOption, SettingsOption, exit_on_interrupt

EnrolmentOption = Annotated[
    Path, typer.Option("--enrolment", help="The file made by `heterophony broker enrol`.")
]


def register(app: typer.Typer) -> None:
    """Put the commands into the app."""
    app.command()(server)
    app.command()(device)


def server(
    enrolment: EnrolmentOption,
    file: ConfigFile = None,
    pairs: SettingsOption = None,
    out: Annotated[Path, typer.Option(help="The run's folder; one that is there goes on.")] = Path(
        "runs/devices"
    ),
    json: JsonOption = False,
) -> None:
    """Serve a run to devices; killed and started again, it goes on."""
    from ..config.config import read_config
    from ..devices.broker.enrolment import read_enrolment as enrolled
    from ..devices.server import serve
    from ..run.store import RunFolder

    known, folder = enrolled(enrolment), RunFolder(out)
    if folder.config_file.exists():
        folder.reopen()
        config = read_config(folder.config_file)
    else:
        config = read_config(file, pairs or [])
        folder.create(config.to_toml())
    try:
        with (
            terminal.show_progress_bars(not json) as bars,
            exit_on_interrupt("the same command goes on", bars.stop, [folder]),
        ):
            bar = terminal.RunProgressBar(bars, config.algorithm_name, config.top.rounds)
            summary = serve(config, folder, known, out.name, terminal.print_note, bar)
    finally:
        folder.close()
    show_run(summary, folder.path, json, trained=True)


def device(
    enrolment: EnrolmentOption,
    clients: Annotated[
        str,
        typer.Option(help="Those on this device, as in 0,1,2; default with --data: all in it."),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(help="Their own data: of one client, or with one folder or .npz for each."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Where what the clients keep lies; never sent.")
    ] = Path("device"),
    run: Annotated[
        str | None, typer.Option(help="Which run; default: the one that is announced.")
    ] = None,
    simulate_slow: Annotated[
        float, typer.Option(min=1.0, help="Be so many times slower than this machine.")
    ] = 1.0,
) -> None:
    """Take part in a run; ends with it. Killed and started again, it goes on."""
    from ..core.errors import ConfigError
    from ..data.client_folders import find_client_data
    from ..devices.broker.enrolment import read_enrolment as enrolled
    from ..devices.device import Device, wait_for_run

    known = enrolled(enrolment)
    names = [c.strip() for c in clients.split(",") if c.strip()]
    own = None if data is None else find_client_data(data, names, known.device)
    if own is None and not names:
        raise ConfigError("--clients: missing; which are on this device, as in --clients 0,1,2")
    with exit_on_interrupt("the same command goes on", lambda: None):
        which = run or wait_for_run(known, terminal.print_note)
        home, held = folder / known.device, list(own or names)
        Device(
            known, which, home, held, terminal.print_note, slowdown=simulate_slow, data=own
        ).run()
    terminal.print_note("the run has ended")
