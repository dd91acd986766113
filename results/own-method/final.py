"""The final runs of the comparison: stored as a leaderboard with their curves, and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterophony.papers.leaderboard import Entry, describe_seed, read_board, write_entry
from heterophony.papers.table import PublishedTable, load_table
from heterophony.results.runs import Run, load_runs

HERE = Path(__file__).parent
BOARD, CURVES = HERE / "final", HERE / "curves.json"
NAME = re.compile(r"[^\w.]+")  # as in the names of run folders


@dataclass(frozen=True)
class Cell:
    """A method on a federation."""

    row: str
    column: str

    @property
    def name(self) -> str:
        return "--".join(NAME.sub("-", word).strip("-").lower() for word in (self.column, self.row))


def list_cells(table: PublishedTable) -> list[Cell]:
    return list(dict.fromkeys(Cell(cell.row, cell.column) for cell in table.cells))


def add_runs(folders: Sequence[Path]) -> None:
    """Store the cells whose seeds have all finished; what is stored already stays as it is."""
    table = load_table("own-method")
    curves = json.loads(CURVES.read_text()) if CURVES.exists() else {}
    finished = {run.folder.name: run for run in load_runs(folders, print) if run.summary}
    stored = {entry.folder.name for entry in read_board(BOARD)}
    for cell in list_cells(table):
        runs = list(find_seeds(cell, table.measured.seeds, finished))
        if len(runs) < len(table.measured.seeds) or cell.name in stored:
            continue
        config = (runs[0].folder / "config.toml").read_text(encoding="utf-8")
        write_entry(BOARD / cell.name, config, {run.seed: describe(run) for run in runs})
        curves[cell.name] = average_curves(runs)
    CURVES.write_text(json.dumps(dict(sorted(curves.items()))) + "\n")


def find_seeds(cell: Cell, seeds: Sequence[int], finished: dict[str, Run]) -> Iterator[Run]:
    column, row = cell.name.split("--")
    for seed in seeds:
        if run := finished.get(f"{row}--{column}--{seed}"):
            yield run


def describe(run: Run) -> dict[str, object]:
    """Describe a seed, without its seconds: two runs shared the machine (seconds.json has them)."""
    found = describe_seed(run)
    return {**found, "measures": {k: v for k, v in found["measures"].items() if k != "seconds"}}


def average_curves(runs: Sequence[Run]) -> dict[str, list[list[float]]]:
    """Average the curves over the seeds: rounds, and G and P in % with two digits."""
    out = {}
    for measure in ("G", "P"):
        found = [dict(run.curves.get(measure, ())) for run in runs]
        rounds = sorted(set.intersection(*(set(one) for one in found)))
        if rounds:
            means = [round(100 * sum(one[t] for one in found) / len(found), 2) for t in rounds]
            out[measure] = [[float(t) for t in rounds], means]
    return out


def read_final() -> dict[Cell, Entry]:
    """Read all stored cells, in the order of the table."""
    entries = {entry.folder.name: entry for entry in read_board(BOARD)}
    return {c: entries[c.name] for c in list_cells(load_table("own-method")) if c.name in entries}
