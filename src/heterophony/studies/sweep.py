"""The settings that a sweep varies: lists of values and ranges, combined in a grid or at random."""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..config.config import Config
from ..config.reading import parse_toml_value, read_config, read_toml
from ..config.sections import EngineSection
from ..config.short_keys import expand_overrides, find_choice, ignore_note
from ..core.errors import ConfigError, DivergedError, FolderError
from ..core.files import write_json
from ..core.randomness import make_generator
from ..core.settings import list_settings
from ..core.training import Training
from ..engines.base import count_cores, count_gpu_workers
from ..results.search_tables import SWEEP_FILE, format_value, read_sweep_file, shorten_keys
from ..runs.early_stops import read_stop
from ..runs.folder import RunFolder
from .execute import is_finished
from .progress import RunsProgress
from .tasks import (
    load_tasks,
    prepare_run_folders,
    read_begun_config,
    resume_tasks,
    run_on_cluster,
    run_side_by_side,
)

Combination = dict[str, Any]  # a value for every key
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE_PATTERN = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})\s*")
DRAWN_DIGITS = 4  # of a number drawn from a range: enough to choose by, short enough to read
MAX_REPEATS = 100  # draws in a row that are all known already: there is nothing else to draw


@dataclass(frozen=True)
class ValueRange:
    """A range to draw from: whole numbers evenly, positive numbers by their logarithm."""

    low: float
    high: float
    whole: bool

    def list_ends(self) -> tuple[float | int, float | int]:
        """Return the lowest and the highest number."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def draw(self, generator: np.random.Generator) -> float | int:
        """Draw one number."""
        if self.whole:
            return int(generator.integers(int(self.low), int(self.high), endpoint=True))
        if self.low > 0:
            drawn = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = generator.uniform(self.low, self.high)
        return min(max(float(f"{drawn:.{DRAWN_DIGITS}g}"), self.low), self.high)


Values = tuple[Any, ...] | ValueRange


def parse_values(text: str, where: str) -> Values:
    """Parse ``0.005,0.01,0.05`` or the range ``0.001..0.1``; errors begin with ``where``."""
    if ends := RANGE_PATTERN.fullmatch(text):
        low, high = float(ends[1]), float(ends[2])
        if not low < high:
            raise ConfigError(f"{where}: a range goes from low to high, as in 0.001..0.1")
        return ValueRange(low, high, all(re.fullmatch(r"[-+]?\d+", end) for end in ends.groups()))
    try:
        values = tomllib.loads(f"v = [{text}]")["v"]
    except tomllib.TOMLDecodeError:  # bare words
        values = [parse_toml_value(part.strip()) for part in text.split(",")]
    return check_values(values, where)


def check_values(values: Iterable[Any], where: str) -> tuple[Any, ...]:
    """Drop repeated values; refuse none at all."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    if not distinct or "" in distinct:
        raise ConfigError(f"{where}: must list values, as in local.lr=0.005,0.01,0.05")
    return tuple(distinct)


def combine(swept: Mapping[str, Values], draws: int | None, seed: int) -> list[Combination]:
    """Combine the values: all with all, or ``draws`` times at random.

    More draws with the same seed begin with the same combinations, so a sweep can be extended.
    """
    if draws is None:
        for key, values in swept.items():
            if isinstance(values, ValueRange):
                raise ConfigError(f"{key}: a range needs random draws: --random N, or random=N")
        lists: Sequence[Any] = list(swept.values())
        return [dict(zip(swept, values, strict=True)) for values in product(*lists)]
    generator, repeats = make_generator(seed, "sweep", sorted(swept)), 0
    drawn: list[Combination] = []
    while len(drawn) < draws and repeats < MAX_REPEATS:
        one = {key: draw_value(swept[key], generator) for key in sorted(swept)}
        one = {key: one[key] for key in swept}
        repeats = repeats + 1 if one in drawn else 0
        drawn += [] if repeats else [one]
    return drawn


def draw_value(values: Values, generator: np.random.Generator) -> Any:
    if isinstance(values, ValueRange):
        return values.draw(generator)
    return values[int(generator.integers(len(values)))]


def is_training_key(key: str) -> bool:
    """Tell whether a key is of the section [local], as ``local.lr``: an algorithm is called local, too."""
    section, _, setting = key.strip().partition(".")
    return section == "local" and setting in [f.name for f in list_settings(Training)]


