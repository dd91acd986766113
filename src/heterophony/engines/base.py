"""The interface of an engine, the serial engine, and the division of jobs among workers.

An engine runs ``work`` on jobs. No engine depends on an algorithm.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self

import torch

from ..core import accelerator
from ..core.algorithm import Reply, Server
from ..core.errors import CodecError, ConfigError, choose
from ..core.settings import check_settings, setting
from ..jobs.blocks import evaluates_in_blocks
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work_together

AUTO_ADDRESS = "auto"  # join the cluster that this machine belongs to
ENGINES = {"serial": "base:Serial", "pool": "pool:Pool", "ray": "ray.engine:Ray"}
MAX_ATTEMPTS = 3  # number of worker deaths on one job after which the run stops


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster that the Ray engine uses, and what a job reserves on it; neither changes results."""

    address: str | None = setting(
        None,
        "address of a Ray cluster, as in head:6379, or auto; default: a new one on this machine",
    )
    cpus: float = setting(1.0, "cores that a job reserves on a Ray cluster", above=0)
    gpus: float = setting(0.0, "GPUs that a job reserves on a Ray cluster", low=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.address not in (None, AUTO_ADDRESS) and not re.fullmatch(
            r"[^:/]+:\d{1,5}", self.address
        ):
            raise ConfigError(
                f"address: must be {AUTO_ADDRESS}, or a cluster's host:port, as in head:6379, not"
                f" {self.address!r}"
            )


LOCAL_CLUSTER = Cluster()  # started on this machine for one run


@dataclass(frozen=True)
class ClusterShare:
    """The part of a shared Ray cluster that one run uses, passed to the process that executes the run."""

    cluster: Cluster
    workers: int
    environment: Mapping[str, str]  # variables with token and address


@dataclass(frozen=True)
class EngineSpec:
    """Which engine to use, how many jobs to run at a time, and on which devices."""

    name: str = "serial"
    workers: int | None = None  # None: all cores or GPUs, and a measured number of workers per GPU
    cluster: Cluster = LOCAL_CLUSTER  # only used by Ray
    compute: accelerator.Compute = accelerator.ON_CPU


SERIAL = EngineSpec()


class Judge(Protocol):
    """Limits how far untrusted clients' updates can change the model."""

    def check_merged(self, after: Server) -> None:
        """Raise CodecError if honest clients' updates cannot lead to this state of the server."""

    def refuse_update(self, reply: Reply, t: int, error: CodecError) -> None:
        """Record which client's update is not merged; raise an error if the run must stop."""


class Engine(ABC):
    """Runs the jobs of one run. Each client's memory is kept where its jobs run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:  # noqa: B027  # most hold nothing
        """Release the engine's processes and files; ``kind`` is the error that stops the run, if any."""

    def available(self, clients: Sequence[str]) -> list[str]:
        """Return those of the clients to which the engine can give a job now, in the same order."""
        return list(clients)

    @abstractmethod
    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run jobs; yield their replies as they arrive, in any order. Some replies may never arrive."""

    @property
    def judge(self) -> Judge | None:
        """The judge of clients' updates; None if clients are trusted."""
        return None

    def describe_round(self) -> Mapping[str, Any] | None:
        """Describe each board's last round, by board name; None if there are no boards."""
        return None


def create_engine(spec: EngineSpec, plan: Plan, client_store: FolderClientStore) -> Engine:
    """Create the engine that runs the jobs of one run."""
    module, cls_name = choose(ENGINES, spec.name, "engine.name").split(":")
    check_engine_installed(spec.name)
    engine: Engine = getattr(import_module(f".{module}", __package__), cls_name)(
        plan, client_store, spec
    )
    return engine


class EngineChoice(Protocol):
    """The part of a configuration that determines where jobs run."""

    @property
    def name(self) -> str: ...

    def choose_compute(self) -> accelerator.Compute: ...


def prepare_engine(engine: EngineChoice) -> None:
    """Raise ConfigError if the engine or its accelerator is missing; start importing torch for workers."""
    check_engine_installed(engine.name)
    engine.choose_compute()
    if engine.name == "pool":
        from .child_processes import start_fork_server

        start_fork_server()


def check_engine_installed(name: str) -> None:
    """Raise ConfigError if the engine's package is not installed."""
    spec = find_spec("ray") if name == "ray" else None
    if name == "ray" and (spec is None or spec.origin is None):  # a mere folder has no origin
        raise ConfigError(
            "engine.name = 'ray' needs Ray; install it with pip install 'heterophony[ray]'"
        )


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_gpus(compute: accelerator.Compute) -> int:
    """Count the GPUs that the workers of a run share: one if the device has an index, otherwise all."""
    if compute.device.index is not None:
        return 1
    return max(1, accelerator.count_devices(compute.device.type))


def count_gpu_workers(compute: accelerator.Compute, each: int | None = None) -> int:
    """Return how many workers to start, ``each`` per GPU: at most one per core, at least one per GPU."""
    gpus = count_gpus(compute)
    return min((each or accelerator.DEFAULT_WORKERS_PER_GPU) * gpus, max(gpus, count_cores()))


def sort_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Sort jobs in starting order: training first, longest jobs first; evaluations fill the gaps at the end."""
    return sorted(jobs, key=lambda j: (j.kind != "train", -j.cost))


# batches per worker and kind of job: at the end of a round, workers wait for one batch at most
BATCHES_PER_WORKER = 8
MAX_JOBS = 32  # largest number of jobs in a batch
MAX_BLOCK_JOBS = 1024  # jobs in a batch of evaluations in blocks
MAX_BYTES = 16 << 20  # size limit of the models in a batch, unless a single model is larger


def batch_by_plan(
    plan: Plan, compute: accelerator.Compute, jobs: Sequence[Job], workers: int
) -> list[list[Job]]:
    """Divide jobs into batches; clients that can be computed together share as few batches as possible."""
    in_blocks = compute.fast and compute.is_usual and evaluates_in_blocks(plan)
    return batch_jobs(jobs, workers, compute.fast and plan.trains_in_groups, in_blocks)


def batch_jobs(
    jobs: Sequence[Job], workers: int, in_groups: bool = False, in_blocks: bool = False
) -> list[list[Job]]:
    """Batch jobs in the order in which they should start: training first, the longest first.

    ``in_groups`` is True if a batch's clients train together, ``in_blocks`` if they are evaluated together;
    larger batches are then better.
    """
    ordered = sort_jobs(jobs)
    kinds = {kind: [j for j in ordered if j.kind == kind] for kind in ("train", "evaluate", "join")}
    alone = [[j] for j in ordered if j.kind == "other"]  # the cost of these jobs is unknown
    if in_groups:
        training = split_evenly(kinds["train"], workers, MAX_JOBS)
    else:
        training = fill_batches(kinds["train"], workers)
    if in_blocks:
        evaluation = split_evenly(kinds["evaluate"], 2 * workers, MAX_BLOCK_JOBS)
    else:
        evaluation = fill_batches(kinds["evaluate"], workers)
    return [*training, *evaluation, *fill_batches(kinds["join"], workers), *alone]


def split_evenly(jobs: Sequence[Job], parts: int, most: int) -> Iterator[list[Job]]:
    """Split jobs into a multiple of ``parts`` batches, of similar cost and with at most ``most`` jobs."""
    times = -(-len(jobs) // (parts * most))
    share = sum(job.cost for job in jobs) / max(1, times * parts)
    batch, end, before = list[Job](), share, 0
    for job in jobs:
        # a job belongs to the batch that contains the middle of its cost
        if batch and (before + job.cost / 2 > end or len(batch) == most):
            yield batch
            batch, end = [], max(end + share, before)
        batch.append(job)
        before += job.cost
    if batch:
        yield batch


def fill_batches(jobs: Sequence[Job], workers: int) -> Iterator[list[Job]]:
    """Fill batches with jobs of about equal total cost, within the limits; a longer job gets its own batch."""
    share = sum(j.cost for j in jobs) / (workers * BATCHES_PER_WORKER)
    models = {id(j.tensors): j.tensors for j in jobs}  # many jobs share a model
    sizes = {key: model.nbytes for key, model in models.items()}
    batch: list[Job] = []
    cost = size = 0
    for job in jobs:
        nbytes = sizes[id(job.tensors)]
        full = len(batch) == MAX_JOBS or cost + job.cost > share or size + nbytes > MAX_BYTES
        if batch and full:
            yield batch
            batch, cost, size = [], 0, 0
        batch.append(job)
        cost, size = cost + job.cost, size + nbytes
    if batch:
        yield batch


# The serial engine --------------------------------------------------------------------------------


class Serial(Engine):
    """The serial engine: runs jobs one by one in this process.

    It uses one torch thread, as every worker does, so that all engines produce the same bits.
    """

    def __init__(
        self, plan: Plan, client_store: FolderClientStore, spec: EngineSpec = SERIAL
    ) -> None:
        self.plan, self.client_store, self.compute = plan, client_store, spec.compute
        self.previous_threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        torch.set_num_threads(1)
        self.prepared = accelerator.prepared_torch(self.compute)
        self.prepared.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.prepared.__exit__(None, None, None)
        torch.set_num_threads(self.previous_threads)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for batch in batch_by_plan(self.plan, self.compute, jobs, 1):
            yield from work_together(self.plan, batch, self.client_store, self.compute)
