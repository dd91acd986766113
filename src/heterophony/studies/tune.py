"""``tune``: the same search for several algorithms, from configurations, chosen by validation examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..algorithms import find_algorithm_name, get_algorithm_class
from ..config.config import Config
from ..config.reading import read_config, read_toml
from ..config.short_keys import expand_overrides, ignore_note
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, FolderError
from ..core.files import read_json, write_atomically, write_json
from ..core.settings import list_settings
from ..results.search_tables import format_value
from ..runs.folder import RunFolder
from .member_runs import run_trials_on_cluster, run_trials_side_by_side
from .progress import RunsProgress
from .search import SAMPLERS, SamplerName, Search, Trial, list_grid
from .sweep import (
    VALIDATION_FRACTION,
    VALIDATION_KEY,
    Combination,
    Values,
    count_width,
    holds_out_nothing,
    is_training_key,
    make_label,
)
from .sweep import parse_swept as parse_values_of_keys
from .tasks import FederationCache, has_same_settings, label_algorithms, read_begun_config

TUNE_FILE, BASE_FILE = "tune.json", "base.toml"


@dataclass(frozen=True)
class TuneRequest:
    """What a tune was asked for; enough to continue it from its folder."""

    algorithms: list[str]
    settings: list[str]  # ``key=values`` pairs to search over
    overrides: list[str]  # ``key=value`` pairs that all runs have, without those of the engine
    seeds: list[int]
    trials: int | None = None
    sampler: SamplerName = "tpe"
    by: Literal["P", "G"] = "P"
    stop_early: bool = True
    keep: bool = False  # show all that was tried, and choose nothing


@dataclass(frozen=True)
class Tune:
    """A search, and the algorithms, file and settings that its configurations are made of."""

    request: TuneRequest
    search: Search
    names: Mapping[str, str]  # of the algorithms, by label
    file: Path | None
    overrides: Sequence[str]
    trust: bool = False  # import algorithms from outside

    def make_config(self, label: str, settings: Combination, seed: int) -> Config:
        """Make the configuration of one run."""
        own = [f"{key}={format_value(value)}" for key, value in settings.items()]
        name = f'algorithm.name="{self.names[label]}"'
        pairs = [*self.overrides, name, *own, f"seed={seed}"]
        return read_config(self.file, pairs, trust=self.trust)

    def make_first_config(self) -> Config:
        """Make a configuration that shows data and engine of all runs."""
        label, space = next(iter(self.search.spaces.items()))
        first = {k: v[0] if isinstance(v, tuple) else v.list_ends()[0] for k, v in space.items()}
        return self.make_config(label, first, self.search.seed)


def build_tune(
    request: TuneRequest,
    file: Path | None,
    engine: Sequence[str] = (),
    note: Callable[[str], None] = ignore_note,
    trust: bool = False,
) -> Tune:
    """Build the search that was asked for; raise before anything is written if it cannot run.

    With ``trust``, algorithms from outside are imported.
    """
    if request.sampler not in SAMPLERS:
        raise ConfigError(f"--sampler {request.sampler}: must be one of {', '.join(SAMPLERS)}")
    raw = read_toml(file)[1]
    algorithms = [find_algorithm_name(name) for name in request.algorithms]
    names = {label: name for name, label in label_algorithms(algorithms).items()}
    classes = {label: get_algorithm_class(name, trust) for label, name in names.items()}
    shared, own = split_settings(request.settings, names)
    overrides = expand_overrides(raw, [*request.overrides, *engine], algorithms, note, trust)
    pairs = expand_overrides(raw, shared, algorithms, note, trust)
    if holds_out_nothing(raw, overrides, {}):
        overrides = [f"{VALIDATION_KEY}={VALIDATION_FRACTION}", *overrides]
        note(
            f"{VALIDATION_FRACTION:.0%} of every client's training examples are held out to choose by"
        )
    spaces = {
        label: parse_space(cls, pairs, own.get(label, []), label) for label, cls in classes.items()
    }
    check_used(pairs, spaces)
    trials = count_trials(request, spaces)
    first = read_config(file, [*overrides, f'algorithm.name="{algorithms[0]}"'], trust=trust)
    if not first.data.validation_fraction and first.data.partition.get("kind") != "file":
        raise ConfigError(
            f"{VALIDATION_KEY}: must be above 0: settings are never chosen on test data"
        )
    search = Search(
        spaces=spaces,
        trials=trials,
        seeds=request.seeds,
        rounds=first.top.rounds,
        sampler=request.sampler,
        by=request.by,
        stop_early=request.stop_early and not request.keep,
    )
    tune = Tune(request, search, names, file, overrides, trust)
    check_configs(tune)
    return tune


def split_settings(
    pairs: Sequence[str], names: Mapping[str, str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Split pairs into those of all algorithms, and those of one, as in ``fedprox.mu=0.01,0.1``."""
    shared, own = list[str](), dict[str, list[str]]()
    for pair in pairs:
        first, dot, rest = pair.partition(".")
        is_own = dot and first.strip() in names and not is_training_key(pair.partition("=")[0])
        if is_own and "=" in rest:
            own.setdefault(first.strip(), []).append(f"algorithm.{rest}")
        else:
            shared.append(pair)
    return shared, own


