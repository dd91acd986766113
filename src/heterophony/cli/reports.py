"""``report``: a page of results, a figure, or a table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import terminal


class Figure(StrEnum):
    """Figures of runs."""

    curves = "curves"
    participation = "participation"
    ranks = "ranks"


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(report)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Runs, comparisons, folders of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            help="A page (.html; default: in the first), a figure, or the table (.csv, .md, .tex).",
        ),
    ] = None,
    kind: Annotated[Figure, typer.Option(help="Which figure; a page has all.")] = Figure.curves,
) -> None:
    """One self-contained HTML page: curves, table, clients; works offline. Or a figure, a table."""
    from ..analysis.exports import FORMATS, export
    from ..analysis.runs import find
    from ..report.figures.cd_diagram import diagram
    from ..report.figures.run_figures import comparison, participation, save
    from ..report.page.html import write

    path, runs = out or folders[0] / "report.html", find(folders)
    if path.suffix == ".html":
        write(runs, path)
    elif path.suffix in FORMATS:
        export(runs, path)
    else:
        drawn = {
            Figure.curves: comparison,
            Figure.participation: participation,
            Figure.ranks: diagram,
        }
        save(drawn[kind](runs), path)
    terminal.note(f"wrote {path}")
