"""Sweeps: the same experiment with many settings, a run folder each, chosen by validation examples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.config import Config
from ..config.reading import read_config, read_toml
from ..config.sections import EngineSection
from ..config.short_keys import expand_overrides, find_choice, ignore_note
from ..core.errors import ConfigError, DivergedError, FolderError
from ..core.files import write_json
from ..engines.base import count_cores, count_gpu_workers
from ..runs.early_stops import read_stop
from ..runs.store import RunFolder
from ..runs.sweep_table import SWEEP_FILE, read_sweep_file
from .compare import prepare_run_folders
from .execute import is_finished
from .progress import RunsProgress
from .swept_settings import Combination, Values, combine, format_value, parse_values, shorten_keys
from .tasks import (
    load_tasks,
    read_begun_config,
    resume_tasks,
    run_on_cluster,
    run_side_by_side,
)

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
