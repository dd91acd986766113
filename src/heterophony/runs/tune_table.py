"""The table of a tune: for every algorithm what was tried, what was chosen, and the rounds it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .events import select_rounds
from .run_index import EVENTS_FILE, read_events
from .sweep_table import (
    SWEEP_FILE,
    Measure,
    SweepRow,
    SweepTable,
    group_runs,
    read_sweep,
    read_sweep_file,
)


@dataclass(frozen=True)
class TunedAlgorithm:
    """The search of one algorithm."""

    label: str
    sweep: SweepTable
    rounds: int  # that were run, in all trials and seeds; stopped trials have fewer

    @property
    def trials(self) -> list[SweepRow]:
        """The trials in the order in which they were proposed."""
        found = {tuple(row.folders): row for row in self.sweep.rows}
        groups = group_runs(read_sweep_file(self.sweep.folder)["runs"])
        return [found[tuple(runs)] for _, runs in groups]

    def count(self, state: str) -> int:
        """Count the trials in this state."""
        return sum(row.state == state for row in self.sweep.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the search as plain data for JSON."""
        return {
            "algorithm": self.label,
            "trials": len(self.sweep.rows),
            "stopped": self.count("stopped"),
            "diverged": self.count("diverged"),
            "rounds": self.rounds,
            **self.sweep.to_dict(),
        }


@dataclass(frozen=True)
class TuneTable:
    """The searches of all algorithms, in the order in which they were named."""

    folder: Path
    by: Measure
    algorithms: list[TunedAlgorithm]

    @property
    def best(self) -> dict[str, dict[str, Any] | None]:
        """The chosen settings by algorithm: those with the highest validation accuracy."""
        return {a.label: a.sweep.best for a in self.algorithms}

    def __getitem__(self, label: str) -> SweepTable:
        return next(a.sweep for a in self.algorithms if a.label == label)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data for JSON."""
        return {
            "by": self.by,
            "best": self.best,
            "algorithms": [a.to_dict() for a in self.algorithms],
        }

    def __repr__(self) -> str:
        return f"<Tune of {', '.join(self.best)}: best {self.best}>"


def read_tune(folder: Path, labels: Iterable[str], by: Measure) -> TuneTable:
    """Read what a tune has tried so far."""
    found = []
    for label in labels:
        if not (folder / label / SWEEP_FILE).is_file():
            continue
        sweep = read_sweep(folder / label, by)
        names = [name for row in sweep.rows for name in row.folders]
        events = (read_events(folder / label / name / EVENTS_FILE) for name in names)
        found.append(TunedAlgorithm(label, sweep, sum(len(select_rounds(e)) for e in events)))
    return TuneTable(folder, by, found)
