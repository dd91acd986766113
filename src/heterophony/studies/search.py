"""Searches over settings: values and ranges, samplers that propose settings, trials, and sweeps.

A proposal depends only on the seed and on finished batches, never on which trial finishes first: a
search that is killed and continued, or that has more workers, proposes the same settings.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..config.reading import parse_toml_value
from ..core.errors import ConfigError, FolderError
from ..core.files import write_json
from ..core.randomness import derive_seed, make_generator
from ..results.search_tables import (
    SWEEP_FILE,
    format_value,
    group_sweep_runs,
    read_sweep,
    read_sweep_file,
    shorten_keys,
)
from ..runs.events import Measure, get_end
from ..runs.folder import RunFolder
from ..runs.run_index import EVENTS_FILE, read_early_stop, read_events
from .hooks import Limits, MedianRule, compute_median_limits
from .many import RunOptions, run_many
from .spec import RunSpec, load_data_of_specs, prepare_run_folders

Combination = dict[str, Any]  # a value for every key
# builds a run from a label, settings and a seed
MakeSpec = Callable[[str, Combination, int], RunSpec]
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE_PATTERN = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})\s*")
DRAWN_DIGITS = 4  # significant digits of a number drawn from a range
MAX_REPEATS = 100  # draws in a row without a new combination after which drawing ends
MAX_LABEL = 80  # longest name of a trial's folder


@dataclass(frozen=True)
class ValueRange:
    """A range of a searched setting: whole numbers are drawn uniformly, positive ones log-uniformly."""

    low: float
    high: float
    whole: bool

    def draw(self, generator: np.random.Generator) -> float | int:
        """Draw one number of the range."""
        if self.whole:
            return int(generator.integers(int(self.low), int(self.high), endpoint=True))
        if self.low > 0:
            drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = generator.uniform(self.low, self.high)
        return self.round(drawn)

    def round(self, number: float) -> float | int:
        """Round a number to a value of the setting: a whole number, or one with four significant digits."""
        if self.whole:
            return int(number)
        return min(max(float(f"{number:.{DRAWN_DIGITS}g}"), self.low), self.high)


Values = tuple[Any, ...] | ValueRange


def parse_values(text: str, where: str) -> Values:
    """Parse the values of a setting, ``0.005,0.01`` or ``0.001..0.1``; errors start with ``where``."""
    if ends := RANGE_PATTERN.fullmatch(text):
        low, high = float(ends[1]), float(ends[2])
        if not low < high:
            raise ConfigError(f"{where}: a range must go from low to high, as in 0.001..0.1")
        return ValueRange(low, high, all(re.fullmatch(r"[-+]?\d+", end) for end in ends.groups()))
    try:
        values = tomllib.loads(f"v = [{text}]")["v"]
    except tomllib.TOMLDecodeError:  # bare words
        values = [parse_toml_value(part.strip()) for part in text.split(",")]
    return check_setting_values(values, where)


def check_setting_values(values: Iterable[Any], where: str) -> tuple[Any, ...]:
    """Return the distinct values of a setting; raise ConfigError if there are none."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if not distinct or "" in distinct:
        raise ConfigError(f"{where}: must list values, as in training.lr=0.005,0.01,0.05")
    return tuple(distinct)


def list_combinations(
    swept: Mapping[str, Values], draws: int | None, seed: int
) -> list[Combination]:
    """Return all combinations of a sweep's values, or ``draws`` random ones.

    More draws with the same seed begin with the same combinations, so a sweep can be extended.
    """
    if draws is None:
        return list_grid(swept, "needs random draws: --random N, or random=N")
    generator = make_generator(seed, "sweep", sorted(swept))
    return draw_new_settings(lambda: draw_settings(swept, generator), [], draws)


def draw_setting(values: Values, generator: np.random.Generator) -> Any:
    """Draw one value of a setting from its list or range."""
    if isinstance(values, ValueRange):
        return values.draw(generator)
    return values[int(generator.integers(len(values)))]


def make_trial_label(values: Combination) -> str:
    """Return the name of a trial's folder, as in ``lr=0.01_mu=0.1``."""
    short = shorten_keys(values)
    text = "_".join(
        f"{short[k]}={v if isinstance(v, str) else format_value(to_json_value(v))}"
        for k, v in values.items()
    )
    plain = re.sub(r"[^\w.=+-]+", "-", text)[:MAX_LABEL]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"


