"""``hp.tune``: search the settings of algorithms from Python, with equal budgets."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from ..algorithms import find_algorithm_name, shorten_name
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError
from ..core.training import Training
from ..data.federation import Federation
from ..engines.base import count_cores
from ..engines.child_processes import end_if_script_is_imported
from ..runs.early_stops import EarlyStop
from ..runs.tune_table import TuneTable, read_tune
from .member_runs import BeginMember, Member, begin_member, run_members, run_members_in_parallel
from .progress import EventListener, show_progress
from .run import run
from .samplers import SAMPLERS, SamplerName
from .search import Search, Trial, run_search
from .sweep_library import MemberMaker
from .swept_settings import Combination, Values, is_training_key

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