def parse_space(
    cls: type[Algorithm], shared: Sequence[str], own: Sequence[str], label: str
) -> dict[str, Values]:
    """Return what is searched for one algorithm: settings that it does not have are left out."""
    known = [f"algorithm.{f.name}" for f in list_settings(cls)]
    for pair in own:
        if (key := pair.partition("=")[0].strip()) not in known:
            raise ConfigError(
                f"-s {label}{key.removeprefix('algorithm')}: {label} has no such setting"
            )
    mine = [p for p in shared if not is_foreign(p.partition("=")[0].strip(), known)]
    if not [*mine, *own]:
        raise ConfigError(f"{label}: -s names nothing that can be searched for it")
    return parse_values_of_keys([*mine, *own])


def is_foreign(key: str, known: Sequence[str]) -> bool:
    """Tell whether a key is a setting of another algorithm."""
    return key.startswith("algorithm.") and key != "algorithm.name" and key not in known


def check_used(pairs: Sequence[str], spaces: Mapping[str, Mapping[str, Values]]) -> None:
    """Refuse a setting that no algorithm has."""
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        if key == "algorithm.name":
            raise ConfigError(f"-s {pair}: name the algorithms before the options")
        if not any(key in space for space in spaces.values()):
            raise ConfigError(f"-s {pair}: none of these algorithms has this setting")


def count_trials(request: TuneRequest, spaces: Mapping[str, Mapping[str, Values]]) -> int:
    """Return the number of trials, which is the same for every algorithm unless nothing is chosen."""
    if request.sampler != "grid":
        return request.trials or 20
    sizes = {label: len(list_grid(space)) for label, space in spaces.items()}
    if request.trials is None and len(set(sizes.values())) > 1 and not request.keep:
        told = ", ".join(f"{label} {size}" for label, size in sizes.items())
        raise ConfigError(
            f"--sampler grid: the algorithms have different numbers of combinations ({told});"
            " give all the same number with --trials N, or choose nothing with --keep"
        )
    return request.trials or max(sizes.values())


def check_configs(tune: Tune) -> None:
    """Raise if a value is wrong: before the first trial, not after hours."""
    for label, space in tune.search.spaces.items():
        ends = {k: v if isinstance(v, tuple) else v.list_ends() for k, v in space.items()}
        first = {key: values[0] for key, values in ends.items()}
        for key, values in ends.items():
            for value in values:
                tune.make_config(label, {**first, key: value}, tune.search.seed)


# Folders ----------------------------------------------------------------------------------------


