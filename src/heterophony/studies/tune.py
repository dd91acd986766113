"""``hp.tune``, and tuning on the command line: the same search for several algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..algorithms import find_algorithm_name, get_algorithm_class
from ..config.keys import expand_overrides, ignore_note, rename_pair
from ..config.reading import read_config, read_toml
from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, FolderError
from ..core.files import read_json, write_atomically, write_json
from ..core.settings import list_settings
from ..core.training import Training
from ..data.federation import Federation
from ..results.search_tables import TuneTable, read_tune
from . import sweep
from .compare import label_algorithms, name_algorithm
from .hooks import show_progress
from .run import AlgorithmLike
from .search import SAMPLERS, Combination, SamplerName, Search, Values, list_grid, run_search
from .spec import RunSpec

TUNE_FILE, BASE_FILE = "tune.json", "base.toml"


def tune(
    algorithms: AlgorithmLike | Sequence[AlgorithmLike],
    federation: Federation,
    settings: Mapping[str, Sequence[Any] | str],
    *,
    trials: int = 20,
    sampler: SamplerName = "tpe",
    stop_early: bool = True,
    **how: Any,
) -> TuneTable:
    """Give every algorithm the same number of trials; choose its settings on validation examples.

    Args:
        algorithms: One algorithm or several, each as for ``hp.run``.
        federation: The clients; they need validation examples, as from
            ``hp.federate(…, validation_fraction=0.2)``.
        settings: Values by setting, as for ``hp.sweep``: a list, or a text such as
            ``"0.001..0.1"``. A key such as ``"fedprox.mu"`` is for one algorithm.
        trials: Number of trials of each algorithm.
        sampler: "tpe", which is Optuna's and needs ``heterophony[tune]``; "random"; or "grid".
        stop_early: Abandon a trial whose validation score is below the median of earlier trials.
        **how: ``seeds`` and ``by``, as for ``hp.sweep``, and keywords of ``hp.run``. With ``out``, the
            same call continues an interrupted search, and makes the same choice.
    """
    options, how = sweep.SearchOptions.split_off(how)
    sweep.prepare_search(options.engine)
    if sampler not in SAMPLERS:
        raise ConfigError(f"sampler: must be one of {', '.join(SAMPLERS)}, not {sampler!r}")
    if not federation.validates:
        raise ConfigError(
            "hp.tune: settings are never chosen on test data; use"
            " hp.federate(…, validation_fraction=0.2)"
        )
    chosen = [algorithms] if isinstance(algorithms, str | Algorithm | type) else list(algorithms)
    makers = {name_algorithm(a): sweep.CallSpecMaker.from_call(a, federation, how) for a in chosen}

    def make(label: str, values: Combination, seed: int) -> RunSpec:
        return makers[label].make_spec(values, seed, options.engine)

    spaces = {label: parse_own_settings(m, settings, label, makers) for label, m in makers.items()}
    rounds = next(iter(makers.values())).rounds
    search = Search(spaces, make, trials, options.seeds, rounds, sampler, options.by, stop_early)
    with sweep.open_study_folder(options.out) as (parent, temporary):
        with show_progress(options.progress) as shown:
            run_search(search, parent, options.make_run_options(shown))
        table = read_tune(parent, makers, options.by)
        temporary.bind(table)
    return table


def parse_own_settings(
    maker: sweep.CallSpecMaker,
    settings: Mapping[str, Sequence[Any] | str],
    label: str,
    labels: Mapping[str, object],
) -> dict[str, Values]:
    """Return the search space of one algorithm: its own settings, and those given for all algorithms."""
    own = {}
    for key, values in settings.items():
        first, dot, rest = key.partition(".")
        if not dot or first not in labels or is_training_key(key):
            own[key] = values
        elif first == label:
            own[f"algorithm.{rest}"] = values
    return maker.parse_settings(own)


def is_training_key(key: str) -> bool:
    """Return True for ``local.lr``, an old name of ``training.lr``, not a setting of the algorithm Local."""
    section, _, setting = key.strip().partition(".")
    return section == "local" and setting in [f.name for f in list_settings(Training)]


# The command line -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuneRequest:
    """The arguments of ``heterophony tune``, stored in its folder so that it can be continued."""

    algorithms: list[str]
    settings: list[str]  # ``key=values`` pairs to search over
    overrides: list[str]  # ``key=value`` pairs for all runs, without those of [engine]
    seeds: list[int]
    trials: int | None = None
    sampler: SamplerName = "tpe"
    by: Literal["P", "G"] = "P"
    stop_early: bool = True
    keep: bool = False  # show all trials without choosing one


@dataclass(frozen=True)
class Tune:
    """A search on the command line: its request, and the names of its algorithms by label."""

    request: TuneRequest
    search: Search
    names: Mapping[str, str]


def build_tune(
    request: TuneRequest,
    file: Path | None,
    engine: Sequence[str] = (),
    note: Callable[[str], None] = ignore_note,
    trust: bool = False,
) -> Tune:
    """Build the requested search; raise ConfigError if it cannot run.

    With ``trust``, algorithms of other packages are imported.
    """
    if request.sampler not in SAMPLERS:
        raise ConfigError(f"--sampler {request.sampler}: must be one of {', '.join(SAMPLERS)}")
    raw = read_toml(file)[1]
    algorithms = [find_algorithm_name(name) for name in request.algorithms]
    names = {label: name for name, label in label_algorithms(algorithms).items()}
    shared, own = split_settings(request.settings, names)
    overrides = expand_overrides(raw, [*request.overrides, *engine], algorithms, note, trust)
    pairs = expand_overrides(raw, shared, algorithms, note, trust)
    overrides = sweep.hold_out_examples(raw, overrides, note)
    spaces = {
        label: parse_space(get_algorithm_class(name, trust), pairs, own.get(label, []), label)
        for label, name in names.items()
    }
    check_settings_are_used(pairs, spaces)
    trials = count_trials(request, spaces)
    first = read_config(file, [*overrides, f'algorithm.name="{algorithms[0]}"'], trust=trust)
    if not first.data.validation_fraction and first.data.partition.get("kind") != "file":
        raise ConfigError(
            f"{sweep.VALIDATION_KEY}: must be above 0: settings are never chosen on test data"
        )
    maker = sweep.PairsSpecMaker(file, overrides, names, trust)
    search = Search(
        spaces=spaces,
        make_spec=maker.make_spec,
        trials=trials,
        seeds=request.seeds,
        rounds=first.top.rounds,
        sampler=request.sampler,
        by=request.by,
        stop_early=request.stop_early and not request.keep,
    )
    search.check()
    replace(search, make_spec=partial(maker.make_spec, note=note)).make_first_spec()
    return Tune(request, search, names)


def split_settings(
    pairs: Sequence[str], names: Mapping[str, str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Split ``key=values`` pairs into those for all algorithms and those for one (``fedprox.mu=0.1``)."""
    shared, own = list[str](), dict[str, list[str]]()
    for pair in pairs:
        first, dot, rest = pair.partition(".")
        is_own = dot and first.strip() in names and not is_training_key(pair.partition("=")[0])
        if is_own and "=" in rest:
            own.setdefault(first.strip(), []).append(f"algorithm.{rest}")
        else:
            shared.append(rename_pair(pair))
    return shared, own


