"""``sweep``: try many settings of a run from Python, in a folder that the same call continues."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, DivergedError, suggest_or_list
from ..core.fields import construct, list_settings
from ..core.training import Training
from ..data.federation import Federation
from ..engines.base import count_cores
from ..engines.child_processes import end_if_script_is_imported, send_errors
from ..engines.pickling import pickle_for_children, unpickle_from_parent
from ..runs.events import Event
from ..runs.run_index import EVENTS_FILE, read_events
from ..runs.sweep_table import SWEEP_FILE, SweepTable, read_sweep, read_sweep_file
from .algorithm_choice import choose_algorithm
from .execute import is_finished
from .parallel_runs import run_in_parallel
from .progress import EventListener, RunsProgress, combine_listeners, show_progress
from .run import run
from .sweep import make_label, write_sweep_file
from .swept_settings import Combination, Values, check_values, combine, parse_values

T = TypeVar("T")
RESERVED = ("algorithm", "federation", "seed", "training", "out", "resume", "settings")
SHARED = ("on_event", "progress")  # of all runs together


@dataclass(frozen=True)
class Member:
    """One run of a sweep: what ``run`` is called with."""

    values: Combination
    algorithm: Algorithm
    how: dict[str, Any]


BeginMember = Callable[[Path, Member], EventListener]


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
    content["failed"] |= failed
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
    keywords = [k for k in signature(run).parameters if k not in RESERVED + SHARED]
    own = {k: v for k, v in how.items() if k not in keywords}
    base = choose_algorithm(algorithm, own, keywords)[0]
    rest = {k: v for k, v in how.items() if k in keywords}
    swept = parse_settings(settings, type(base), keywords)
    members = {}
    for values in combine(swept, draws, min(seeds, default=0)):
        parts: dict[str, dict[str, Any]] = {"algorithm": {}, "local": {}, "": {}}
        for key, value in values.items():
            section, _, setting = key.rpartition(".")
            parts[section][setting] = value
        chosen = change_settings(base, parts["algorithm"], "algorithm")
        trained = construct(Training, training.list_changed(parts["local"]), "local")
        plain = {k: to_plain(v) for k, v in values.items()}
        for seed in seeds:
            told = {**rest, **parts[""], "training": trained, "seed": seed}
            members[f"{make_label(plain)}-{seed}"] = Member(plain, chosen, told)
    if not members:
        raise ConfigError("seeds: must list at least one seed, as in (0, 1, 2)")
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


def begin_member(
    shown: RunsProgress, on_event: EventListener, path: Path, member: Member
) -> EventListener:
    """Show the run of a member; return what listens to its events."""
    rounds = member.how.get("rounds", signature(run).parameters["rounds"].default)
    return combine_listeners(shown.begin_run(path.name, rounds), on_event)


def run_members(
    federation: Federation, due: Mapping[Path, Member], begin: BeginMember
) -> dict[str, str]:
    """Run one after the other; return which diverged, and how."""
    failed = {}
    for path, member in due.items():
        try:
            run_member(federation, path, member, begin(path, member))
        except DivergedError as error:
            failed[path.name] = str(error)
    return failed


def run_members_in_parallel(
    federation: Federation, due: Mapping[Path, Member], width: int, begin: BeginMember
) -> dict[str, str]:
    """Run side by side, a process each; return which diverged, and how."""
    listeners = dict[Path, EventListener]()
    pickled = {path: pickle_for_children(member) for path, member in due.items()}
    with tempfile.TemporaryDirectory(prefix="heterophony-") as data:
        federation.save(Path(data))  # all processes map the same files

        def get_work(path: Path) -> tuple[Callable[..., None], tuple[Any, ...]]:
            return run_member_in_child, (path, data, pickled[path])

        def on_event(path: Path, event: Event) -> None:
            if path not in listeners:
                listeners[path] = begin(path, due[path])
            listeners[path](event)

        failed = run_in_parallel(list(due), width, on_event, get_work=get_work)
    return {path.name: reason for path, reason in failed.items()}


def run_member_in_child(pipe: Connection, path: Path, data: str, pickled: bytes) -> None:
    """Run one member in the child process."""
    with send_errors(pipe, str(path)):
        member: Member = unpickle_from_parent(pickled)
        run_member(Federation.open(Path(data)), path, member, pipe.send)


def run_member(federation: Federation, path: Path, member: Member, on_event: EventListener) -> None:
    """Run or continue one member; the sweep shows the progress of all of them."""
    how = {**member.how, "out": path, "resume": True, "progress": False, "on_event": on_event}
    run(member.algorithm, federation, **how)
