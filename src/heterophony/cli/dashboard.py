"""``dashboard``: the page of results, live, on this machine only."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Annotated

import typer

from ..core.errors import FolderError
from . import terminal


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(dashboard)


def dashboard(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A run, a comparison, a folder of runs.")
    ] = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any. Default: 8765, or the next that is free."),
    ] = None,
) -> None:
    """The page of `report`, live while runs go on; on this machine only, and only to be read."""
    from ..report.page.server import open_dashboard

    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is not a folder; give a run, or a folder of runs")
    server = open_dashboard(folder, port)

    def stop(number: int, frame: FrameType | None) -> None:
        Thread(target=server.shutdown).start()  # which waits for this very thread

    with server, terminal.handle_signals(stop):
        print(server.url, flush=True)
        if not folder.exists():
            terminal.print_note(f"{folder} is not there yet; the page follows as soon as it is")
        terminal.print_note("Ctrl-C ends it")
        server.serve_forever()