def list_end_values(values: Values) -> tuple[Any, ...]:
    """Return all values of a list, or the lowest and the highest number of a range."""
    if not isinstance(values, ValueRange):
        return values
    return values.round(values.low), values.round(values.high)


def to_json_value(value: Any) -> Any:
    """Return the value of a setting for JSON; objects such as models and rules become their names."""
    if isinstance(value, bool | int | float | str | list | dict) or value is None:
        return value
    return getattr(value, "__name__", None) or repr(value)


# Samplers ---------------------------------------------------------------------------------------

SamplerName = Literal["tpe", "random", "grid"]
SAMPLERS: tuple[SamplerName, ...] = ("tpe", "random", "grid")
BATCH = 4  # trials that are proposed together, whatever the number of workers
STARTUP_TRIALS = 8  # random ones, before TPE starts


@dataclass(frozen=True)
class TriedSettings:
    """The settings of a trial, and its validation accuracy; None if it has no result."""

    settings: Combination
    accuracy: float | None


def propose_batch(
    sampler: SamplerName,
    swept: Mapping[str, Values],
    tried: Sequence[TriedSettings],
    count: int,
    seed: int,
) -> list[Combination]:
    """Propose the settings of up to ``count`` new trials; fewer if no others exist."""
    if sampler == "grid":
        return propose_from_grid(swept, tried, count, seed)
    known = [t.settings for t in tried]
    if sampler == "random" or len(tried) < STARTUP_TRIALS:
        generator = make_generator(seed, "tune", sorted(swept), len(tried))
        return draw_new_settings(lambda: draw_settings(swept, generator), known, count)
    return propose_by_tpe(swept, tried, count, seed)


def draw_settings(swept: Mapping[str, Values], generator: Any) -> Combination:
    """Draw a value of every setting, in an order that does not depend on the order of the keys."""
    drawn = {key: draw_setting(swept[key], generator) for key in sorted(swept)}
    return {key: drawn[key] for key in swept}


def draw_new_settings(
    draw: Callable[[], Combination], known: Sequence[Combination], count: int
) -> list[Combination]:
    """Draw ``count`` new combinations; stop after ``MAX_REPEATS`` draws in a row that are not new."""
    new: list[Combination] = []
    repeats = 0
    while len(new) < count and repeats < MAX_REPEATS:
        one = draw()
        repeats = repeats + 1 if one in known or one in new else 0
        new += [] if repeats else [one]
    return new


def propose_from_grid(
    swept: Mapping[str, Values], tried: Sequence[TriedSettings], count: int, seed: int
) -> list[Combination]:
    """Propose the next combinations of the grid, in an order that the seed determines."""
    grid = list_grid(swept)
    order = make_generator(seed, "tune", "grid", sorted(swept)).permutation(len(grid))
    known = [t.settings for t in tried]
    return [grid[i] for i in order if grid[i] not in known][:count]


def list_grid(
    swept: Mapping[str, Values], advice: str = "has no grid; list its values, or use --sampler tpe"
) -> list[Combination]:
    """List all combinations of the values; raise ConfigError with ``advice`` if a setting has a range."""
    for key, values in swept.items():
        if isinstance(values, ValueRange):
            raise ConfigError(f"{key}: a range {advice}")
    lists: list[Any] = list(swept.values())
    return [dict(zip(swept, values, strict=True)) for values in product(*lists)]


# TPE --------------------------------------------------------------------------------------------


