"""``hp.sweep``, and sweeps on the command line: one algorithm with many settings."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from ..config.keys import expand_overrides, find_choice, ignore_note, rename_key
from ..config.reading import read_config, read_toml
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list
from ..core.settings import construct, list_settings
from ..core.temporary import create_temporary_folder, remove_temporary_folder
from ..core.training import Training
from ..data.federation import Federation
from ..engines.child_processes import exit_if_script_is_imported
from ..results.search_tables import SweepTable, format_value, read_sweep
from . import search
from .hooks import Hook, RunsProgress, show_progress
from .many import RunOptions
from .run import SPEC_KEYWORDS, AlgorithmLike, choose_algorithm, make_spec, run
from .spec import RunSpec

T = TypeVar("T")
VALIDATION_KEY, VALIDATION_FRACTION = "data.validation_fraction", 0.2


def sweep(
    algorithm: AlgorithmLike,
    federation: Federation,
    settings: Mapping[str, Sequence[Any] | str],
    *,
    random: int | None = None,
    **how: Any,
) -> SweepTable:
    """Run every combination of these settings, and sort them by validation accuracy.

    The best settings are chosen only if the federation has validation examples:
    ``hp.federate(…, validation_fraction=0.2)``.

    Args:
        algorithm: As for ``hp.run``.
        federation: As for ``hp.run``.
        settings: Values by setting: of the algorithm (``mu``), of ``Training`` (``lr``), or a keyword
            of ``hp.run`` (``rounds``). Values are a list, or a text as on the command line:
            ``"0.01,0.1"`` or, with ``random`` draws, a range such as ``"0.001..0.1"``.
        random: Number of random combinations to try, instead of all.
        **how: ``seeds``, over which results are averaged (default: (0,)); ``by``, the accuracy that
            decides ("P" or "G"); and keywords of ``hp.run`` and settings of the algorithm for all
            runs. The engine "pool" executes the runs in parallel, one per core; "serial", the
            default, one by one. With ``out``, the same call continues an interrupted sweep.
    """
    options, how = SearchOptions.split_off(how)
    prepare_search(options.engine)
    maker = CallSpecMaker.from_call(algorithm, federation, how)
    combinations = search.list_combinations(
        maker.parse_settings(settings), random, min(options.seeds, default=0)
    )
    if not federation.validates:
        warnings.warn(
            "hp.sweep: nothing is chosen on test data; to choose the best settings, use"
            " hp.federate(…, validation_fraction=0.2)",
            stacklevel=2,
        )

    def make(_: str, values: search.Combination, seed: int) -> RunSpec:
        return maker.make_spec(values, seed, options.engine)

    with open_study_folder(options.out) as (parent, temporary):
        runs = search.create_sweep(parent, combinations, options.seeds, make)
        with show_progress(options.progress) as shown:
            search.run_sweep(parent, runs, options.make_run_options(shown))
        table = read_sweep(parent, options.by)
        temporary.bind(table)
    return table


@dataclass(frozen=True)
class StudyOptions:
    """Keywords of ``hp.compare``, ``hp.sweep`` and ``hp.tune`` that apply to all runs together."""

    seeds: Sequence[int] = (0,)
    engine: str = "serial"
    workers: int | None = None
    out: str | Path | None = None
    on_event: Hook = lambda event: None
    progress: bool = True

    @classmethod
    def split_off(cls, how: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split the keywords of a call into these options and all others."""
        if "seed" in how:
            raise ConfigError(f"seed: write seeds=({how['seed']!r},)")
        names = [f.name for f in fields(cls)]
        own = {k: v for k, v in how.items() if k in names}
        return cls(**own), {k: v for k, v in how.items() if k not in names}

    def make_run_options(self, progress: RunsProgress, side_by_side: bool = True) -> RunOptions:
        """Return the options with which ``run_many`` executes the runs."""
        return RunOptions(progress, self.workers, side_by_side, on_event=self.on_event)


@dataclass(frozen=True)
class SearchOptions(StudyOptions):
    """Keywords that ``hp.sweep`` and ``hp.tune`` share."""

    by: Literal["P", "G"] = "P"


def list_keywords(options: type[StudyOptions]) -> list[str]:
    """List the keywords of ``hp.compare`` or of a search; ``seeds`` replaces the ``seed`` of ``hp.run``."""
    return [*(k for k in SPEC_KEYWORDS if k != "seed"), *(f.name for f in fields(options))]


