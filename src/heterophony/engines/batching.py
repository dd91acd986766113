"""Small jobs in one bundle: what a message costs is shared, and no worker waits for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..jobs.plan import Job
from .base import sort_jobs

BATCHES_PER_WORKER = (
    8  # bundles per worker and kind of job: at the end of a round some idle for one of them
)
MAX_JOBS = 32  # in a bundle, at most
MAX_BYTES = 16 << 20  # of models in a bundle, at most, unless a single one has more


def batch_jobs(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """The jobs in the order they should start, the longest first; those that are long, alone."""
    ordered = sort_jobs(jobs)
    learn = [j for j in ordered if j.kind == "train"]
    measure = [j for j in ordered if j.kind not in ("train", "other")]
    alone = [[j] for j in ordered if j.kind == "other"]  # nobody knows how long these are
    return [*fill_batches(learn, workers), *fill_batches(measure, workers), *alone]


def fill_batches(jobs: Sequence[Job], workers: int) -> Iterator[list[Job]]:
    share = sum(j.cost for j in jobs) / (workers * BATCHES_PER_WORKER)
    bundle: list[Job] = []
    cost = size = 0
    for job in jobs:
        own = job.tensors.nbytes
        full = len(bundle) == MAX_JOBS or cost + job.cost > share or size + own > MAX_BYTES
        if bundle and full:
            yield bundle
            bundle, cost, size = [], 0, 0
        bundle.append(job)
        cost, size = cost + job.cost, size + own
    if bundle:
        yield bundle
