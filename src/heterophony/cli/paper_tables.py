"""Published tables on the screen: all of them with their cost, the cells of one, its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.fields import flat
from ..papers.scale import Scale
from . import terminal

if TYPE_CHECKING:
    from ..papers.reproduce import Outcome, Table
    from ..papers.table import Cell, Experiment


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
    from ..papers.table import experiments

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
    from ..engines.base import cores
    from ..papers.cost import seconds, speed
    from ..papers.reproduce import Table
    from ..papers.table import experiments

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
        terminal.print_json(rows)
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
    terminal.print_table("", titles, shown, text=2)
    terminal.note(
        "runs here: those whose data are on this machine; times: from the arithmetic of all runs and"
        " the speed of this machine, good to a factor of two"
    )


def show_cells(table: Table, json: bool) -> None:
    """What would be run, what it would cost, and with which settings."""
    from ..engines.base import cores
    from ..papers.reproduce import merged

    found, cells = table.found, table.cells
    able = [c for c in cells if c.needs is None]
    each = dict(zip(map(id, able), costs(able, cores()), strict=True))
    if json:
        terminal.print_json([described(table, c, each.get(id(c))) for c in cells])
        return
    shared = common([pairs(c.config) for c in cells])
    rows = []
    for cell in cells:
        own = [f"{k}={v}" for k, v in pairs(cell.config).items() if k not in shared]
        said = [f"{k} {n.value:g}" for k, n in cell.printed.items()]
        cost = told(each[id(cell)]) if id(cell) in each else "–"
        rows.append([cell.row, cell.column, ", ".join(said) or "–", cost, " ".join(own)])
    titles = ["row", "column", "printed", "each run", "settings of its own"]
    terminal.print_table(title(found), titles, rows, text=5)
    together = "\n".join(f"{k} = {v}" for k, v in shared.items())
    terminal.note(f"settings of all:\n{together}")
    how, seeds = found.measured, ", ".join(map(str, table.seeds))
    terminal.note(f"{how.rounds} of the rounds, clients {how.clients}, seeds {seeds}")
    if able:
        whole = told(sum(each.values()) * len(table.seeds))
        terminal.note(f"all runs: about {whole} on this machine")
    for missing in dict.fromkeys(filter(None, map(table.missing, cells))):
        terminal.note(f"{'not all' if able else 'none'} can be run: {missing}")
    about_scale(table, merged(table))


def title(found: Experiment) -> str:
    return f"{found.paper}, {found.where}: {found.what}"


def about_scale(table: Table, same: Sequence[str]) -> None:
    if table.scale is Scale.quick:
        from ..papers.quick import ABOUT

        terminal.note(ABOUT)
        for words in same:
            terminal.note(words)


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


def pairs(config: Mapping[str, Any]) -> dict[str, str]:
    """``key.of.section`` and value, as ``-c`` takes them."""
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in flat(config)}


def show_outcome(outcome: Outcome, parent: Path, json: bool) -> None:
    """The table with verdicts, and the claims; it and its figure also as files beside the runs."""
    from ..papers.reproduce import merged, recorded
    from ..report.figures import paper_figures
    from ..report.paper_table import TITLES, cells, save

    save(outcome, parent)
    paper_figures.save(outcome, recorded(outcome.table, parent), parent)
    if json:
        terminal.print_json(outcome.json())
        return
    table = outcome.table
    terminal.print_table(
        title(table.found), TITLES, [cells(line) for line in outcome.lines], text=4
    )
    if not (outcome.claims or table.found.claims):
        terminal.note("this table claims no ordering")
    for claim in outcome.claims:
        word = {True: "holds", False: "does not hold", None: "cannot be told"}[claim.holds]
        terminal.note(f"{word}: {claim.text} ({claim.why})")
    for words in table.found.claims:
        terminal.note(f"also said, not checked: {words}")
    about_scale(table, merged(table))
    terminal.note(
        f"{parent}/table.md, .csv, .tex, .json; {parent}/figure.svg, .png;"
        f" a page: heterophony report {parent}"
    )