def prepare_search(engine: str) -> None:
    """Raise ConfigError if a sweep or tune from Python cannot use the engine."""
    if engine == "pool":
        exit_if_script_is_imported()
    if engine not in ("serial", "pool"):
        raise ConfigError(f"engine: must be one of serial, pool, not {engine!r}")


@dataclass
class StudyFolderCleanup:
    """Deletes the temporary folder of a study together with the study's result."""

    path: Path | None  # None: the user named the folder, which is kept

    def bind(self, owner: object) -> None:
        """Delete the temporary folder when ``owner`` is garbage-collected."""
        if self.path is not None:
            weakref.finalize(owner, remove_temporary_folder, self.path)


@contextmanager
def open_study_folder(out: str | Path | None) -> Iterator[tuple[Path, StudyFolderCleanup]]:
    """Open the folder of a study's runs; without ``out``, a temporary one that is deleted on an error."""
    temporary = StudyFolderCleanup(None if out is not None else create_temporary_folder())
    try:
        yield temporary.path or Path(str(out)), temporary
    except BaseException:
        if temporary.path is not None:
            remove_temporary_folder(temporary.path)
        raise


# Runs of a Python program -----------------------------------------------------------------------


@dataclass(frozen=True)
class CallSpecMaker:
    """Makes the runs of ``hp.sweep`` or ``hp.tune``, which differ in some settings."""

    base: Algorithm
    name: str
    federation: Federation
    training: Training
    how: Mapping[str, Any]  # keywords of ``hp.run`` that all runs share

    @classmethod
    def from_call(
        cls, algorithm: AlgorithmLike, federation: Federation, how: Mapping[str, Any]
    ) -> CallSpecMaker:
        """Build the maker from a call's keywords: settings of the algorithm and keywords of ``hp.run``."""
        own = {k: v for k, v in how.items() if k not in SPEC_KEYWORDS}
        base, name = choose_algorithm(algorithm, own, list_keywords(SearchOptions))
        training = how.get("training") or Training()
        if not isinstance(training, Training):
            raise ConfigError("training: to vary settings, pass one hp.Training for all clients")
        return cls(base, name, federation, training, {k: how[k] for k in how if k not in own})

    @property
    def rounds(self) -> int:
        """The number of rounds, unless it is varied."""
        return int(self.how.get("rounds", signature(run).parameters["rounds"].default))

    def parse_settings(
        self, settings: Mapping[str, Sequence[Any] | str]
    ) -> dict[str, search.Values]:
        """Return the values of every varied setting, by its full key."""
        swept: dict[str, search.Values] = {}
        for key, values in settings.items():
            where = f"settings[{key!r}]"
            if isinstance(values, str):
                found = search.parse_values(values, where)
            elif isinstance(values, Iterable):
                found = search.check_setting_values(values, where)
            else:
                raise ConfigError(f"{where}: must be a list, as in [0.01, 0.1], not {values!r}")
            swept[self.find_setting_key(key)] = found
        if not swept:
            raise ConfigError("settings: must name what to vary, as in {'lr': [0.01, 0.1]}")
        return swept

    def find_setting_key(self, key: str) -> str:
        """Return a varied setting's full key: ``training.…``, ``algorithm.…`` or a keyword of ``hp.run``."""
        keywords = [k for k in SPEC_KEYWORDS if k not in ("seed", "training", "engine", "workers")]
        if key in keywords:
            return key
        known = [f"training.{f.name}" for f in list_settings(Training)]
        known += [f"algorithm.{f.name}" for f in list_settings(type(self.base))]
        found = [k for k in known if rename_key(key) in (k, k.rpartition(".")[2])]
        if len(found) > 1:
            raise ConfigError(f"{key}: can be {' or '.join(found)}; write one of them")
        if not found:
            short = [k.rpartition(".")[2] for k in known]
            raise ConfigError(f"{key}: cannot be varied{suggest_or_list(key, [*short, *keywords])}")
        return found[0]

    def make_spec(self, values: search.Combination, seed: int, engine: str = "serial") -> RunSpec:
        """Make the run with these values of the varied settings."""
        parts: dict[str, dict[str, Any]] = {"algorithm": {}, "training": {}, "": {}}
        for key, value in values.items():
            section, _, setting = key.rpartition(".")
            parts[section][setting] = value
        algorithm = change_settings(self.base, parts["algorithm"], "algorithm")
        changed = self.training.list_changed(parts["training"])
        training = construct(Training, changed, "training")
        how = {**self.how, **parts[""], "training": training, "seed": seed, "engine": engine}
        spec = make_spec(algorithm, self.federation, how, {})
        return replace(spec, config=replace(spec.config, algorithm_name=self.name))


