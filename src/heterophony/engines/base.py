"""Where jobs run. An engine maps ``work`` over jobs and knows no algorithm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, Self

from ..core.algorithm import Reply
from ..core.errors import ConfigError, choose
from ..core.fields import check_settings, setting
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan

AUTO_ADDRESS = "auto"  # the cluster that this machine is a node of
ENGINES = {"serial": "serial:Serial", "pool": "pool:Pool", "ray": "ray.engine:Ray"}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster the Ray engine uses, and what one job reserves of it; decides no bit."""

    address: str | None = setting(
        None,
        "of a Ray cluster, as in head:6379, or auto; default: one on this machine, for this run",
    )
    cpus: float = setting(1.0, "cores that a job reserves on a Ray cluster", above=0)
    gpus: float = setting(0.0, "GPUs that a job reserves on a Ray cluster", low=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.address not in (None, AUTO_ADDRESS) and not re.fullmatch(
            r"[^:/]+:\d{1,5}", self.address
        ):
            raise ConfigError(
                f"address: must be {AUTO_ADDRESS}, or host:port of its head, as in head:6379, not"
                f" {self.address!r}"
            )


LOCAL_CLUSTER = Cluster()  # a Ray of this machine, for one run


@dataclass(frozen=True)
class ClusterShare:
    """A run's part of a cluster that several runs use at a time, for a process of its own."""

    cluster: Cluster
    workers: int
    environment: Mapping[str, str]  # how the process gets in


class Engine(Protocol):
    """Runs jobs somewhere; each client's memory is kept there too."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, *_: object) -> None: ...

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        """Those of the clients who can be given work now, in their order."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """The replies, in any order, as they come; some may never come."""


def create_engine(
    name: str,
    workers: int | None,
    plan: Plan,
    place: FolderClientStore,
    cluster: Cluster = LOCAL_CLUSTER,
) -> Engine:
    """The engine of that name for one run; without ``workers``, all cores are used."""
    module, cls_name = choose(ENGINES, name, "engine.name").split(":")
    check_engine_installed(name)
    cls = getattr(import_module(f".{module}", __package__), cls_name)
    how = (workers, cluster) if name == "ray" else (workers or count_cores(),)
    made: Engine = cls(plan, place, *how)
    return made


def check_engine_installed(name: str) -> None:
    """An engine whose package is not installed is a mistake to hear of before anything begins."""
    spec = find_spec("ray") if name == "ray" else None
    if name == "ray" and (spec is None or spec.origin is None):  # a mere folder has no origin
        raise ConfigError(
            "engine.name = 'ray' needs Ray; install it with pip install 'heterophony[ray]'"
        )


def count_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def sort_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Training first, the longest first; evaluations fill the gaps at the end of the round."""
    return sorted(jobs, key=lambda j: (j.kind != "train", -j.cost))
