"""``server`` and ``device``: a run on real devices, over MQTT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import terminal
from .result_tables import show_run
from .runs import (
    ConfigFile,
    Json,
    Pairs,
    interruptible,
)

Enrolled = Annotated[
    Path, typer.Option("--enrolment", help="The file made by `heterophony broker enrol`.")
]


def register(app: typer.Typer) -> None:
    """Put the commands into the app."""
    app.command()(server)
    app.command()(device)


def server(
    enrolment: Enrolled,
    file: ConfigFile = None,
    pairs: Pairs = None,
    out: Annotated[Path, typer.Option(help="The run's folder; one that is there goes on.")] = Path(
        "runs/devices"
    ),
    json: Json = False,
) -> None:
    """Serve a run to devices; killed and started again, it goes on."""
    from ..config.config import read
    from ..devices.broker.enrolment import read as enrolled
    from ..devices.server import serve
    from ..run.store import RunFolder

    known, folder = enrolled(enrolment), RunFolder(out)
    if folder.config.exists():
        folder.reopen()
        config = read(folder.config)
    else:
        config = read(file, pairs or [])
        folder.create(config.toml())
    try:
        with (
            terminal.progress(not json) as bars,
            interruptible("the same command goes on", bars.stop, [folder]),
        ):
            bar = terminal.Bar(bars, config.algorithm_name, config.top.rounds)
            summary = serve(config, folder, known, out.name, terminal.note, bar)
    finally:
        folder.close()
    show_run(summary, folder.path, json, trained=True)


def device(
    enrolment: Enrolled,
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
    from ..data.client_folders import located
    from ..devices.broker.enrolment import read as enrolled
    from ..devices.device import Device, announced

    known = enrolled(enrolment)
    names = [c.strip() for c in clients.split(",") if c.strip()]
    own = None if data is None else located(data, names, known.device)
    if own is None and not names:
        raise ConfigError("--clients: missing; which are on this device, as in --clients 0,1,2")
    with interruptible("the same command goes on", lambda: None):
        which = run or announced(known, terminal.note)
        home, held = folder / known.device, list(own or names)
        Device(known, which, home, held, terminal.note, simulate_slow, own).live()
    terminal.note("the run has ended")
