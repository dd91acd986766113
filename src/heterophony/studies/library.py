"""``sweep``: try many settings of a run from Python, in a folder that the same call continues."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..algorithms import find_algorithm_name, shorten_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list
from ..core.settings import construct, list_settings
from ..core.training import Training
from ..data.federation import Federation
from ..engines.base import count_cores
from ..engines.child_processes import end_if_script_is_imported
from ..results.search_tables import (
    SWEEP_FILE,
    SweepTable,
    TuneTable,
    read_sweep,
    read_sweep_file,
    read_tune,
)
from ..runs.early_stops import EarlyStop
from ..runs.run_index import EVENTS_FILE, read_events
from .execute import is_finished
from .member_runs import BeginMember, Member, begin_member, run_members, run_members_in_parallel
from .progress import EventListener, show_progress
from .run import choose_algorithm, run
from .search import SAMPLERS, SamplerName, Search, Trial, run_search
from .sweep import (
    Combination,
    Values,
    check_values,
    combine,
    is_training_key,
    make_label,
    parse_values,
    write_sweep_file,
)

T = TypeVar("T")
RESERVED = ("algorithm", "federation", "seed", "training", "out", "resume", "settings")
SHARED = ("on_event", "progress")  # of all runs together


def sweep(
    algorithm: str | Algorithm | type[Algorithm],
    federation: Federation,
    settings: Mapping[str, Sequence[Any] | str],
    *,
    random: int | None = None,
    seeds: Sequence[int] = (0,),
    by: Literal["P", "G"] = "P",
    training: Training | None = None,
    engine: Literal["serial", "pool"] = "serial",
    workers: int | None = None,
    out: str | Path | None = None,
    on_event: EventListener = lambda event: None,
    progress: bool = True,
    **how: Any,
) -> SweepTable:
    """Run every combination of these settings, and sort them by validation accuracy.

    ``settings`` maps what to vary to its values: settings of the algorithm (``mu``), of ``Training``
    (``lr``) or keywords of ``run`` (``rounds``). Values are a list, or a text as on the command line:
    ``"0.01,0.1"``, and with ``random`` draws also a range, ``"0.001..0.1"``. Everything else is given
    as to ``run``.

    The engine "pool" runs them side by side, one core each; "serial" one after the other. With ``out``,
    the same call continues what was interrupted. To have the best settings chosen, the federation needs
    validation examples, as in ``hp.federate(…, validation_fraction=0.2)``.
    """
    if engine == "pool":
        end_if_script_is_imported()
    members = build_members(algorithm, settings, random, seeds, training or Training(), how)
    if engine not in ("serial", "pool"):
        raise ConfigError(f"engine: must be one of serial, pool, not {engine!r}")
    if not federation.validates:
        warnings.warn(
            "hp.sweep: nothing is chosen on test data; to have the best settings chosen, use"
            " hp.federate(…, validation_fraction=0.2)",
            stacklevel=2,
        )
    temporary = None if out is not None else tempfile.mkdtemp(prefix="heterophony-")
    parent = Path(temporary or str(out))
    record_members(parent, members)
    due = {parent / label: m for label, m in members.items() if is_due(parent, label)}
    with show_progress(progress) as shown:
        begin = partial(begin_member, shown, on_event)
        if engine == "pool" and len(due) > 1:
            failed = run_members_in_parallel(federation, due, workers or count_cores(), begin)
        else:
            failed = run_members(federation, due, begin)
    content = read_sweep_file(parent)
    content["failed"] |= {path.name: reason for path, reason in failed.items()}
    write_sweep_file(parent, content)
    table = read_sweep(parent, by)
    if temporary is not None:
        weakref.finalize(table, shutil.rmtree, temporary, ignore_errors=True)
    return table


# What is varied ---------------------------------------------------------------------------------


def build_members(
    algorithm: str | Algorithm | type[Algorithm],
    settings: Mapping[str, Sequence[Any] | str],
    draws: int | None,
    seeds: Sequence[int],
    training: Training,
    how: Mapping[str, Any],
) -> dict[str, Member]:
    """Build the arguments of every run by label; raise before any begins."""
    maker = MemberMaker.create(algorithm, training, how)
    swept = maker.parse(settings)
    members: dict[str, Member] = {}
    for values in combine(swept, draws, min(seeds, default=0)):
        members |= maker.make(values, seeds)
    if not members:
        raise ConfigError("seeds: must list at least one seed, as in (0, 1, 2)")
    return members


@dataclass(frozen=True)
class MemberMaker:
    """Makes the arguments of runs that differ in some settings."""

    base: Algorithm
    training: Training
    rest: Mapping[str, Any]  # keywords of ``run`` that all runs have
    keywords: Sequence[str]

    @classmethod
    def create(
        cls,
        algorithm: str | Algorithm | type[Algorithm],
        training: Training,
        how: Mapping[str, Any],
    ) -> MemberMaker:
        """Split what a search is called with: settings of the algorithm, keywords of ``run``."""
        keywords = [k for k in signature(run).parameters if k not in RESERVED + SHARED]
        own = {k: v for k, v in how.items() if k not in keywords}
        base = choose_algorithm(algorithm, own, keywords)[0]
        rest = {k: v for k, v in how.items() if k in keywords}
        return cls(base, training, rest, keywords)

    def parse(self, settings: Mapping[str, Sequence[Any] | str]) -> dict[str, Values]:
        """Return the values of every setting, by its full key."""
        return parse_settings(settings, type(self.base), self.keywords)

    def make(self, values: Combination, seeds: Sequence[int]) -> dict[str, Member]:
        """Make a run for each seed, by label."""
        parts: dict[str, dict[str, Any]] = {"algorithm": {}, "local": {}, "": {}}
        for key, value in values.items():
            section, _, setting = key.rpartition(".")
            parts[section][setting] = value
        chosen = change_settings(self.base, parts["algorithm"], "algorithm")
        trained = construct(Training, self.training.list_changed(parts["local"]), "local")
        plain = {k: to_plain(v) for k, v in values.items()}
        members = {}
        for seed in seeds:
            told = {**self.rest, **parts[""], "training": trained, "seed": seed}
            members[f"{make_label(plain)}-{seed}"] = Member(plain, chosen, told)
        return members


def parse_settings(
    settings: Mapping[str, Sequence[Any] | str], cls: type[Algorithm], keywords: Sequence[str]
) -> dict[str, Values]:
    """Return the values of every setting, by its full key."""
    swept: dict[str, Values] = {}
    for key, values in settings.items():
        where = f"settings[{key!r}]"
        if isinstance(values, str):
            found = parse_values(values, where)
        elif isinstance(values, Iterable):
            found = check_values(values, where)
        else:
            raise ConfigError(f"{where}: must be a list, as in [0.01, 0.1], not {values!r}")
        swept[find_key(key, cls, keywords)] = found
    if not swept:
        raise ConfigError("settings: must say what to vary, as in {'lr': [0.01, 0.1]}")
    return swept


def change_settings(instance: T, values: Mapping[str, Any], where: str) -> T:
    """Return a copy with other settings; an error begins with ``where``."""
    before = {f.name: getattr(instance, f.name) for f in list_settings(type(instance))}
    return construct(type(instance), {**before, **values}, where)


def find_key(key: str, cls: type[Algorithm], keywords: Sequence[str]) -> str:
    """Return the full key: a keyword of ``run``, ``local.…`` for ``Training``, or ``algorithm.…``."""
    if key in keywords:
        return key
    known = [f"local.{f.name}" for f in list_settings(Training)]
    known += [f"algorithm.{f.name}" for f in list_settings(cls)]
    found = [k for k in known if key in (k, k.rpartition(".")[2])]
    if len(found) > 1:
        raise ConfigError(f"{key}: can be {' or '.join(found)}; write one of them")
    if not found:
        short = [k.rpartition(".")[2] for k in known]
        raise ConfigError(f"{key}: cannot be varied{suggest_or_list(key, [*short, *keywords])}")
    return found[0]


# Runs -------------------------------------------------------------------------------------------


def record_members(parent: Path, members: Mapping[str, Member]) -> None:
    """Write ``sweep.json``, with what is known of runs that diverged before."""
    runs = {label: {"settings": m.values, "seed": m.how["seed"]} for label, m in members.items()}
    parent.mkdir(parents=True, exist_ok=True)
    failed = read_sweep_file(parent)["failed"] if (parent / SWEEP_FILE).exists() else {}
    keys = list(next(iter(members.values())).values)
    write_sweep_file(parent, {"settings": keys, "runs": runs, "failed": failed})


def to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it; a model or a rule by its name."""
    if isinstance(value, bool | int | float | str | list | dict) or value is None:
        return value
    return getattr(value, "__name__", None) or repr(value)


