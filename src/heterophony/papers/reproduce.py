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

from ..analysis.significance import compute_confidence_interval
from ..config.reading import resolve_config
from ..core.errors import ConfigError, FolderError
from ..data.sources import SOURCES
from ..experiments.execute import is_finished
from ..run.store import RunFolder
from ..run.summary import Event
from . import quick
from .scale import TableScale
from .table import Cell, Experiment
from .verdicts import (
    Claim,
    ComparedNumber,
    ValuesBySeed,
    check_claims,
    compare_numbers,
    measure_run,
)


@dataclass(frozen=True)
class CellRun:
    """One run of a cell."""

    cell: Cell
    seed: int

    @property
    def folder_name(self) -> str:
        """The name of its folder."""
        parts = (self.cell.row, self.cell.column, str(self.seed))
        return "--".join(re.sub(r"[^\w.]+", "-", part).strip("-").lower() for part in parts)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.cell.config, "seed": self.seed}


@dataclass(frozen=True)
class TableSelection:
    """What is asked for: some rows, columns and seeds of a table, at a scale."""

    experiment: Experiment
    scale: TableScale
    rows: str
    columns: str
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for what, pattern, names in (
            ("row", self.rows, self.experiment.rows),
            ("column", self.columns, self.experiment.columns),
        ):
            if self.experiment.rows and not any(fnmatchcase(n, pattern) for n in names):
                raise ConfigError(
                    f"reproduce {self.experiment.name}: no {what} is like '{pattern}'; there is:"
                    f" {'; '.join(names)}"
                )
        if not self.selected_cells:
            why = self.experiment.needs or "nothing is printed where these rows and columns meet"
            raise ConfigError(f"reproduce {self.experiment.name}: {why}")

    @cached_property
    def selected_cells(self) -> list[Cell]:
        """The cells, with their settings at this scale."""
        chosen = [
            c
            for c in self.experiment.cells
            if fnmatchcase(c.row, self.rows) and fnmatchcase(c.column, self.columns)
        ]
        if self.scale is TableScale.full:
            return chosen
        return [replace(c, config=quick.shrink_config(c.config)) for c in chosen]

    @cached_property
    def duplicates(self) -> dict[tuple[str, str], Cell]:
        """Cells that at this scale are the same run as an earlier one, and that one."""
        seen: dict[str, Cell] = {}
        out = {}
        for cell in self.selected_cells:
            first = seen.setdefault(json.dumps(cell.config, sort_keys=True), cell)
            if first is not cell:
                out[cell.row, cell.column] = first
        return out

    @property
    def distinct_cells(self) -> list[Cell]:
        """Those to show."""
        return [c for c in self.selected_cells if (c.row, c.column) not in self.duplicates]

    def explain_unavailable(self, cell: Cell) -> str | None:
        """Why a cell cannot be run here."""
        if cell.needs:
            return f"needs {cell.needs}"
        name = cell.config["data"]["name"]
        if not SOURCES[name].available:
            return f"{name} is not on this machine: `heterophony data fetch {name}`"
        return None

    @property
    def runs(self) -> list[CellRun]:
        """All runs, cell by cell."""
        able = [c for c in self.distinct_cells if self.explain_unavailable(c) is None]
        return [CellRun(cell, seed) for cell in able for seed in self.seeds]


def create_run_folders(table: TableSelection, parent: Path) -> None:
    """A folder for every run, its configuration written before any begins: all can go on."""
    if (parent / "config.toml").exists():
        raise FolderError(f"{parent} is a run of its own; choose another --out")
    for task in table.runs:
        folder = RunFolder(parent / task.folder_name)
        if folder.config_file.exists():
            check_same_settings(task, folder)
        else:
            config = resolve_config(task.config)
            folder.create(config.fill_model_defaults(config.build_federation()).to_toml())
            folder.close()


