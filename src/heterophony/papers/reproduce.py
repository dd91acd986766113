"""A published table, run: cells become runs in a folder, and runs become numbers beside the printed.

Nothing is kept but the runs: asked again, the same folder gives the same table, and goes on where
it was left.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from ..analysis.significance import interval
from ..config.config import resolve
from ..core.errors import ConfigError, FolderError
from ..data.sources import SOURCES
from ..experiments.execute import finished
from ..run.store import RunFolder
from ..run.summary import Event
from . import quick
from .scale import Scale
from .table import Cell, Experiment
from .verdicts import (
    Claim,
    Line,
    Values,
    claims,
    lines,
    measured,
)


@dataclass(frozen=True)
class Task:
    """One run of a cell."""

    cell: Cell
    seed: int

    @property
    def label(self) -> str:
        """The name of its folder."""
        parts = (self.cell.row, self.cell.column, str(self.seed))
        return "--".join(re.sub(r"[^\w.]+", "-", part).strip("-").lower() for part in parts)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.cell.config, "seed": self.seed}


@dataclass(frozen=True)
class Table:
    """What is asked for: some rows, columns and seeds of a table, at a scale."""

    found: Experiment
    scale: Scale
    rows: str
    columns: str
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for what, pattern, names in (
            ("row", self.rows, self.found.rows),
            ("column", self.columns, self.found.columns),
        ):
            if self.found.rows and not any(fnmatchcase(n, pattern) for n in names):
                raise ConfigError(
                    f"reproduce {self.found.name}: no {what} is like '{pattern}'; there is:"
                    f" {'; '.join(names)}"
                )
        if not self.asked:
            why = self.found.needs or "nothing is printed where these rows and columns meet"
            raise ConfigError(f"reproduce {self.found.name}: {why}")

    @cached_property
    def asked(self) -> list[Cell]:
        """The cells, with their settings at this scale."""
        chosen = [
            c
            for c in self.found.cells
            if fnmatchcase(c.row, self.rows) and fnmatchcase(c.column, self.columns)
        ]
        if self.scale is Scale.full:
            return chosen
        return [replace(c, config=quick.smaller(c.config)) for c in chosen]

    @cached_property
    def same(self) -> dict[tuple[str, str], Cell]:
        """Cells that at this scale are the same run as an earlier one, and that one."""
        seen: dict[str, Cell] = {}
        out = {}
        for cell in self.asked:
            first = seen.setdefault(json.dumps(cell.config, sort_keys=True), cell)
            if first is not cell:
                out[cell.row, cell.column] = first
        return out

    @property
    def cells(self) -> list[Cell]:
        """Those to show."""
        return [c for c in self.asked if (c.row, c.column) not in self.same]

    def missing(self, cell: Cell) -> str | None:
        """Why a cell cannot be run here."""
        if cell.needs:
            return f"needs {cell.needs}"
        name = cell.config["data"]["name"]
        if not SOURCES[name].here:
            return f"{name} is not on this machine: `heterophony data fetch {name}`"
        return None

    @property
    def tasks(self) -> list[Task]:
        """All runs, cell by cell."""
        able = [c for c in self.cells if self.missing(c) is None]
        return [Task(cell, seed) for cell in able for seed in self.seeds]


def prepare(table: Table, parent: Path) -> None:
    """A folder for every run, its configuration written before any begins: all can go on."""
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a run of its own; choose another --out")
    for task in table.tasks:
        folder = RunFolder(parent / task.label)
        if folder.config.exists():
            same_settings(task, folder)
        else:
            config = resolve(task.config)
            folder.create(config.decided(config.federation()).toml())
            folder.close()


def same_settings(task: Task, folder: RunFolder) -> None:
    """A folder from before must hold the very cell; data need not be there to see that."""
    try:
        written = tomllib.loads(folder.config.read_text())
    except tomllib.TOMLDecodeError as error:
        raise FolderError(f"{folder.config} is damaged: {error}") from None
    for key, asked, there in different(task.config, written):
        raise FolderError(
            f"{folder.path} holds a run with other settings ({key} is {there}, not {asked});"
            " choose another --out"
        )


def different(
    asked: Mapping[str, Any], there: Any, above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that are not as asked; what is not asked for has defaults."""
    for key, value in asked.items():
        found = there.get(key) if isinstance(there, dict) else None
        if isinstance(value, dict):
            yield from different(value, found, f"{above}{key}.")
        elif found != value:
            yield f"{above}{key}", value, found