def is_due(parent: Path, label: str) -> bool:
    known_to_fail = label in read_sweep_file(parent)["failed"]
    return not known_to_fail and not is_finished(list(read_events(parent / label / EVENTS_FILE)))


AlgorithmLike = str | Algorithm | type[Algorithm]


def tune(
    algorithms: AlgorithmLike | Sequence[AlgorithmLike],
    federation: Federation,
    settings: Mapping[str, Sequence[Any] | str],
    *,
    trials: int = 20,
    sampler: SamplerName = "tpe",
    seeds: Sequence[int] = (0,),
    by: Literal["P", "G"] = "P",
    stop_early: bool = True,
    training: Training | None = None,
    engine: Literal["serial", "pool"] = "serial",
    workers: int | None = None,
    out: str | Path | None = None,
    on_event: EventListener = lambda event: None,
    progress: bool = True,
    **how: Any,
) -> TuneTable:
    """Give every algorithm the same number of trials; choose its settings on validation examples.

    ``settings`` maps what to search to values, as for ``hp.sweep``: a list, or a text such as
    ``"0.001..0.1"``. A key such as ``"fedprox.mu"`` is for one algorithm. Everything else is given as
    to ``run``. The federation needs validation examples: ``hp.federate(…, validation_fraction=0.2)``.

    The sampler "tpe" is Optuna's and needs ``heterophony[tune]``; "random" and "grid" do not. With
    ``out``, the same call continues what was interrupted, and ends with the same choice.
    """
    if engine == "pool":
        end_if_script_is_imported()
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler: must be one of {', '.join(SAMPLERS)}, not {sampler!r}")
    if engine not in ("serial", "pool"):
        raise ConfigError(f"engine: must be one of serial, pool, not {engine!r}")
    if not federation.validates:
        raise ConfigError(
            "hp.tune: settings are never chosen on test data; use"
            " hp.federate(…, validation_fraction=0.2)"
        )
    chosen = [algorithms] if isinstance(algorithms, str | Algorithm | type) else list(algorithms)
    makers = {name_algorithm(a): MemberMaker.create(a, training or Training(), how) for a in chosen}
    rounds = int(how.get("rounds", signature(run).parameters["rounds"].default))
    spaces = {label: parse_own_settings(m, settings, label, makers) for label, m in makers.items()}
    search = Search(spaces, trials, seeds, rounds, sampler, by, stop_early)
    temporary = None if out is not None else tempfile.mkdtemp(prefix="heterophony-")
    parent = Path(temporary or str(out))
    width = (workers or count_cores()) if engine == "pool" else 1
    with show_progress(progress) as shown:
        begin = partial(begin_member, shown, on_event)
        run_search(search, parent, MemberRunner(federation, makers, by, width, begin))
    table = read_tune(parent, makers, by)
    if temporary is not None:
        weakref.finalize(table, shutil.rmtree, temporary, ignore_errors=True)
    return table


