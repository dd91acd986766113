"""``broker``: run Mosquitto for boards; enrol boards and revoke them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from ..results.table import Column, Columns, ResultTable
from . import terminal
from .options import JsonOption

if TYPE_CHECKING:
    from ..boards.broker.broker import Broker


FolderArgument = Annotated[Path, typer.Argument(metavar="[DIR]", help="The folder of the broker.")]
BoardArgument = Annotated[str, typer.Argument(metavar="BOARD", help="The name of the board.")]
DEFAULT_FOLDER = Path("broker")


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(no_args_is_help=True, help="Run the MQTT broker between server and boards.")
    for command in (up, down, enrol, revoke, status):
        group.command()(command)
    app.add_typer(group, name="broker")


def open_broker(folder: Path) -> Broker:
    try:
        from ..boards.broker.broker import Broker
    except ImportError:
        raise ConfigError(
            "the broker needs cryptography; install it with pip install 'heterophony[mqtt]'"
        ) from None
    return Broker(folder)


def up(
    folder: FolderArgument = DEFAULT_FOLDER,
    lan: Annotated[
        bool | None,
        typer.Option(
            "--lan/--no-lan", help="Also listen to other machines. Default: as before, or no."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any free port. Default: as before, or 8883."),
    ] = None,
) -> None:
    """Start Mosquitto in the background, with TLS and access rights; create the folder if need be."""
    broker = open_broker(folder)
    listen, started = broker.start(lan, port)
    reach = "this machine and others" if listen.lan else "this machine only"
    terminal.print_note(f"{'up' if started else 'already up'} on port {listen.port}, for {reach}")
    if started and os.geteuid() == 0:
        terminal.print_note(
            "started by root, so Mosquitto is root too; as an ordinary user it is safer"
        )
    terminal.print_note(f"the server's enrolment: {broker.server_enrolment_file}")


def down(folder: FolderArgument = DEFAULT_FOLDER) -> None:
    """Stop Mosquitto; running servers and boards continue after the next `up`."""
    terminal.print_note("down" if open_broker(folder).stop() else "it was not up")


def enrol(
    board: BoardArgument,
    folder: FolderArgument = DEFAULT_FOLDER,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The file to write; default: BOARD.toml in the current folder."
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(help="The only clients that the board may hold, as in 0,1,2; default: any."),
    ] = None,
) -> None:
    """Enrol a board: write the one file that it needs. It holds a private key: keep it secret."""
    file = out or Path(f"{board}.toml")
    names = [] if clients is None else [c.strip() for c in clients.split(",")]
    enrolment = open_broker(folder).enrol(board, file, names)
    print(file)
    terminal.print_note(
        f"{board} finds the broker at {enrolment.address}:{enrolment.port}; valid until"
        f" {enrolment.until:%Y-%m-%d}; copy the file to the board, then delete it here"
    )


def revoke(board: BoardArgument, folder: FolderArgument = DEFAULT_FOLDER) -> None:
    """Revoke a board at once and for ever; `enrol` gives it a new file."""
    open_broker(folder).revoke(board)
    terminal.print_note(f"{board} is revoked")


def status(folder: FolderArgument = DEFAULT_FOLDER, json: JsonOption = False) -> None:
    """Show whether the broker is up, its port, and the enrolled boards."""
    broker = open_broker(folder)
    listen, pid = broker.read_listen_settings(), broker.find_pid()
    boards = broker.certificate_store.list_enrolled()
    if json:
        rows = [
            {"name": d.name, "until": d.until.isoformat(), "clients": list(d.clients)}
            for d in boards
        ]
        terminal.print_json(
            {"up": pid is not None, "pid": pid, "port": listen.port, "lan": listen.lan}
            | {"boards": rows}
        )
        return
    state = "down" if pid is None else f"up, process {pid}"
    reach = "this machine and others" if listen.lan else "this machine only"
    title = f"{state}; port {listen.port}, for {reach}"
    cells = [[d.name, f"{d.until:%Y-%m-%d}", ", ".join(d.clients) or "any"] for d in boards]
    columns: Columns = ["board", Column("valid until"), Column("clients")]
    terminal.print_table(ResultTable.build(columns, cells, title))