def left(table: Table, parent: Path) -> list[Task]:
    """Runs that are not finished."""
    return [t for t in table.tasks if not finished(list(RunFolder(parent / t.label).read()))]


def recorded(table: Table, parent: Path) -> Iterator[tuple[Task, list[Event]]]:
    """Finished runs and their events, one at a time: those of a large table are many."""
    for task in table.tasks:
        events = list(RunFolder(parent / task.label).read())
        if finished(events):
            yield task, events


@dataclass(frozen=True)
class Outcome:
    """The table: its numbers, its claims, and what is not in it."""

    table: Table
    lines: list[Line]
    claims: list[Claim]

    def json(self) -> dict[str, Any]:
        """As plain data."""
        found = self.table.found
        return {
            "table": found.name,
            "paper": f"{found.paper}, {found.where}",
            "what": found.what,
            "scale": self.table.scale.value,
            "rounds": found.measured.rounds,
            "clients": found.measured.clients,
            "seeds": list(self.table.seeds),
            "lines": [described(line) for line in self.lines],
            "claims": [vars(claim) for claim in self.claims],
            "said": found.claims,
        }


def described(line: Line) -> dict[str, Any]:
    printed, within = line.printed, interval(line.values)
    return {
        "row": line.row,
        "column": line.column,
        "data": line.data,
        "measure": line.measure,
        "printed": printed and {"value": printed.value, "std": printed.std},
        "seeds": list(line.seeds),
        "values": list(line.values),
        "mean": line.mean,
        "std": line.std,
        "ci95": within and [within.low, within.high],
        "last10": list(line.last10),
        "difference": line.difference,
        "verdict": line.verdict,
        "why": line.why,
    }


def outcome(table: Table, parent: Path, failed: Mapping[str, str]) -> Outcome:
    """Our numbers beside the printed ones; runs that are not finished are left out.

    ``failed`` says of runs, by label, why they have no end.
    """
    ours: dict[tuple[str, str], Values] = {}
    why = {place(c): reason for c in table.cells if (reason := table.missing(c))}
    for task in table.tasks:
        if task.label in failed:
            why[place(task.cell)] = failed[task.label]
    for task, events in recorded(table, parent):
        found = measured(events, table.found.measured)
        ours.setdefault(place(task.cell), {})[task.seed] = found
    if table.scale is Scale.quick:
        why = {place(c): "quick scale" for c in table.asked} | why
    for at, first in table.same.items():
        ours |= {at: ours[place(first)]} if place(first) in ours else {}
    everything = lines(table.asked, ours, why)
    shown = [line for line in everything if (line.row, line.column) not in table.same]
    return Outcome(table, shown, once(claims(table.found, everything)))


def once(claims: Iterable[Claim]) -> list[Claim]:
    """Columns that are the same run at this scale make the same claim."""
    return list({(c.text.partition(": ")[2], c.why): c for c in reversed(list(claims))}.values())[
        ::-1
    ]


def place(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def merged(table: Table) -> list[str]:
    """What became the same at this scale, in words."""
    pairs: dict[str, str] = {}
    for (row, column), first in table.same.items():
        if column != first.column:
            pairs.setdefault(column, first.column)
        else:
            pairs.setdefault(row, first.row)
    return [f"{a}: the same as {b} at this scale" for a, b in pairs.items()]