def parse_space(
    cls: type[Algorithm], shared: Sequence[str], own: Sequence[str], label: str
) -> dict[str, Values]:
    """Parse the search space of one algorithm; leave out shared pairs whose setting this algorithm lacks."""
    known = [f"algorithm.{f.name}" for f in list_settings(cls)]
    for pair in own:
        if (key := pair.partition("=")[0].strip()) not in known:
            raise ConfigError(
                f"-s {label}{key.removeprefix('algorithm')}: {label} has no such setting"
            )
    mine = [p for p in shared if not is_setting_of_another(p.partition("=")[0].strip(), known)]
    if not [*mine, *own]:
        raise ConfigError(f"{label}: -s names no setting that can be searched for this algorithm")
    return sweep.parse_swept([*mine, *own])


def is_setting_of_another(key: str, known: Sequence[str]) -> bool:
    """Return True if a key is a setting of a different algorithm from the one with the ``known`` keys."""
    return key.startswith("algorithm.") and key != "algorithm.name" and key not in known


def check_settings_are_used(
    pairs: Sequence[str], spaces: Mapping[str, Mapping[str, Values]]
) -> None:
    """Raise ConfigError for a searched setting that no algorithm of the tune has."""
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        if key == "algorithm.name":
            raise ConfigError(f"-s {pair}: name the algorithms before the options")
        if not any(key in space for space in spaces.values()):
            raise ConfigError(f"-s {pair}: none of these algorithms has this setting")


def count_trials(request: TuneRequest, spaces: Mapping[str, Mapping[str, Values]]) -> int:
    """Return the number of trials per algorithm; raise ConfigError if their grids differ in size.

    ``--trials`` sets the same number for all algorithms. With ``--keep`` nothing is chosen, so each
    algorithm may try its whole grid.
    """
    if request.sampler != "grid":
        return request.trials or 20
    sizes = {label: len(list_grid(space)) for label, space in spaces.items()}
    if request.trials is None and len(set(sizes.values())) > 1 and not request.keep:
        told = ", ".join(f"{label} {size}" for label, size in sizes.items())
        raise ConfigError(
            f"--sampler grid: the algorithms have different numbers of combinations ({told});"
            " set one number for all with --trials N, or keep all trials with --keep"
        )
    return request.trials or max(sizes.values())


def write_request(parent: Path, request: TuneRequest, file: Path | None) -> None:
    """Store a tune's request in its folder; raise FolderError if the folder holds other runs."""
    path, content = parent / TUNE_FILE, asdict(request)
    text = "" if file is None else file.read_text(encoding="utf-8")
    if path.exists():
        before = asdict(read_tune_request(parent))
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


def read_tune_request(parent: Path) -> TuneRequest:
    """Read the request from the folder of a tune; raise FolderError if it is damaged."""
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
        raise FolderError(f"{path} is damaged: it is not the request of a tune")
    return request


def write_chosen(tune: Tune, parent: Path, chosen: Mapping[str, dict[str, Any] | None]) -> None:
    """Write a configuration with the chosen settings of each algorithm, to train on all examples."""
    for label, settings in chosen.items():
        if settings is None:
            continue
        whole = {**settings, sweep.VALIDATION_KEY: 0.0}
        text = tune.search.make_spec(label, whole, tune.search.seed).format_config()
        (parent / "chosen").mkdir(exist_ok=True)
        write_atomically(parent / "chosen" / f"{label}.toml", text.encode())