def check_same_settings(task: CellRun, folder: RunFolder) -> None:
    """A folder from before must hold the very cell; data need not be there to see that."""
    try:
        written = tomllib.loads(folder.config_file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise FolderError(f"{folder.config_file} is damaged: {error}") from None
    for key, asked, there in find_differences(task.config, written):
        raise FolderError(
            f"{folder.path} holds a run with other settings ({key} is {there}, not {asked});"
            " choose another --out"
        )


def find_differences(
    asked: Mapping[str, Any], there: Any, above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that are not as asked; what is not asked for has defaults."""
    for key, value in asked.items():
        found = there.get(key) if isinstance(there, dict) else None
        if isinstance(value, dict):
            yield from find_differences(value, found, f"{above}{key}.")
        elif found != value:
            yield f"{above}{key}", value, found


def list_unfinished(table: TableSelection, parent: Path) -> list[CellRun]:
    """Runs that are not finished."""
    return [
        t
        for t in table.runs
        if not is_finished(list(RunFolder(parent / t.folder_name).iterate_events()))
    ]


def read_finished(table: TableSelection, parent: Path) -> Iterator[tuple[CellRun, list[Event]]]:
    """Finished runs and their events, one at a time: those of a large table are many."""
    for task in table.runs:
        events = list(RunFolder(parent / task.folder_name).iterate_events())
        if is_finished(events):
            yield task, events


@dataclass(frozen=True)
class ReproductionResult:
    """The table: its numbers, its claims, and what is not in it."""

    table: TableSelection
    numbers: list[ComparedNumber]
    claims: list[Claim]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        found = self.table.experiment
        return {
            "table": found.name,
            "paper": f"{found.paper}, {found.where}",
            "what": found.what,
            "scale": self.table.scale.value,
            "rounds": found.measured.rounds,
            "clients": found.measured.clients,
            "seeds": list(self.table.seeds),
            "lines": [describe_number(line) for line in self.numbers],
            "claims": [vars(claim) for claim in self.claims],
            "said": found.claims,
        }


def describe_number(line: ComparedNumber) -> dict[str, Any]:
    printed, within = line.printed, compute_confidence_interval(line.values)
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


def build_result(
    table: TableSelection, parent: Path, failed: Mapping[str, str]
) -> ReproductionResult:
    """Our numbers beside the printed ones; runs that are not finished are left out.

    ``failed`` says of runs, by label, why they have no end.
    """
    ours: dict[tuple[str, str], ValuesBySeed] = {}
    why = {
        get_cell_key(c): reason
        for c in table.distinct_cells
        if (reason := table.explain_unavailable(c))
    }
    for task in table.runs:
        if task.folder_name in failed:
            why[get_cell_key(task.cell)] = failed[task.folder_name]
    for task, events in read_finished(table, parent):
        found = measure_run(events, table.experiment.measured)
        ours.setdefault(get_cell_key(task.cell), {})[task.seed] = found
    if table.scale is TableScale.quick:
        why = {get_cell_key(c): "quick scale" for c in table.selected_cells} | why
    for at, first in table.duplicates.items():
        ours |= {at: ours[get_cell_key(first)]} if get_cell_key(first) in ours else {}
    everything = compare_numbers(table.selected_cells, ours, why)
    shown = [line for line in everything if (line.row, line.column) not in table.duplicates]
    return ReproductionResult(
        table, shown, deduplicate_claims(check_claims(table.experiment, everything))
    )


def deduplicate_claims(claims: Iterable[Claim]) -> list[Claim]:
    """Columns that are the same run at this scale make the same claim."""
    return list({(c.text.partition(": ")[2], c.why): c for c in reversed(list(claims))}.values())[
        ::-1
    ]


def get_cell_key(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.column


def describe_duplicates(table: TableSelection) -> list[str]:
    """What became the same at this scale, in words."""
    pairs: dict[str, str] = {}
    for (row, column), first in table.duplicates.items():
        if column != first.column:
            pairs.setdefault(column, first.column)
        else:
            pairs.setdefault(row, first.row)
    return [f"{a}: the same as {b} at this scale" for a, b in pairs.items()]
