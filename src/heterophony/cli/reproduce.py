"""``reproduce``: the cells of a published table, and how each would be run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from . import screen
from .runs import Json

if TYPE_CHECKING:
    from ..papers import Cell, Experiment


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(reproduce)


def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="As in `heterophony list papers`.")],
    rows: Annotated[str, typer.Option(help="Only these, as in 'Fed*'.")] = "*",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells, run nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """A published table: its cells, what was printed in them, and their settings."""
    from ..papers import experiment

    found = experiment(table)
    cells = [c for c in found.cells if fnmatchcase(c.row, rows)]
    if not dry_run:
        raise ConfigError(f"reproduce {table}: only --dry-run is there yet: it shows what to run")
    if not found.rows:
        raise ConfigError(f"reproduce {table}: {found.needs}")
    if not cells:
        names = ", ".join(found.rows)
        raise ConfigError(f"reproduce {table}: no row is like '{rows}'; there is: {names}")
    if json:
        screen.print_json([described(found, c) for c in cells])
    else:
        show(found, cells)


def listed() -> list[dict[str, Any]]:
    """All tables and figures, one line each."""
    from ..papers import experiments

    return [
        {
            "name": e.name,
            "paper": f"{e.paper}, {e.where}",
            "what": e.what,
            "cells": len(e.cells),
            "runnable": sum(c.needs is None for c in e.cells),
            "needs": e.missing,
        }
        for e in experiments()
    ]


def described(found: Experiment, cell: Cell) -> dict[str, Any]:
    printed = {k: {"value": n.value, "std": n.std} for k, n in cell.printed.items()}
    return {
        "row": cell.row,
        "column": cell.column,
        "printed": printed,
        "seeds": found.measured.seeds,
        "config": cell.config,
        "needs": cell.needs,
    }


def show(found: Experiment, cells: list[Cell]) -> None:
    """What all cells share, then each with what is different in it."""
    shared = dict(pairs(found.settings))
    title = f"{found.paper}, {found.where}: {found.what}"
    together = "\n".join(f"{k} = {v}" for k, v in shared.items())
    rows = []
    for cell in cells:
        own = [f"{k}={v}" for k, v in pairs(cell.config) if shared.get(k) != v]
        said = [f"{k} {n.value:g}" for k, n in cell.printed.items()]
        rows.append([cell.row, cell.column, ", ".join(said) or "–", " ".join(own)])
    how, seeds = found.measured, ", ".join(map(str, found.measured.seeds))
    screen.print_table(title, ["row", "column", "printed", "settings of its own"], rows, text=4)
    screen.note(f"settings of all:\n{together}")
    screen.note(f"{how.rounds} of the rounds, clients {how.clients}, seeds {seeds}")
    for missing in dict.fromkeys(c.needs for c in cells if c.needs):
        screen.note(f"needs {missing}")


def pairs(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """``key.of.section`` and value, as ``-c`` takes them."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from pairs(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value).lower() if isinstance(value, bool) else str(value)
