"""The numbers of the committed leaderboard: means, paired differences, and ranks over all settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterophony.papers.leaderboard import (
    Entry,
    RankedEntry,
    Ranking,
    build_rankings,
    read_leaderboard,
)
from heterophony.results.statistics import (
    PairedComparison,
    RankComparison,
    compare_pairs,
    compare_ranks,
)

P, G = "P.last10", "G.last10"
TUNING_FILE, LONGER_FILE = "tuning.json", "longer.json"


@dataclass(frozen=True)
class Board:
    """All numbers of the page: a table for each setting, the searches, and the longer runs."""

    tables: Mapping[tuple[str, str], Ranking]  # by data set and alpha
    tuning: Mapping[str, Mapping[str, Any]]  # by data set and algorithm
    longer: Mapping[str, Mapping[str, Any]]  # longer runs by algorithm

    def find_row(self, key: tuple[str, str], name: str) -> RankedEntry:
        return next(row for row in self.tables[key].rows if get_name(row.entry) == name)

    @property
    def complete(self) -> dict[tuple[str, str], Ranking]:
        """The settings that have the most entries; the page compares only these with each other."""
        most = max(len(table.rows) for table in self.tables.values())
        return {key: table for key, table in self.tables.items() if len(table.rows) == most}

    def list_names(self) -> list[str]:
        """List the algorithms that have an entry in every complete setting."""
        names = [{get_name(row.entry) for row in t.rows} for t in self.complete.values()]
        return sorted(set.intersection(*names))


def read_numbers(folder: Path) -> Board:
    """Read the committed entries, and the results of the searches."""
    tables = {}
    for table in build_rankings(read_leaderboard(folder)):
        data = table.rows[0].entry.config["data"]
        rows = sorted(table.rows, key=lambda row: row.ranks[P] or 0.0)
        key = (data["name"], str(data["partition"]["alpha"]))
        tables[key] = Ranking(table.setting, rows, table.comparisons, table.common_seeds)
    return Board(tables, read_plain(folder / TUNING_FILE), read_plain(folder / LONGER_FILE))


def read_plain(path: Path) -> dict[str, Any]:
    """Read a JSON file of the leaderboard; empty if it does not exist yet."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def get_name(entry: Entry) -> str:
    return str(entry.config["algorithm"]["name"])


def is_one_model_for_all(row: RankedEntry) -> bool:
    """Return True if P is G: all clients use the same model."""
    return row.means.get(G) == row.means[P]


def compare_with(row: RankedEntry, other: RankedEntry, measure: str) -> PairedComparison | None:
    """Compare an entry with another one, seed by seed; None if one of them has no such measure."""
    mine, theirs = row.entry.list_values(measure), other.entry.list_values(measure)
    return compare_pairs(mine, theirs) if mine and theirs else None


def rank_over_settings(board: Board, measure: str) -> tuple[list[str], RankComparison]:
    """Rank the algorithms that have the measure; a block is a setting, by the means over its seeds.

    Seeds of a setting share its data, so they are not independent blocks.
    """
    names = [n for n in board.list_names() if has_measure(board, n, measure)]
    blocks = [
        [board.find_row(key, name).means[measure] for name in names] for key in board.complete
    ]
    return names, compare_ranks(blocks)


def has_measure(board: Board, name: str, measure: str) -> bool:
    return all(board.find_row(key, name).entry.list_values(measure) for key in board.complete)


def describe_tuning(algorithms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe searches as plain data: every trial with its validation accuracy, and the choice."""
    return {
        a["algorithm"]: {
            "chosen": a["best"],
            "stopped": a["stopped"],
            "diverged": a["diverged"],
            "rounds": a["rounds"],
            "trials": [describe_trial(row) for row in a["rows"]],
        }
        for a in algorithms
    }


def describe_trial(row: Mapping[str, Any]) -> list[Any]:
    """Describe a trial: its settings, its state, and its validation accuracy in %."""
    found = (row["P"] or {}).get("validation")
    return [row["settings"], row["state"], found and round(100 * found["mean"], 2)]
