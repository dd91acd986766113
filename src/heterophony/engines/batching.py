"""Group small jobs into batches: fewer messages, while no worker idles for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..jobs.plan import Job
from .base import sort_jobs

BATCHES_PER_WORKER = 8  # per kind of job: at the end of a round a worker idles for one at most
MAX_JOBS = 32  # in a batch
MAX_BYTES = 16 << 20  # of models in a batch, unless a single model has more


def batch_jobs(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Batch jobs, in the order in which they should start: training first, the longest first."""
    ordered = sort_jobs(jobs)
    training = [j for j in ordered if j.kind == "train"]
    evaluation = [j for j in ordered if j.kind not in ("train", "other")]
    alone = [[j] for j in ordered if j.kind == "other"]  # their cost is unknown
    return [*fill_batches(training, workers), *fill_batches(evaluation, workers), *alone]


def fill_batches(jobs: Sequence[Job], workers: int) -> Iterator[list[Job]]:
    """Fill batches of about equal cost, within the limits; a longer job is a batch of its own."""
    share = sum(j.cost for j in jobs) / (workers * BATCHES_PER_WORKER)
    models = {id(j.tensors): j.tensors for j in jobs}  # many jobs have the same one
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
