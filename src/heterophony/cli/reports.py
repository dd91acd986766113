"""``report``: write a page of results, a figure or a table."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, FolderError
from . import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from ..results.runs import Run


class ReportFigure(StrEnum):
    """Figures that `report` draws."""

    curves = "curves"
    difference = "difference"
    participation = "participation"
    ranks = "ranks"
    devices = "devices"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(report)


FoldersArgument = Annotated[
    list[Path],
    typer.Argument(metavar="DIR…", help="Runs, comparisons, folders of runs, or a .zip of runs."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        help="A page (.html; default: in the first folder), a figure or a table (.csv, .md, .tex).",
    ),
]
KindOption = Annotated[
    ReportFigure,
    typer.Option(help="Which figure; a page has them all. devices: a .csv of each round."),
]


def report(
    folders: FoldersArgument,
    out: FileOption = None,
    kind: KindOption = ReportFigure.curves,
    reference: Annotated[
        str | None,
        typer.Option(help="With --kind difference: the algorithm to compare with; default: first."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Only these columns of the table, as in G.last10,P.last10."),
    ] = None,
) -> None:
    """Write one self-contained HTML page with curves, table and clients; or a figure, or a table."""
    from ..report.page.html import write_report
    from ..report.page.views import check_showable
    from ..results.boards import write_board_rounds
    from ..results.comparison_tables import export_comparison
    from ..results.render import TABLE_FORMATS
    from ..results.runs import load_runs

    first = folders[0]
    path = out or (first.parent if first.suffix == ".zip" else first) / "report.html"
    is_table = path.suffix in TABLE_FORMATS
    if columns is not None and not is_table:
        raise ConfigError(
            f"--columns {columns}: only a table has columns to choose; write one with -o table.tex,"
            " table.md or table.csv"
        )
    drawn = not is_table and path.suffix != ".html"
    if reference is not None and (kind is not ReportFigure.difference or not drawn):
        raise ConfigError(
            f"--reference {reference}: only for a figure of --kind difference, as in"
            " -o difference.svg --kind difference"
        )
    runs = load_runs(folders, terminal.print_note, check_showable)
    if kind is ReportFigure.devices:
        write_board_rounds(runs, path)
    elif is_table:
        export_comparison(runs, path, parse_columns(columns))
    elif drawn:
        draw(runs, kind, reference, path)
    else:
        write_report(runs, path)
    terminal.print_note(f"wrote {path}")


def draw(runs: list[Run], kind: ReportFigure, reference: str | None, path: Path) -> None:
    """Draw a figure of this kind, and save it."""
    from ..report.figures.cd_diagram import draw_cd_diagram
    from ..report.figures.run_figures import (
        draw_comparison,
        draw_differences,
        draw_participation,
        save_figure,
    )

    functions: dict[ReportFigure, Callable[[list[Run]], Figure]] = {
        ReportFigure.curves: draw_comparison,
        ReportFigure.difference: partial(draw_differences, reference=reference),
        ReportFigure.participation: draw_participation,
        ReportFigure.ranks: draw_cd_diagram,
    }
    save_figure(functions[kind](runs), path)


def parse_columns(text: str | None) -> list[str]:
    """Parse ``G.last10,P.last10``; without it, all columns."""
    keys = [part.strip() for part in (text or "").split(",")]
    return list(dict.fromkeys(keys)) if text is not None else []


def register_dashboard(app: typer.Typer) -> None:
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
