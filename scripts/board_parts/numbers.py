"""The numbers of the committed leaderboard: means, corrected differences, groups, and ranks over data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from heterophony.papers.leaderboard import (
    Entry,
    list_shares_below,
    read_leaderboard,
)
from heterophony.results.statistics import (
    CONFIDENCE,
    PairedComparison,
    RankComparison,
    compare_pairs,
    compare_ranks,
    compute_confidence_interval,
)

from .plan import SETTINGS, Setting

P, G = "P.last10", "G.last10"
TUNING_FILE, PILOT_FILE, SECONDS_FILE = "tuning.json", "pilots.json", "seconds.json"
NEAR_BEST = 0.9  # share of the best P whose rounds and traffic are counted


@dataclass(frozen=True)
class Table:
    """The entries of one setting, the highest P first."""

    setting: Setting
    entries: Mapping[str, Entry]  # by algorithm
    trials: Mapping[str, Sequence[Any]]
    seconds: Mapping[str, float]

    @cached_property
    def names(self) -> list[str]:
        return sorted(self.entries, key=lambda name: -self.mean(name, P))

    def values(self, name: str, measure: str) -> list[float]:
        return self.entries[name].list_values(measure) if name in self.entries else []

    def mean(self, name: str, measure: str) -> float:
        return fmean(self.values(name, measure))

    def half(self, name: str, measure: str) -> float:
        """Return half of the 95 % interval over the seeds."""
        found = compute_confidence_interval(self.values(name, measure))
        return (found.high - found.low) / 2 if found else 0.0

    def compare(self, name: str, other: str, measure: str = P) -> PairedComparison | None:
        """Compare two algorithms, seed by seed; the interval is corrected for all rows of the table."""
        mine, theirs = self.values(name, measure), self.values(other, measure)
        if not mine or not theirs or name == other:
            return None
        level = 1 - (1 - CONFIDENCE) / max(1, len(self.entries) - 1)
        return compare_pairs(mine, theirs, level)

    @cached_property
    def groups(self) -> dict[str, int]:
        """Number the groups from 1: whatever is not significantly below a group's best is in it."""
        out, left, number = dict[str, int](), list(self.names), 0
        while left:
            number += 1
            best = left[0]
            group = [n for n in left if n == best or not is_below(self.compare(n, best))]
            out |= dict.fromkeys(group, number)
            left = [n for n in left if n not in group]
        return out

    def share_below(self, name: str, other: str) -> float | None:
        """Return the mean share of clients that have a lower P than with another algorithm."""
        if name == other or name not in self.entries or other not in self.entries:
            return None
        found = list_shares_below(self.entries[name], self.entries[other])
        return fmean(found) if found else None

    @cached_property
    def target(self) -> float:
        """The P whose rounds and traffic are counted: a share of the best mean."""
        return NEAR_BEST * self.mean(self.names[0], P)

    def rounds_to_target(self, name: str) -> float | None:
        """Return the mean number of rounds until P reaches the target.

        None if a seed never does, or if P is measured too rarely to tell.
        """
        if count_points(self, name) < max(count_points(self, n) for n in self.names):
            return None
        found = []
        for seed in self.entries[name].seeds.values():
            reached = [t for t, value in seed.curves["P"] if value >= self.target]
            found += reached[:1]
        return fmean(found) if len(found) == len(self.entries[name].seeds) else None

    def traffic_to_target(self, name: str) -> float | None:
        """Return the MB of all traffic until P reaches the target."""
        rounds = self.rounds_to_target(name)
        if rounds is None:
            return None
        whole = self.mean(name, "MB_up") + self.mean(name, "MB_down")
        return whole * rounds / self.setting.rounds

    def is_one_model_for_all(self, name: str) -> bool:
        return self.values(name, G) == self.values(name, P)


def count_points(table: Table, name: str) -> int:
    """Count the evaluations of P in a run."""
    return min(len(seed.curves["P"]) for seed in table.entries[name].seeds.values())


def is_below(compared: PairedComparison | None) -> bool:
    """Return True if a difference is significantly negative."""
    return compared is not None and compared.interval is not None and compared.interval.high < 0


@dataclass(frozen=True)
class Board:
    """All tables of the comparison, and the pilots that chose their settings."""

    tables: Mapping[str, Table]  # by the setting's name
    pilots: Mapping[str, Mapping[str, Any]]

    @cached_property
    def common(self) -> list[str]:
        """The algorithms that have an entry in every table."""
        found = [set(table.entries) for table in self.tables.values()]
        return sorted(set.intersection(*found)) if found else []

    @cached_property
    def blocks(self) -> dict[str, list[Table]]:
        """The tables by data set."""
        out: dict[str, list[Table]] = {}
        for table in self.tables.values():
            out.setdefault(table.setting.block, []).append(table)
        return out

    def rank(self, measure: str) -> tuple[list[str], RankComparison | None]:
        """Rank the common algorithms over data sets; tables of one data set are averaged first."""
        names = [n for n in self.common if all(t.values(n, measure) for t in self.tables.values())]
        rows = [
            [-fmean(rank_in(table, names, measure)[name] for table in tables) for name in names]
            for tables in self.blocks.values()
        ]
        return names, compare_ranks(rows) if len(rows) > 1 and len(names) > 1 else None


def rank_in(table: Table, names: Sequence[str], measure: str) -> dict[str, float]:
    """Rank algorithms within a table by their means, 1 for the highest; equal means share a rank."""
    means = {name: table.mean(name, measure) for name in names}
    return {
        name: 1
        + sum(v > mine for v in means.values())
        + (sum(v == mine for v in means.values()) - 1) / 2
        for name, mine in means.items()
    }


def read_numbers(folder: Path) -> Board:
    """Read the committed entries, searches, pilots and seconds."""
    entries = {entry.folder.name: entry for entry in read_leaderboard(folder)}
    tuning, seconds = read_plain(folder / TUNING_FILE), read_plain(folder / SECONDS_FILE)
    tables = {}
    for setting in SETTINGS:
        own = {
            n: entries[f"{setting.name}-{n}"]
            for n in setting.algorithms
            if f"{setting.name}-{n}" in entries
        }
        if {"fedavg", "local", "centralized"} <= set(own):
            trials = tuning.get(setting.searched_in, {})
            tables[setting.name] = Table(setting, own, trials, seconds.get(setting.name, {}))
    return Board(tables, read_plain(folder / PILOT_FILE))


def read_plain(path: Path) -> dict[str, Any]:
    """Read a JSON file of the leaderboard; empty if it does not exist yet."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def get_setting(config: Mapping[str, Any], key: str) -> object:
    section, _, setting = key.partition(".")
    return config[section][setting]