def write_request(parent: Path, request: TuneRequest, file: Path | None) -> None:
    """Write what was asked for; refuse a folder that holds something else."""
    path, content = parent / TUNE_FILE, asdict(request)
    text = "" if file is None else file.read_text(encoding="utf-8")
    if path.exists():
        before = asdict(read_request(parent))
        base = parent / BASE_FILE
        same_file = (base.read_text(encoding="utf-8") if base.exists() else "") == text
        more_trials = (before.get("trials") or 0) <= (request.trials or 0)
        more_algorithms = set(before["algorithms"]) <= set(request.algorithms)
        may_grow = {"algorithms", "trials"} if more_trials else {"algorithms"}
        if not more_algorithms:
            known = " ".join(before["algorithms"])
            raise FolderError(
                f"{parent} holds a tune of {known}: name them too, or choose another --out"
            )
        changed = {k for k in content if content[k] != before[k]} - may_grow
        if changed or not same_file:
            raise FolderError(f"{parent} holds a tune with other settings; choose another --out")
    elif (parent / "config.toml").exists() or (parent / "compare.json").exists():
        raise FolderError(f"{parent} holds other runs; choose another --out")
    parent.mkdir(parents=True, exist_ok=True)
    if file is not None:
        write_atomically(parent / BASE_FILE, text.encode())
    write_json(path, content)


def read_request(parent: Path) -> TuneRequest:
    """Read what a tune was asked for."""
    path = parent / TUNE_FILE
    try:
        request = TuneRequest(**read_json(path))
        texts = [*request.algorithms, *request.settings, *request.overrides]
        right = all(isinstance(t, str) for t in texts) and all(
            type(s) is int for s in request.seeds
        )
    except TypeError:
        right = False
    if not right:
        raise FolderError(f"{path} is damaged: it does not say what to tune")
    return request


@dataclass(frozen=True)
class ConfigRunner:
    """Runs trials whose folders have configurations; side by side, in processes of their own."""

    tune: Tune
    progress: RunsProgress
    workers: int | None = None
    engine: Sequence[str] = ()  # ``engine.…`` pairs of the command
    federations: FederationCache = field(default_factory=FederationCache)

    def prepare_trial(self, folder: Path, settings: Combination, seeds: Sequence[int]) -> list[str]:
        """Write the configuration of each seed to its run folder."""
        names = []
        for seed in seeds:
            config = self.tune.make_config(folder.name, settings, seed)
            federation = self.federations.get(config)
            config.build_plan(federation)  # raises if the model does not fit the data
            text = config.fill_model_defaults(federation).to_toml()
            run = RunFolder(folder / f"{make_label(settings)}-{seed}")
            if not run.config_file.exists():
                run.create(text)
                run.close()
            elif not has_same_settings(run.read_config_text(), text):
                raise FolderError(f"{run.path} holds a run with other settings")
            names.append(run.path.name)
        return names

    def run_trials(self, due: Mapping[Path, Trial]) -> dict[Path, str]:
        """Run these to their end, or to their early stop."""
        configs = {
            p: read_begun_config(p / "config.toml", self.engine, self.tune.trust) for p in due
        }
        runs = {p: (f"{p.parent.name} {p.name}", c.top.rounds) for p, c in configs.items()}
        engine, by = next(iter(configs.values())).engine, self.tune.search.by
        limits = {path: trial.limits for path, trial in due.items()}
        if engine.name == "ray":
            return run_trials_on_cluster(
                runs, limits, by, engine, self.workers, self.progress, self.engine
            )
        width = 1 if engine.name == "serial" else count_width(engine, self.workers)
        return run_trials_side_by_side(runs, limits, by, width, self.progress, self.engine)


def write_chosen(tune: Tune, parent: Path, chosen: Mapping[str, dict[str, Any] | None]) -> None:
    """Write a configuration for each algorithm with its chosen settings, to train on all examples."""
    for label, settings in chosen.items():
        if settings is None:
            continue
        whole = {**settings, VALIDATION_KEY: 0.0}
        text = tune.make_config(label, whole, tune.search.seed).to_toml()
        (parent / "chosen").mkdir(exist_ok=True)
        write_atomically(parent / "chosen" / f"{label}.toml", text.encode())
