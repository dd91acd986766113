"""Where jobs run. An engine maps ``work`` over jobs and knows no algorithm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import TracebackType
from typing import Protocol, Self

from ..algorithm import Reply
from ..errors import ConfigError, suggestion
from ..place import Place
from ..plan import Job, Plan

ENGINES = {"serial": "Serial", "pool": "Pool"}


class Engine(Protocol):
    """Runs jobs somewhere; each client's memory is kept there too."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def present(self, clients: Sequence[str]) -> list[str]:
        """Those of the clients who can be given work now, in their order."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """The replies, in any order, as they come; some may never come."""


def engine(name: str, workers: int | None, plan: Plan, place: Place) -> Engine:
    """The engine of that name for one run; without ``workers``, one per core."""
    if name not in ENGINES:
        raise ConfigError(f"engine.name: no '{name}' here{suggestion(name, ENGINES)}")
    cls = getattr(import_module(f".{name}", __name__), ENGINES[name])
    made: Engine = cls(plan, place, workers or cores())
    return made


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """Training first, the longest first; evaluations fill the gaps at the end of the round."""
    return sorted(jobs, key=lambda j: (j.kind != "train", -j.cost))
