"""Runs of a sweep or a tune from Python: one after the other, or side by side in processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..core.algorithm import Algorithm
from ..core.errors import DivergedError
from ..data.federation import Federation
from ..engines.child_processes import send_errors
from ..engines.pickling import pickle_for_children, unpickle_from_parent
from ..runs.early_stops import EarlyStop
from ..runs.events import Event
from .parallel_runs import Work, run_in_parallel
from .progress import EventListener, RunsProgress, combine_listeners
from .run import run
from .swept_settings import Combination
from .trials import run_until_stopped


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
