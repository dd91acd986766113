"""``dashboard``: serve the page of results, live, to this machine only."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Annotated

import typer

from ..core.errors import FolderError
from . import terminal


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(dashboard)


def dashboard(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A run, a comparison, a folder of runs.")
    ] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="0: any free port. Default: 8765, or the next free one."
        ),
    ] = None,
) -> None:
    """Serve the page of `report`, updated while runs progress; read-only, to this machine only."""
    from ..report.page.server import open_dashboard

    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is not a folder; give a run, or a folder of runs")
    server = open_dashboard(folder, port)

    def stop(number: int, frame: FrameType | None) -> None:
        Thread(target=server.shutdown).start()  # shutdown waits for this thread

    with server, terminal.handle_signals(stop):
        print(server.url, flush=True)
        if not folder.exists():
            terminal.print_note(
                f"{folder} does not exist yet; the page shows it as soon as it does"
            )
        terminal.print_note("Ctrl-C ends it")
        server.serve_forever()