def change_settings(instance: T, values: Mapping[str, Any], where: str) -> T:
    """Return a copy of an algorithm or ``Training`` with changed settings; errors start with ``where``."""
    before = {f.name: getattr(instance, f.name) for f in list_settings(type(instance))}
    return construct(type(instance), {**before, **values}, where)


# Runs of the command line -----------------------------------------------------------------------


@dataclass(frozen=True)
class PairsSpecMaker:
    """Makes the runs of a sweep or tune on the command line, from a file and ``key=value`` pairs."""

    file: Path | None
    overrides: Sequence[str]
    # names of the algorithms, by label; empty: the algorithm of the pairs or the file
    names: Mapping[str, str]
    trust: bool = False  # import algorithms of other packages

    def make_spec(
        self,
        label: str,
        settings: search.Combination,
        seed: int,
        note: Callable[[str], None] = ignore_note,
    ) -> RunSpec:
        """Make the run with these settings; ``note`` receives the notes of ``read_config``."""
        own = [f"{key}={format_value(value)}" for key, value in settings.items()]
        name = [f'algorithm.name="{self.names[label]}"'] if label in self.names else []
        pairs = [*self.overrides, *name, *own, f"seed={seed}"]
        return RunSpec(read_config(self.file, pairs, note, self.trust))


@dataclass(frozen=True)
class Sweep:
    """A sweep on the command line: combinations of settings, seeds, and the maker of the runs."""

    combinations: list[search.Combination]
    seeds: Sequence[int]
    maker: PairsSpecMaker

    def list_specs(self) -> list[RunSpec]:
        """Make every run of the sweep; raise ConfigError if a value is wrong."""
        return [self.maker.make_spec("", c, seed) for c in self.combinations for seed in self.seeds]


def build_sweep(
    file: Path | None,
    overrides: Sequence[str],
    swept: Sequence[str],
    seeds: Sequence[int] | None = None,
    draws: int | None = None,
    note: Callable[[str], None] = ignore_note,
) -> Sweep:
    """Build a sweep on the command line: all combinations of the values, or ``draws`` random ones.

    Validation examples are held out unless the configuration sets their fraction. Algorithms of other
    packages are imported, because the user wrote the configuration.
    """
    raw = read_toml(file)[1]
    both = expand_overrides(raw, [*overrides, *swept], note=note, trust=True)
    overrides, pairs = both[: len(overrides)], both[len(overrides) :]
    values = parse_swept(pairs)
    if VALIDATION_KEY not in values:
        overrides = hold_out_examples(raw, overrides, note)
    base = read_config(file, overrides, trust=True)
    chosen = [base.top.seed] if seeds is None else seeds
    sweep = Sweep(
        search.list_combinations(values, draws, base.top.seed),
        chosen,
        PairsSpecMaker(file, overrides, {}, trust=True),
    )
    sweep.list_specs()  # raises if a value is wrong
    sweep.maker.make_spec("", sweep.combinations[0], chosen[0], note)
    return sweep


def parse_swept(pairs: Sequence[str]) -> dict[str, search.Values]:
    """Parse the ``key=values`` pairs of a sweep; raise ConfigError if a key is given twice."""
    swept: dict[str, search.Values] = {}
    for pair in pairs:
        key, sign, text = (part.strip() for part in pair.partition("="))
        if not sign or not key:
            raise ConfigError(f"-s {pair}: must be key=values, as in training.lr=0.005,0.01,0.05")
        if key == "seed":
            raise ConfigError(f"-s {pair}: set seeds with --seeds; results are averaged over them")
        if key in swept:
            raise ConfigError(f"-s {pair}: {key} is given twice; list all its values in one -s")
        swept[key] = search.parse_values(text, f"-s {pair}")
    if not swept:
        raise ConfigError("-s: missing; name what to vary, as in -s training.lr=0.005,0.01,0.05")
    return swept


def hold_out_examples(
    raw: Mapping[str, Any], overrides: Sequence[str], note: Callable[[str], None]
) -> list[str]:
    """Return the overrides of a search, with validation examples held out unless the user sets that."""
    chosen = find_choice(raw, overrides, VALIDATION_KEY, "")
    # a partition from a file may list validation examples itself
    if chosen or find_choice(raw, overrides, "data.partition.kind", "") == "file":
        return list(overrides)
    note(
        f"{VALIDATION_FRACTION:.0%} of every client's training examples are held out to choose settings"
    )
    return [f"{VALIDATION_KEY}={VALIDATION_FRACTION}", *overrides]
