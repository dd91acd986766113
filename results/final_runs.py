"""The final runs of a comparison: stored as a leaderboard with their curves, and read again."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from board_parts.packing import pack

from heterophony.papers.leaderboard import Entry, describe_seed, read_leaderboard, write_entry
from heterophony.papers.table import PublishedTable, load_table
from heterophony.results.comparison import compare_with_local, index_local_runs
from heterophony.results.runs import Run, load_runs

NAME = re.compile(r"[^\w.]+")  # as in the names of run folders


@dataclass(frozen=True)
class Cell:
    """A method on a federation."""

    row: str
    column: str

    @property
    def name(self) -> str:
        return "--".join(NAME.sub("-", word).strip("-").lower() for word in (self.column, self.row))


@dataclass(frozen=True)
class FinalRuns:
    """The final runs of a table, in a folder of results."""

    folder: Path
    table_name: str

    @property
    def board(self) -> Path:
        return self.folder / "final"

    @property
    def curves(self) -> Path:
        return self.folder / "curves.json"

    @property
    def table(self) -> PublishedTable:
        return load_table(self.table_name)

    def list_cells(self) -> list[Cell]:
        return list(dict.fromkeys(Cell(cell.row, cell.column) for cell in self.table.cells))

    def read(self) -> dict[Cell, Entry]:
        """Read all stored cells, in the order of the table."""
        entries = {entry.folder.name: entry for entry in read_leaderboard(self.board)}
        return {cell: entries[cell.name] for cell in self.list_cells() if cell.name in entries}

    def add(self, folders: Sequence[Path]) -> None:
        """Store the cells whose seeds have all finished, packed, in place of what is stored of them."""
        self.board.mkdir(exist_ok=True)
        curves = json.loads(self.curves.read_text()) if self.curves.exists() else {}
        finished = {run.folder.name: run for run in load_runs(folders, print) if run.summary}
        seeds = self.table.measured.seeds
        alone = index_local_runs(finished.values())
        for cell in self.list_cells():
            runs = list(find_seeds(cell, seeds, finished))
            if len(runs) < len(seeds):
                continue
            config = (runs[0].folder / "config.toml").read_text(encoding="utf-8")
            write_entry(self.board / cell.name, config, {run.seed: describe(run) for run in runs})
            found = [compare_with_local(run.summary, alone) for run in runs if run.summary]
            curves[cell.name] = average_curves(runs)
            if all(found):
                curves[cell.name]["below_local"] = [round(f["below_local"], 4) for f in found]
            if joined := [s.new_clients for run in runs if (s := run.summary) and s.new_clients]:
                curves[cell.name]["new_clients"] = [
                    {"before": round(new.before, 6), "P": round(new.P, 6)} for new in joined
                ]
        self.curves.write_text(json.dumps(dict(sorted(curves.items()))) + "\n")
        pack(self.board)


def find_seeds(cell: Cell, seeds: Sequence[int], finished: dict[str, Run]) -> Iterator[Run]:
    column, row = cell.name.split("--")
    for seed in seeds:
        if run := finished.get(f"{row}--{column}--{seed}"):
            yield run


def describe(run: Run) -> dict[str, object]:
    """Describe a seed, without its seconds: other programs shared the machine."""
    found = describe_seed(run)
    return {**found, "measures": {k: v for k, v in found["measures"].items() if k != "seconds"}}


def average_curves(runs: Sequence[Run]) -> dict[str, list]:
    """Average the curves over the seeds: rounds, and G and P in % with two digits."""
    out = {}
    for measure in ("G", "P"):
        found = [dict(run.curves.get(measure, ())) for run in runs]
        rounds = sorted(set.intersection(*(set(one) for one in found)))
        if rounds:
            means = [round(100 * sum(one[t] for one in found) / len(found), 2) for t in rounds]
            out[measure] = [[float(t) for t in rounds], means]
    return out
