"""``bench`` and ``doctor``: measure this machine's speed, and check the installation."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from . import terminal
from .options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(bench)
    app.command()(doctor)


def bench(
    json: JsonOption = False,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 6.0,
) -> None:
    """Measure this machine's speed, as ratios within one run."""
    from ..tools.bench import measure_speed

    with terminal.handle_signals(signal.default_int_handler):
        found = measure_speed(seconds, terminal.print_note)
    if json:
        terminal.print_json(found)
        return
    rows = [[k, f"{v:,.3f}" if isinstance(v, float) else str(v)] for k, v in found.items()]
    terminal.print_table("convnet, Fashion-MNIST shapes, batch 20", ["", "measured"], rows)


def doctor(json: JsonOption = False) -> None:
    """Check whether every engine can run here; say what is missing and how to get it."""
    from ..tools.doctor import check_installation

    with terminal.handle_signals(signal.default_int_handler):
        found = check_installation()
    if json:
        terminal.print_json(found)
    else:
        rows = [[c["name"], "ok" if c["ok"] else "missing", c["about"]] for c in found]
        terminal.print_table("", ["part", "state", "about"], rows, text=3)
    if any(not c["ok"] and c["needed"] for c in found):
        raise typer.Exit(1)
