"""``testbed``: a run on devices rehearsed on this machine, with faults on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import FolderError
from . import terminal
from .broker import opened
from .result_tables import show_run
from .runs import (
    ConfigFile,
    Json,
    Pairs,
    interruptible,
)

if TYPE_CHECKING:
    from ..config.config import Config
    from ..run.store import RunFolder

REHEARSED = ["algorithm.name=fedreg", "data.clients=30"]  # where no file says otherwise


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command("testbed")(rehearse)


def rehearse(
    file: ConfigFile = None,
    pairs: Pairs = None,
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
    json: Json = False,
) -> None:
    """Rehearse a run on devices: broker, server and devices as processes of this machine."""
    from ..devices.broker.process import program

    program()
    opened(out)  # says if its packages are missing
    from ..config.config import read
    from ..devices.admission import playable
    from ..devices.testbed.fault_injection import asked
    from ..devices.testbed.testbed import Testbed, begin, dealt
    from ..run.store import RunFolder
    from ..run.summary import summarise

    kinds = asked(faults or [])
    config, folder = read(file, [*([] if file else REHEARSED), *(pairs or [])]), RunFolder(out)
    playable(config)
    begin()
    federation = config.federation()
    config.on_devices(federation)  # what is wrong with it is said before anything is written
    hands = dealt(federation.clients, devices, folder)
    owned(folder, config.decided(federation))
    try:
        with terminal.progress(not json) as bars:
            sizes = list(federation.sizes("test").values())
            bar = terminal.Bar(bars, config.algorithm_name, config.top.rounds, sizes)
            bed = Testbed(folder, hands, config.top.seed, kinds, terminal.note, bar)

            def tidy() -> None:
                bars.stop()
                bed.end()

            with interruptible("the same command goes on", tidy, [folder]):
                if not folder.result.exists():
                    with bed:
                        bed.play()
    finally:
        folder.close()
    show_run(summarise(list(folder.read())), folder.path, json, trained=True)


def owned(folder: RunFolder, config: Config) -> None:
    """The folder is ours: new, or that of the same run."""
    if not folder.config.exists():
        folder.create(config.toml())
    elif folder.reopen() != config.toml():
        folder.close()
        raise FolderError(f"{folder.path} holds a run with other settings; choose another --out")
