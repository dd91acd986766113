"""``reproduce``: a published table, run here, our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DataError, DivergedError
from ..scale import Scale
from . import screen
from .runs import Json, interruptible, numbers, reopened

if TYPE_CHECKING:
    from ..papers import Cell, Experiment
    from ..reproducing import Outcome, Table, Task

SHORT = 60  # seconds: shorter runs are played side by side


def register(app: typer.Typer) -> None:
    """Put the command into the app."""
    app.command()(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="Without it: all tables, and what they cost here."),
    ] = None,
    rows: Annotated[str, typer.Option(help="Only these, as in 'Fed*'.")] = "*",
    columns: Annotated[str, typer.Option(help="Only these, as in 'CIFAR-10*'.")] = "*",
    seeds: Annotated[
        str | None, typer.Option(help="As in 0,1; default: the paper's; at quick scale its first.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="Minutes on small data, or everything as printed.")
    ] = Scale.quick,
    out: Annotated[
        Path | None, typer.Option(help="Folder of its runs; default: runs/TABLE-SCALE.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Default: one per core.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cells and their cost, run nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """A published table, run here: printed number, ours, and a verdict; again, it goes on."""
    if name is None:
        show_all(json)
        return
    from ..papers import experiment
    from ..reproducing import Table

    found = experiment(name)
    own = tuple(found.measured.seeds)
    chosen = tuple(numbers(seeds)) if seeds else own if scale is Scale.full else own[:1]
    table = Table(found, scale, rows, columns, chosen)
    if dry_run:
        show_cells(table, json)
        return
    parent = out or Path("runs") / f"{name}-{scale}"
    show_outcome(played(table, parent, workers, json), parent, json)


# Running ------------------------------------------------------------------------------------


def played(table: Table, parent: Path, workers: int | None, quiet: bool) -> Outcome:
    """Play what is left of the table's runs."""
    from ..engines import cores
    from ..reproducing import left, outcome, prepare

    if not table.tasks:
        why = dict.fromkeys(filter(None, (table.missing(c) for c in table.cells)))
        raise DataError(f"reproduce {table.found.name}: {'; '.join(why)}")
    how = "the same command goes on"
    prepare(table, parent)
    due, width = left(table, parent), workers or cores()
    estimates = costs([t.cell for t in due], width)
    if due and not quiet:
        screen.note(f"{len(due)} runs, about {told(sum(estimates))} on this machine; {how}")
    if len(due) > 1 and max(estimates) < SHORT:
        failed = side_by_side(due, parent, width, quiet, how)
    else:
        failed = one_by_one(due, parent, workers, quiet)
    return outcome(table, parent, failed)


def side_by_side(
    due: Sequence[Task], parent: Path, width: int, quiet: bool, how: str
) -> dict[str, str]:
    """Each on one core; returns which failed, and why."""
    from ..abreast import play

    with screen.progress(not quiet) as bars, interruptible(how, bars.stop):
        shown: dict[Path, screen.Bar] = {}
        by_path = {parent / t.label: t for t in due}

        def on_event(path: Path, event: dict[str, Any]) -> None:
            if path not in shown:
                task = by_path[path]
                label = f"{task.cell.row}, {task.cell.column} (seed {task.seed})"
                shown[path] = screen.Bar(bars, label, task.cell.config["rounds"])
            shown[path](event)

        failed = play(list(by_path), width, on_event)
    return {path.name: why for path, why in failed.items()}


def one_by_one(
    due: Sequence[Task], parent: Path, workers: int | None, quiet: bool
) -> dict[str, str]:
    """Each on all cores; returns which failed, and why."""
    from ..store import RunFolder

    failed = {}
    for task in due:
        folder = RunFolder(parent / task.label)
        try:
            reopened([folder], parent, workers, quiet)
        except DivergedError as error:
            failed[task.label] = str(error)
    return failed


# Costs --------------------------------------------------------------------------------------


def costs(cells: Sequence[Cell], cores: int) -> list[float]:
    """Seconds of one run of each cell, on all cores."""
    from ..papers.cost import seconds, speed

    rate = speed()
    return [seconds(c.config, rate, cores) for c in cells]