def propose_by_tpe(
    swept: Mapping[str, Values], tried: Sequence[TriedSettings], count: int, seed: int
) -> list[Combination]:
    """Propose settings with Optuna's tree-structured Parzen estimator."""
    optuna = import_optuna()
    space = {key: make_distribution(optuna, swept[key]) for key in sorted(swept)}
    sampler = optuna.samplers.TPESampler(
        seed=derive_seed(seed, "tune", sorted(swept), len(tried)) % 2**32,
        n_startup_trials=0,
        constant_liar=True,  # keeps the trials of one batch apart
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for one in tried:
        study.add_trial(make_known_trial(optuna, swept, space, one))

    def ask() -> Combination:
        parameters = study.ask(fixed_distributions=space).params
        return {
            key: values.round(parameters[key])
            if isinstance(values, ValueRange)
            else values[parameters[key]]
            for key, values in swept.items()
        }

    return draw_new_settings(ask, [t.settings for t in tried], count)


def import_optuna() -> Any:
    """Import Optuna, an optional dependency."""
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
    """Return a setting's values as an Optuna distribution; for a list, a distribution over its indices."""
    if not isinstance(values, ValueRange):
        return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high))
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def make_known_trial(
    optuna: Any, swept: Mapping[str, Values], space: Mapping[str, Any], one: TriedSettings
) -> Any:
    """Convert a finished trial to an Optuna trial; a trial without a result counts as the worst."""
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.PRUNED if one.accuracy is None else states.COMPLETE,
        value=one.accuracy,
        params={
            key: one.settings[key]
            if isinstance(values := swept[key], ValueRange)
            else values.index(one.settings[key])
            for key in space
        },
        distributions=dict(space),
    )


# Trials -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """A search for the best settings of one or several algorithms, with the same number of trials each."""

    spaces: Mapping[str, Mapping[str, Values]]  # values to search, by the algorithm's label
    make_spec: MakeSpec
    trials: int  # number of trials per algorithm
    seeds: Sequence[int]  # each trial has a run with each seed
    rounds: int
    sampler: SamplerName = "tpe"
    by: Measure = "P"
    stop_early: bool = True

    @property
    def seed(self) -> int:
        """The seed of the sampler."""
        return min(self.seeds)

    def make_first_spec(self) -> RunSpec:
        """Make one run of the search, to read the data and engine settings that all runs share."""
        label, space = next(iter(self.spaces.items()))
        first = {key: list_end_values(values)[0] for key, values in space.items()}
        return self.make_spec(label, first, self.seed)

    def check(self) -> None:
        """Raise ConfigError if a value of a searched setting is wrong, before the first trial starts."""
        for label, space in self.spaces.items():
            ends = {key: list_end_values(values) for key, values in space.items()}
            first = {key: values[0] for key, values in ends.items()}
            for key, values in ends.items():
                for value in values:
                    self.make_spec(label, {**first, key: value}, self.seed)


def run_search(search: Search, parent: Path, options: RunOptions) -> None:
    """Run all trials of a search; if its folder exists, only the remaining ones."""
    while True:
        for label, space in search.spaces.items():
            propose_next_batch(search, parent / label, label, space)
        due, rules = dict[RunFolder, RunSpec](), dict[Path, MedianRule]()
        for label in search.spaces:
            for folder, (spec, limits) in list_due_trials(search, parent / label, label).items():
                due[folder] = replace(spec, name=f"{label} {folder.path.name}")
                rules[folder.path] = MedianRule(search.by, limits)
        if not due:
            return
        diverged = run_many(due, replace(options, rules=rules))
        for label in search.spaces:
            record_diverged(parent / label, diverged)


def propose_next_batch(
    search: Search, folder: Path, label: str, space: Mapping[str, Values]
) -> None:
    """Create the runs of an algorithm's next trials, unless earlier ones are unfinished or none remain."""
    content: dict[str, Any] = {"settings": list(space), "runs": {}, "failed": {}}
    tried = list[TriedSettings]()
    if (folder / SWEEP_FILE).exists():
        content = read_sweep_file(folder)
        tried = read_trials(search, folder)
        if list_unfinished_runs(folder):
            return
    left = min(BATCH, search.trials - len(tried))
    if left <= 0:
        return
    for settings in propose_batch(search.sampler, space, tried, left, search.seed):
        names = {f"{make_trial_label(settings)}-{seed}": seed for seed in search.seeds}
        specs = {n: search.make_spec(label, settings, seed) for n, seed in names.items()}
        prepare_run_folders(folder, load_data_of_specs(specs))
        plain = {key: to_json_value(value) for key, value in settings.items()}
        content["runs"] |= {n: {"settings": plain, "seed": seed} for n, seed in names.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / SWEEP_FILE, content
    )  # once per batch, so that no part of a batch is recorded alone