VALIDATION_KEY, VALIDATION_FRACTION = "data.validation_fraction", 0.2
MAX_LABEL = 80  # letters of a folder's name


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    values: Combination
    config: Config


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep by label, and the keys that they vary."""

    keys: tuple[str, ...]
    runs: dict[str, SweepRun]


def build_sweep(
    file: Path | None,
    overrides: Sequence[str],
    swept: Sequence[str],
    seeds: Sequence[int] | None = None,
    draws: int | None = None,
    note: Callable[[str], None] = ignore_note,
) -> Sweep:
    """Build the configuration of every run: all combinations of the swept values, or random draws.

    Validation examples are held out unless the configuration says otherwise. The configuration is the
    user's own: an algorithm from outside is imported.
    """
    raw = read_toml(file)[1]
    both = expand_overrides(raw, [*overrides, *swept], note=note, trust=True)
    overrides, pairs = both[: len(overrides)], both[len(overrides) :]
    values = parse_swept(pairs)
    if holds_out_nothing(raw, overrides, values):
        overrides = [f"{VALIDATION_KEY}={VALIDATION_FRACTION}", *overrides]
        note(
            f"{VALIDATION_FRACTION:.0%} of every client's training examples are held out to choose by"
        )
    base = read_config(file, overrides, trust=True)
    runs = {}
    for one in combine(values, draws, base.top.seed):
        own = [f"{key}={format_value(value)}" for key, value in one.items()]
        for seed in [base.top.seed] if seeds is None else seeds:
            config = read_config(file, [*overrides, *own, f"seed={seed}"], trust=True)
            runs[f"{make_label(one)}-{seed}"] = SweepRun(one, config)
    return Sweep(tuple(values), runs)


def parse_swept(pairs: Sequence[str]) -> dict[str, Values]:
    """Parse ``key=values`` pairs; a key may be given once."""
    swept: dict[str, Values] = {}
    for pair in pairs:
        key, sign, text = (part.strip() for part in pair.partition("="))
        if not sign or not key:
            raise ConfigError(f"-s {pair}: must be key=values, as in local.lr=0.005,0.01,0.05")
        if key == "seed":
            raise ConfigError(f"-s {pair}: give seeds by --seeds; they are averaged over")
        if key in swept:
            raise ConfigError(f"-s {pair}: {key} is there twice; list its values once")
        swept[key] = parse_values(text, f"-s {pair}")
    if not swept:
        raise ConfigError("-s: missing; say what to vary, as in -s local.lr=0.005,0.01,0.05")
    return swept


def holds_out_nothing(
    raw: Mapping[str, Any], overrides: Sequence[str], swept: Mapping[str, Values]
) -> bool:
    """Tell whether nobody said how many validation examples there are."""
    unset = find_choice(raw, overrides, VALIDATION_KEY, "") == ""
    # a partition from a file may list validation examples itself
    from_file = find_choice(raw, overrides, "data.partition.kind", "") == "file"
    return unset and not from_file and VALIDATION_KEY not in swept


def make_label(values: Combination) -> str:
    """Make a folder's name of a combination, as in ``lr=0.01_mu=0.1``."""
    short = shorten_keys(values)
    text = "_".join(
        f"{short[k]}={v if isinstance(v, str) else format_value(v)}" for k, v in values.items()
    )
    plain = re.sub(r"[^\w.=+-]+", "-", text)[:MAX_LABEL]
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"


# Folders ----------------------------------------------------------------------------------------


def prepare_sweep(sweep: Sweep, parent: Path) -> None:
    """Write the folder of every run, and ``sweep.json``, before any run begins."""
    prepare_run_folders(parent, {label: run.config for label, run in sweep.runs.items()})
    runs = {
        label: {"settings": run.values, "seed": run.config.top.seed}
        for label, run in sweep.runs.items()
    }
    failed = read_sweep_file(parent)["failed"] if (parent / SWEEP_FILE).exists() else {}
    write_sweep_file(parent, {"settings": list(sweep.keys), "runs": runs, "failed": failed})


def write_sweep_file(parent: Path, content: Mapping[str, Any]) -> None:
    write_json(parent / SWEEP_FILE, content)


def list_due_runs(parent: Path) -> list[RunFolder]:
    """List the runs of a sweep that are neither finished, nor stopped early, nor known to diverge."""
    content = read_sweep_file(parent)
    folders = [
        RunFolder(parent / name) for name in content["runs"] if name not in content["failed"]
    ]
    for folder in folders:
        if not folder.config_file.exists():
            raise FolderError(f"{folder.path} is gone; run the same sweep again to make it")
    left = [f for f in folders if read_stop(f.path) is None]
    return [f for f in left if not is_finished(list(f.iterate_events()))]


def run_due_sweep(
    parent: Path,
    due: Sequence[RunFolder],
    progress: RunsProgress,
    workers: int | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] = ignore_note,
    trust: bool = False,
) -> None:
    """Run what is left of a sweep; ``overrides`` may change the section [engine].

    With ``trust``, an algorithm from outside is imported.

    Runs are side by side, one core each. With the serial engine, or if one run is left, they are one
    after the other.
    """
    if not due:
        return
    configs = {f.path: read_begun_config(f.config_file, overrides, trust) for f in due}
    runs = {path: (path.name, config.top.rounds) for path, config in configs.items()}
    engine = next(iter(configs.values())).engine
    if len(due) > 1 and engine.name == "ray":
        failed = run_on_cluster(runs, engine, workers, progress, overrides, warn)
    elif len(due) > 1 and engine.name == "pool":
        width = count_width(engine, workers)
        failed = run_side_by_side(runs, width, progress, overrides, warn)
    else:
        failed = {}
        for folder in due:
            try:
                resume_tasks(load_tasks([folder], overrides, trust), progress, workers, warn=warn)
            except DivergedError as error:
                failed[folder.path] = str(error)
    content = read_sweep_file(parent)
    content["failed"] |= {path.name: reason for path, reason in failed.items()}
    write_sweep_file(parent, content)


def count_width(engine: EngineSection, workers: int | None) -> int:
    """Count the runs at a time: one per core, or a few on each GPU."""
    if workers := workers or engine.workers:
        return workers
    compute = engine.choose_compute()
    return count_cores() if compute.is_cpu else count_gpu_workers(compute)