def told(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3 h``, ``5 days``."""
    for size, word in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(1, seconds):.0f} s"


# Showing ------------------------------------------------------------------------------------


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


def show_all(json: bool) -> None:
    """Every table with what it costs here, quick and in full."""
    from ..engines import cores
    from ..papers import experiments
    from ..papers.cost import seconds, speed
    from ..reproducing import Table

    rate, rows = speed(), []
    for found in experiments():
        line: dict[str, Any] = {"name": found.name, "what": found.what}
        for scale in Scale:
            if not any(c.needs is None for c in found.cells):
                line |= {f"{scale}_runs": 0, f"{scale}_here": 0, f"{scale}_seconds": None}
                continue
            own = tuple(found.measured.seeds)
            table = Table(found, scale, "*", "*", own if scale is Scale.full else own[:1])
            able = [c for c in table.cells if c.needs is None]
            each = [seconds(c.config, rate, cores()) for c in able]
            line |= {
                f"{scale}_runs": len(able) * len(table.seeds),
                f"{scale}_here": len(table.tasks),
                f"{scale}_seconds": round(sum(each) * len(table.seeds), 1),
            }
        rows.append(line)
    if json:
        screen.print_json(rows)
        return
    shown = []
    for r in rows:
        costs = [
            cell
            for s in Scale
            for cell in (
                f"{r[f'{s}_here']} of {r[f'{s}_runs']}",
                "–" if r[f"{s}_seconds"] is None else told(r[f"{s}_seconds"]),
            )
        ]
        shown.append([r["name"], r["what"], *costs])
    titles = ["table", "what", "quick: runs here", "time", "full: runs here", "time"]
    screen.print_table("", titles, shown, text=2)
    screen.note(
        "runs here: those whose data are on this machine; times: from the arithmetic of all runs and"
        " the speed of this machine, good to a factor of two"
    )


def show_cells(table: Table, json: bool) -> None:
    """What would be run, what it would cost, and with which settings."""
    from ..engines import cores
    from ..reproducing import merged

    found, cells = table.found, table.cells
    able = [c for c in cells if c.needs is None]
    each = dict(zip(map(id, able), costs(able, cores()), strict=True))
    if json:
        screen.print_json([described(table, c, each.get(id(c))) for c in cells])
        return
    shared = common([dict(pairs(c.config)) for c in cells])
    rows = []
    for cell in cells:
        own = [f"{k}={v}" for k, v in pairs(cell.config) if k not in shared]
        said = [f"{k} {n.value:g}" for k, n in cell.printed.items()]
        cost = told(each[id(cell)]) if id(cell) in each else "–"
        rows.append([cell.row, cell.column, ", ".join(said) or "–", cost, " ".join(own)])
    titles = ["row", "column", "printed", "each run", "settings of its own"]
    screen.print_table(title(found), titles, rows, text=5)
    together = "\n".join(f"{k} = {v}" for k, v in shared.items())
    screen.note(f"settings of all:\n{together}")
    how, seeds = found.measured, ", ".join(map(str, table.seeds))
    screen.note(f"{how.rounds} of the rounds, clients {how.clients}, seeds {seeds}")
    screen.note(f"all runs: about {told(sum(each.values()) * len(table.seeds))} on this machine")
    for missing in dict.fromkeys(filter(None, map(table.missing, cells))):
        screen.note(f"not all can be run: {missing}")
    about_scale(table, merged(table))


def title(found: Experiment) -> str:
    return f"{found.paper}, {found.where}: {found.what}"


def about_scale(table: Table, same: Sequence[str]) -> None:
    if table.scale is Scale.quick:
        from ..papers.quick import ABOUT

        screen.note(ABOUT)
        for words in same:
            screen.note(words)


def described(table: Table, cell: Cell, seconds: float | None) -> dict[str, Any]:
    printed = {k: {"value": n.value, "std": n.std} for k, n in cell.printed.items()}
    return {
        "row": cell.row,
        "column": cell.column,
        "printed": printed,
        "seeds": list(table.seeds),
        "config": cell.config,
        "needs": table.missing(cell),
        "seconds": seconds and round(seconds, 1),
    }


def common(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The settings that all have."""
    first, *others = configs
    return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}


def pairs(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """``key.of.section`` and value, as ``-c`` takes them."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from pairs(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def show_outcome(outcome: Outcome, parent: Path, json: bool) -> None:
    """The table with verdicts, and the claims; it and its figure also as files beside the runs."""
    from ..report import redrawn
    from ..report.side_by_side import TITLES, cells, save
    from ..reproducing import merged, recorded

    save(outcome, parent)
    redrawn.save(outcome, recorded(outcome.table, parent), parent)
    if json:
        screen.print_json(outcome.json())
        return
    table = outcome.table
    screen.print_table(title(table.found), TITLES, [cells(line) for line in outcome.lines], text=4)
    for claim in outcome.claims:
        word = {True: "holds", False: "does not hold", None: "cannot be told"}[claim.holds]
        screen.note(f"{word}: {claim.text} ({claim.why})")
    for words in table.found.claims:
        screen.note(f"also said, not checked: {words}")
    about_scale(table, merged(table))
    screen.note(
        f"{parent}/table.md, .csv, .tex, .json; {parent}/figure.svg, .png;"
        f" a page: heterophony report {parent}"
    )
