"""``report``: write a page of results, a figure or a table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from . import terminal


class ReportFigure(StrEnum):
    """Figures that `report` draws."""

    curves = "curves"
    participation = "participation"
    ranks = "ranks"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(report)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Runs, comparisons, folders of runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            help="A page (.html; default: in the first folder), a figure or a table (.csv, .md, .tex).",
        ),
    ] = None,
    kind: Annotated[
        ReportFigure, typer.Option(help="Which figure; a page has them all.")
    ] = ReportFigure.curves,
) -> None:
    """Write one self-contained HTML page with curves, table and clients; or a figure, or a table."""
    from ..analysis.exports import TABLE_FORMATS, export_comparison
    from ..analysis.runs import load_runs
    from ..report.figures.cd_diagram import draw_cd_diagram
    from ..report.figures.run_figures import draw_comparison, draw_participation, save_figure
    from ..report.page.html import write_report

    path, runs = out or folders[0] / "report.html", load_runs(folders)
    if path.suffix == ".html":
        write_report(runs, path)
    elif path.suffix in TABLE_FORMATS:
        export_comparison(runs, path)
    else:
        draw = {
            ReportFigure.curves: draw_comparison,
            ReportFigure.participation: draw_participation,
            ReportFigure.ranks: draw_cd_diagram,
        }
        save_figure(draw[kind](runs), path)
    terminal.print_note(f"wrote {path}")
