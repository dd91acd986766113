"""Trials of a search side by side: each in a process of its own, which may end before its last round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..config.sections import EngineSection
from ..core.algorithm import Algorithm
from ..core.errors import DivergedError
from ..data.federation import Federation
from ..engines.base import ClusterShare
from ..engines.child_processes import send_errors
from ..engines.wire import pickle_for_children, unpickle_from_parent
from ..runs.early_stops import EarlyStop, Limits, StopRunError, write_stop
from ..runs.events import Event, Measure
from ..runs.run_index import EVENTS_FILE, read_events
from .parallel_runs import Work, continue_run, run_in_parallel
from .progress import EventListener, RunsProgress, RunStatus, combine_listeners
from .run import run
from .sweep import Combination
from .tasks import LabelledRuns


def run_trials_on_cluster(
    runs: LabelledRuns,
    limits: Mapping[Path, Limits],
    by: Measure,
    engine: EngineSection,
    workers: int | None,
    progress: RunsProgress,
    overrides: Sequence[str] = (),
) -> dict[Path, str]:
    """Run side by side, each run on its share of a Ray cluster; return which diverged, and how."""
    from ..engines.ray.cluster import share_cluster

    with share_cluster(workers or engine.workers, engine, len(runs)) as (width, share):
        return run_trials_side_by_side(runs, limits, by, width, progress, overrides, share)


def run_trials_side_by_side(
    runs: LabelledRuns,
    limits: Mapping[Path, Limits],
    by: Measure,
    width: int,
    progress: RunsProgress,
    overrides: Sequence[str] = (),
    share: ClusterShare | None = None,
) -> dict[Path, str]:
    """Run ``width`` trials at a time, a process each; return which diverged, and how.

    ``overrides`` are settings of the section [engine] in place of those in the folders.
    """
    statuses: dict[Path, RunStatus] = {}
    stops = {path: EarlyStop(by, limits[path]) for path in runs}

    def on_event(path: Path, event: Event) -> None:
        if path not in statuses:
            statuses[path] = progress.begin_run(*runs[path])
        statuses[path](event)
        try:
            stops[path].observe(event)
        except StopRunError:
            statuses[path].end_early()

    def get_work(path: Path) -> Work:
        return run_trial_in_child, (path, overrides, share, EarlyStop(by, limits[path]))

    return run_in_parallel(list(runs), width, on_event, get_work=get_work)


def run_trial_in_child(
    pipe: Connection,
    path: Path,
    overrides: Sequence[str],
    share: ClusterShare | None,
    stop: EarlyStop,
) -> None:
    """Continue one trial to its end or early stop, in the child process."""
    with send_errors(pipe, str(path)):
        run_until_stopped(
            path, stop, pipe.send, lambda listen: continue_run(path, overrides, share, listen)
        )


def run_until_stopped(
    path: Path, stop: EarlyStop, on_event: EventListener, run: Callable[[EventListener], object]
) -> None:
    """Run with a listener that may stop the run; record a stop in its folder.

    What was recorded before an interruption counts, too: the run stops where it would have stopped.
    """

    def listen(event: Event) -> None:
        on_event(event)
        stop.observe(event)

    try:
        for event in read_events(path / EVENTS_FILE):
            stop.observe(event)
        run(listen)
    except StopRunError:
        write_stop(path, stop)


@dataclass(frozen=True)
class Member:
    """One run of a sweep: what ``run`` is called with, and what may stop it early."""

    values: Combination
    algorithm: Algorithm
    how: dict[str, Any]
    stop: EarlyStop | None = None


BeginMember = Callable[[Path, Member], EventListener]


def begin_member(
    shown: RunsProgress, on_event: EventListener, path: Path, member: Member
) -> EventListener:
    """Show the run of a member; return what listens to its events."""
    rounds = member.how.get("rounds", signature(run).parameters["rounds"].default)
    return combine_listeners(shown.begin_run(path.name, rounds), on_event)


def run_members(
    federation: Federation, due: Mapping[Path, Member], begin: BeginMember
) -> dict[Path, str]:
    """Run one after the other; return which diverged, and how."""
    failed = {}
    for path, member in due.items():
        try:
            run_member(federation, path, member, begin(path, member))
        except DivergedError as error:
            failed[path] = str(error)
    return failed


def run_members_in_parallel(
    federation: Federation, due: Mapping[Path, Member], width: int, begin: BeginMember
) -> dict[Path, str]:
    """Run side by side, a process each; return which diverged, and how."""
    listeners = dict[Path, EventListener]()
    pickled = {path: pickle_for_children(member) for path, member in due.items()}
    with tempfile.TemporaryDirectory(prefix="heterophony-") as data:
        federation.save(Path(data))  # all processes map the same files

        def get_work(path: Path) -> Work:
            return run_member_in_child, (path, data, pickled[path])

        def on_event(path: Path, event: Event) -> None:
            if path not in listeners:
                listeners[path] = begin(path, due[path])
            listeners[path](event)

        return run_in_parallel(list(due), width, on_event, get_work=get_work)


def run_member_in_child(pipe: Connection, path: Path, data: str, pickled: bytes) -> None:
    """Run one member in the child process."""
    with send_errors(pipe, str(path)):
        member: Member = unpickle_from_parent(pickled)
        run_member(Federation.open(Path(data)), path, member, pipe.send)


def run_member(federation: Federation, path: Path, member: Member, on_event: EventListener) -> None:
    """Run or continue one member; the sweep shows the progress of all of them."""

    def run_it(listen: EventListener) -> None:
        how = {**member.how, "out": path, "resume": True, "progress": False, "on_event": listen}
        run(member.algorithm, federation, **how)

    if member.stop is None:
        run_it(on_event)
    else:
        run_until_stopped(path, member.stop, on_event, run_it)
