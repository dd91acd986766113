"""Samplers of a search: propose the next settings to try, from the settings tried so far.

A proposal depends on the seed and on finished batches only, never on which trial ends first: a search
that is killed and continued, or that has more workers, proposes the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

from ..core.errors import ConfigError
from ..core.randomness import derive_seed, make_generator
from ..results.search_tables import SWEEP_FILE, group_runs, read_sweep, read_sweep_file
from ..runs.early_stops import Limits, compute_limits, read_stop
from ..runs.events import Event, get_end
from ..runs.run_index import EVENTS_FILE, read_events
from .sweep import (
    DRAWN_DIGITS,
    MAX_REPEATS,
    Combination,
    ValueRange,
    Values,
    draw_value,
    write_sweep_file,
)

SamplerName = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[SamplerName, ...] = ("tpe", "random", "grid")
BATCH = 4  # trials that are proposed together; fixed, so that workers do not change proposals
STARTUP_TRIALS = 8  # random ones, before TPE has something to learn from


@dataclass(frozen=True)
class Tried:
    """Settings that were tried, and their validation accuracy; None if the trial did not finish."""

    settings: Combination
    accuracy: float | None


def propose_batch(
    sampler: SamplerName,
    swept: Mapping[str, Values],
    tried: Sequence[Tried],
    count: int,
    seed: int,
) -> list[Combination]:
    """Propose up to ``count`` settings that were not tried yet; fewer if there are no others."""
    if sampler == "grid":
        return propose_from_grid(swept, tried, count, seed)
    known = [t.settings for t in tried]
    if sampler == "random" or len(tried) < STARTUP_TRIALS:
        generator = make_generator(seed, "tune", sorted(swept), len(tried))
        return draw_new(lambda: draw_settings(swept, generator), known, count)
    return propose_by_tpe(swept, tried, count, seed)


def draw_settings(swept: Mapping[str, Values], generator: Any) -> Combination:
    """Draw a value for every key; the order of the keys does not matter."""
    drawn = {key: draw_value(swept[key], generator) for key in sorted(swept)}
    return {key: drawn[key] for key in swept}


def draw_new(
    draw: Callable[[], Combination], known: Sequence[Combination], count: int
) -> list[Combination]:
    """Draw settings that differ from the known ones and from each other; give up after many repeats."""
    new: list[Combination] = []
    repeats = 0
    while len(new) < count and repeats < MAX_REPEATS:
        one = draw()
        repeats = repeats + 1 if one in known or one in new else 0
        new += [] if repeats else [one]
    return new


def propose_from_grid(
    swept: Mapping[str, Values], tried: Sequence[Tried], count: int, seed: int
) -> list[Combination]:
    """Propose the next combinations of the grid, in an order that the seed decides."""
    grid = list_grid(swept)
    order = make_generator(seed, "tune", "grid", sorted(swept)).permutation(len(grid))
    known = [t.settings for t in tried]
    return [grid[i] for i in order if grid[i] not in known][:count]


def list_grid(swept: Mapping[str, Values]) -> list[Combination]:
    """List all combinations of values; a range has none."""
    for key, values in swept.items():
        if isinstance(values, ValueRange):
            raise ConfigError(f"{key}: a range has no grid; list its values, or use --sampler tpe")
    lists: list[Any] = list(swept.values())
    return [dict(zip(swept, values, strict=True)) for values in product(*lists)]


# TPE --------------------------------------------------------------------------------------------


def propose_by_tpe(
    swept: Mapping[str, Values], tried: Sequence[Tried], count: int, seed: int
) -> list[Combination]:
    """Propose settings by Optuna's tree-structured Parzen estimator."""
    optuna = import_optuna()
    space = {key: make_distribution(optuna, swept[key]) for key in sorted(swept)}
    sampler = optuna.samplers.TPESampler(
        seed=derive_seed(seed, "tune", sorted(swept), len(tried)) % 2**32,
        n_startup_trials=0,
        constant_liar=True,  # trials of one batch keep away from each other
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for one in tried:
        study.add_trial(make_known_trial(optuna, swept, space, one))

    def ask() -> Combination:
        parameters = study.ask(fixed_distributions=space).params
        return {key: decode_value(swept[key], parameters[key]) for key in swept}

    return draw_new(ask, [t.settings for t in tried], count)


def import_optuna() -> Any:
    """Import Optuna, which is an extra."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "the sampler tpe needs Optuna; install it with pip install 'heterophony[tune]', or choose"
            " random or grid"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def make_distribution(optuna: Any, values: Values) -> Any:
    """Describe values to Optuna; those of a list by their place in it."""
    if not isinstance(values, ValueRange):
        return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def make_known_trial(
    optuna: Any, swept: Mapping[str, Values], space: Mapping[str, Any], one: Tried
) -> Any:
    """Tell Optuna a trial; one without a result counts as worse than all others."""
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.PRUNED if one.accuracy is None else states.COMPLETE,
        value=one.accuracy,
        params={key: encode_value(swept[key], one.settings[key]) for key in space},
        distributions=dict(space),
    )


def encode_value(values: Values, value: Any) -> Any:
    return value if isinstance(values, ValueRange) else values.index(value)


def decode_value(values: Values, parameter: Any) -> Any:
    """Return the value that Optuna chose, with as many digits as random draws have."""
    if not isinstance(values, ValueRange):
        return values[parameter]
    if values.whole:
        return int(parameter)
    return min(max(float(f"{parameter:.{DRAWN_DIGITS}g}"), values.low), values.high)


def describe_space(swept: Mapping[str, Values]) -> dict[str, Any]:
    """Describe what is searched as plain data, as JSON gives it back."""
    plain = {
        key: {"low": v.low, "high": v.high, "whole": v.whole}
        if isinstance(v, ValueRange)
        else list(v)
        for key, v in swept.items()
    }
    return dict(json.loads(json.dumps(plain)))


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
