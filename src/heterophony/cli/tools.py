"""``bench`` and ``doctor``: measure this machine's speed, and check the installation."""

from __future__ import annotations

import signal
from dataclasses import asdict
from typing import Annotated

import typer

from ..results.table import Column, Columns, ResultTable, Rows
from . import terminal
from .options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(bench)
    app.command()(doctor)


def bench(
    json: JsonOption = False,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 6.0,
    device: Annotated[
        str,
        typer.Option(help="That the workers compute on, as in cuda; the plain loop stays on cpu."),
    ] = "cpu",
) -> None:
    """Measure this machine's speed, as ratios within one run."""
    from ..core.accelerator import choose_compute
    from ..tools.bench import measure_speed

    compute = choose_compute(device)
    with terminal.handle_signals(signal.default_int_handler):
        found = measure_speed(seconds, terminal.print_note, compute)
    if json:
        terminal.print_json(found)
        return
    rows: Rows = [[k, v if isinstance(v, float) else str(v)] for k, v in found.items()]
    title = "convnet, Fashion-MNIST shapes, batch 20"
    terminal.print_table(ResultTable.build(["", Column("measured", form=",.3f")], rows, title))


def doctor(
    json: JsonOption = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check a GPU instead: same bits for 1, 2 and 4 workers?")
    ] = False,
    device: Annotated[
        str, typer.Option(help="The GPU that --gpu checks, as in cuda:1 or mps.")
    ] = "auto",
) -> None:
    """Check whether every engine can run here; say what is missing and how to get it."""
    from ..tools.doctor import check_installation

    if gpu:
        show_gpu_check(device, json)
        return
    with terminal.handle_signals(signal.default_int_handler):
        found = check_installation()
    if json:
        terminal.print_json(found)
    else:
        rows = [[c["name"], "ok" if c["ok"] else "missing", c["about"]] for c in found]
        terminal.print_table(ResultTable.build(["part", "state", "about"], rows))
    if any(not c["ok"] and c["needed"] for c in found):
        raise typer.Exit(1)


def show_gpu_check(device: str, json: bool) -> None:
    """Run the check of a GPU, and show it beside the CPU; exit 1 if bits differ by the workers."""
    from ..tools.gpu_check import check_gpu, describe_setup, find_differences

    with terminal.handle_signals(signal.default_int_handler):
        trials = check_gpu(device, terminal.print_note)
    setup, differences = describe_setup(device), find_differences(trials)
    if json:
        rows = [asdict(t) for t in trials]
        terminal.print_json({"setup": setup, "trials": rows, "differences": differences})
    else:
        columns: Columns = [
            *("algorithm", Column("device"), Column("workers", form="d"), Column("model")),
            *(Column("seconds", form=".1f"), Column("P %", kind="percent")),
            Column("MB on the GPU", form=".1f"),
        ]
        cells = [
            [
                *(t.algorithm, t.device, t.workers, t.model_sha256[:12], t.seconds, t.accuracy),
                "" if t.used_bytes is None else t.used_bytes / 1e6,
            ]
            for t in trials
        ]
        title = ", ".join(f"{k} {v}" for k, v in setup.items() if v)
        terminal.print_table(ResultTable.build(columns, cells, title))
    for line in differences:
        terminal.print_note(line)
    if differences:
        terminal.print_note("please report this with the table above: the bits should be the same")
        raise typer.Exit(1)