def name_algorithm(algorithm: AlgorithmLike) -> str:
    """Name the folder of an algorithm."""
    if isinstance(algorithm, str):
        return shorten_name(find_algorithm_name(algorithm))
    cls = algorithm if isinstance(algorithm, type) else type(algorithm)
    return cls.__name__.lower()


def parse_own_settings(
    maker: MemberMaker,
    settings: Mapping[str, Sequence[Any] | str],
    label: str,
    labels: Mapping[str, object],
) -> dict[str, Values]:
    """Return what is searched for one algorithm: the settings of all, and its own."""
    own = {}
    for key, values in settings.items():
        first, dot, rest = key.partition(".")
        if not dot or first not in labels or is_training_key(key):
            own[key] = values
        elif first == label:
            own[f"algorithm.{rest}"] = values
    return maker.parse(own)


@dataclass(frozen=True)
class MemberRunner:
    """Runs the trials of a search on a federation of this Python session."""

    federation: Federation
    makers: Mapping[str, MemberMaker]
    by: Literal["P", "G"]
    width: int
    begin: BeginMember

    def prepare_trial(self, folder: Path, settings: Combination, seeds: Sequence[int]) -> list[str]:
        """Name a run for each seed; raise if the settings cannot be meant."""
        return list(self.makers[folder.name].make(settings, seeds))

    def run_trials(self, due: Mapping[Path, Trial]) -> dict[Path, str]:
        """Run these to their end, or to their early stop."""
        members: dict[Path, Member] = {}
        for path, trial in due.items():
            (member,) = self.makers[path.parent.name].make(trial.settings, [trial.seed]).values()
            members[path] = replace(member, stop=EarlyStop(self.by, trial.limits))
        if self.width > 1 and len(members) > 1:
            return run_members_in_parallel(self.federation, members, self.width, self.begin)
        return run_members(self.federation, members, self.begin)