def read_trials(search: Search, folder: Path) -> list[TriedSettings]:
    """Read an algorithm's trials and their accuracies, in the order in which they were proposed."""
    table = read_sweep(folder, search.by)
    found = {tuple(row.folders): row for row in table.rows}
    tried = []
    for settings, runs in group_sweep_runs(read_sweep_file(folder)["runs"]):
        rank = found[tuple(runs)].rank(search.by)
        tried.append(TriedSettings(settings, -rank if rank != float("inf") else None))
    return tried


def list_unfinished_runs(folder: Path) -> list[str]:
    """List the runs of a sweep or search that have neither finished nor diverged nor been abandoned."""
    content = read_sweep_file(folder)
    return [
        name
        for name in content["runs"]
        if name not in content["failed"]
        and read_early_stop(folder / name) is None
        and get_end(list(read_events(folder / name / EVENTS_FILE))) is None
    ]


def list_due_trials(
    search: Search, folder: Path, label: str
) -> dict[RunFolder, tuple[RunSpec, Limits]]:
    """List an algorithm's remaining runs, each with the limits below which its trial is abandoned.

    Limits depend only on finished batches, never on which run finishes first.
    """
    unfinished = list_unfinished_runs(folder)
    groups = group_sweep_runs(read_sweep_file(folder)["runs"])
    due: dict[RunFolder, tuple[RunSpec, Limits]] = {}
    for number, (settings, runs) in enumerate(groups):
        earlier = groups[: number // BATCH * BATCH]
        for name, seed in runs.items():
            if name in unfinished:
                same_seed = [n for _, r in earlier for n, s in r.items() if s == seed]
                limits = compute_trial_limits(search, folder, same_seed)
                due[RunFolder(folder / name)] = search.make_spec(label, settings, seed), limits
    return due


def compute_trial_limits(search: Search, folder: Path, names: Sequence[str]) -> Limits:
    """Compute the limits below which a trial is abandoned, from earlier runs of other trials."""
    if not search.stop_early:
        return {}
    earlier = [list(read_events(folder / n / EVENTS_FILE)) for n in names]
    return compute_median_limits(search.rounds, earlier, search.by)


def record_diverged(folder: Path, diverged: Mapping[Path, str]) -> None:
    """Record in a sweep's or search's folder which of its runs diverged, and why."""
    content = read_sweep_file(folder)
    own = {path.name: reason for path, reason in diverged.items() if path.parent == folder}
    if own:
        content["failed"] |= own
        write_json(folder / SWEEP_FILE, content)


# Sweeps: all trials at once ---------------------------------------------------------------------


def create_sweep(
    parent: Path, combinations: Sequence[Combination], seeds: Sequence[int], make_spec: MakeSpec
) -> dict[RunFolder, RunSpec]:
    """Create the folder of every run of a sweep, and ``sweep.json``; return the unfinished runs."""
    names = {f"{make_trial_label(c)}-{seed}": (c, seed) for c in combinations for seed in seeds}
    if not names:
        raise ConfigError("seeds: must list at least one seed, as in (0, 1, 2)")
    specs = {n: replace(make_spec("", *of), name=n) for n, of in names.items()}
    folders = prepare_run_folders(parent, load_data_of_specs(specs))
    failed = read_sweep_file(parent)["failed"] if (parent / SWEEP_FILE).exists() else {}
    runs = {
        n: {"settings": {k: to_json_value(v) for k, v in c.items()}, "seed": seed}
        for n, (c, seed) in names.items()
    }
    content = {"settings": list(combinations[0]), "runs": runs, "failed": failed}
    write_json(parent / "compare.json", {"runs": list(runs)})
    write_json(parent / SWEEP_FILE, content)
    unfinished = list_unfinished_runs(parent)
    return {
        f: replace(s, name=f.path.name) for f, s in folders.items() if f.path.name in unfinished
    }


def run_sweep(parent: Path, runs: Mapping[RunFolder, RunSpec], options: RunOptions) -> None:
    """Complete a sweep, and record which runs diverged."""
    record_diverged(parent, run_many(runs, options))


def list_due_folders(parent: Path) -> list[RunFolder]:
    """List the folders of a sweep's remaining runs; raise FolderError if one is missing."""
    names = list_unfinished_runs(parent)
    for name in names:
        if not (parent / name / "config.toml").exists():
            raise FolderError(f"{parent / name} is missing; repeat the sweep to recreate it")
    return [RunFolder(parent / name) for name in names]
