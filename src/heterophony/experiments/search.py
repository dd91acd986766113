"""The loop of a search: propose a batch of settings for every algorithm, run it, and learn from it.

The folder of a search has a folder for each algorithm, which is a sweep of its own (``sweep.json``
and a run folder for each trial and seed). All that the loop knows, it reads from there: it can be
killed at any moment and continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..runs.early_stops import Limits, compute_limits, read_stop
from ..runs.events import Event, get_end
from ..runs.run_index import EVENTS_FILE, read_events
from ..runs.sweep_table import SWEEP_FILE, group_runs, read_sweep, read_sweep_file
from .samplers import BATCH, SamplerName, Tried, propose_batch
from .sweep import write_sweep_file
from .swept_settings import Combination, Values


@dataclass(frozen=True)
class Search:
    """What is searched, for which algorithms, and how."""

    spaces: Mapping[str, Mapping[str, Values]]  # by the algorithm's label
    trials: int  # of every algorithm
    seeds: Sequence[int]  # each trial runs with each of them
    rounds: int
    sampler: SamplerName = "tpe"
    by: Literal["P", "G"] = "P"
    stop_early: bool = True

    @property
    def seed(self) -> int:
        """The seed of the sampler."""
        return min(self.seeds)


@dataclass(frozen=True)
class Trial:
    """One run of a search: settings, seed, and the limits below which it stops early."""

    settings: Combination
    seed: int
    limits: Limits


class TrialRunner(Protocol):
    """Runs the trials of a search: from configurations, or from objects of a Python session."""

    def prepare_trial(self, folder: Path, settings: Combination, seeds: Sequence[int]) -> list[str]:
        """Prepare a run for each seed in this folder; return the names of the run folders."""

    def run_trials(self, due: Mapping[Path, Trial]) -> dict[Path, str]:
        """Run these to their end, or to their early stop; return which diverged, and how."""


def run_search(search: Search, parent: Path, runner: TrialRunner) -> None:
    """Run a search to its end; continue it, if its folder has been begun."""
    while True:
        for label, space in search.spaces.items():
            propose_next_batch(search, parent / label, space, runner)
        due = {
            path: trial
            for label in search.spaces
            for path, trial in list_due_trials(search, parent / label).items()
        }
        if not due:
            return
        failed = runner.run_trials(due)
        for label in search.spaces:
            record_diverged(parent / label, failed)


def propose_next_batch(
    search: Search, folder: Path, space: Mapping[str, Values], runner: TrialRunner
) -> None:
    """Write the next trials of an algorithm, if all earlier ones have ended and some are left."""
    content: dict[str, Any] = {"settings": list(space), "runs": {}, "failed": {}}
    tried = list[Tried]()
    if (folder / SWEEP_FILE).exists():
        content = read_sweep_file(folder)
        tried = read_tried(search, folder)
        if list_unfinished(folder):
            return
    left = min(BATCH, search.trials - len(tried))
    if left <= 0:
        return
    for settings in propose_batch(search.sampler, space, tried, left, search.seed):
        names = runner.prepare_trial(folder, settings, search.seeds)
        content["runs"] |= {
            name: {"settings": settings, "seed": seed}
            for name, seed in zip(names, search.seeds, strict=True)
        }
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep_file(folder, content)  # all of a batch at once: it is proposed once


def read_tried(search: Search, folder: Path) -> list[Tried]:
    """Read the trials of an algorithm in the order in which they were proposed."""
    table = read_sweep(folder, search.by)
    found = {tuple(row.folders): row for row in table.rows}
    tried = []
    for settings, runs in group_runs(read_sweep_file(folder)["runs"]):
        rank = found[tuple(runs)].rank(search.by)
        tried.append(Tried(settings, -rank if rank != float("inf") else None))
    return tried


def list_unfinished(folder: Path) -> list[str]:
    """List the runs of an algorithm that have neither finished, nor stopped, nor diverged."""
    content = read_sweep_file(folder)
    return [
        name
        for name in content["runs"]
        if name not in content["failed"]
        and read_stop(folder / name) is None
        and get_end(list(read_events(folder / name / EVENTS_FILE))) is None
    ]


def list_due_trials(search: Search, folder: Path) -> dict[Path, Trial]:
    """List the runs to do by folder.

    Limits follow from finished batches only, so they do not depend on which run ends first.
    """
    unfinished = list_unfinished(folder)
    groups = group_runs(read_sweep_file(folder)["runs"])
    due: dict[Path, Trial] = {}
    for number, (settings, runs) in enumerate(groups):
        earlier = groups[: number // BATCH * BATCH]
        for name, seed in runs.items():
            if name in unfinished:
                same_seed = [n for _, r in earlier for n, s in r.items() if s == seed]
                limits = find_limits(search, folder, same_seed)
                due[folder / name] = Trial(settings, seed, limits)
    return due


def find_limits(search: Search, folder: Path, names: Sequence[str]) -> Limits:
    """Compute the limits that follow from these runs."""
    if not search.stop_early:
        return {}
    earlier: list[list[Event]] = [list(read_events(folder / n / EVENTS_FILE)) for n in names]
    return compute_limits(search.rounds, earlier, search.by)


def record_diverged(folder: Path, failed: Mapping[Path, str]) -> None:
    """Record which runs of an algorithm diverged."""
    content = read_sweep_file(folder)
    own = {path.name: reason for path, reason in failed.items() if path.parent == folder}
    if own:
        content["failed"] |= own
        write_sweep_file(folder, content)
