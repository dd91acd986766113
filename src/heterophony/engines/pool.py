"""The pool engine: one stateless worker process per core; workers get small jobs in batches.

If a worker dies, it is replaced and its jobs are repeated. The result is the same, because all
state is in the client store, by round.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Self

import torch

from ..core.accelerator import (
    Compute,
    GPUMemoryUse,
    WorkerPlace,
    limit_gpu_memory,
    measure_gpu_memory,
)
from ..core.algorithm import Reply
from ..core.errors import EngineError
from ..core.files import remove_unfinished_files
from ..core.own_modules import LOADED, Sources
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore, encode_folder_name
from ..jobs.plan import Job, Plan
from ..jobs.work import work_together
from . import base, wire
from .child_processes import PIPE_CLOSED, ChildProcess, send_errors, start_fork_server


class Worker(ChildProcess):
    """A worker process, and the jobs that it is running."""

    batch: tuple[Job, ...] = ()
    memory_use: GPUMemoryUse | None = None  # of its GPU, after its last batch


class Pool(base.Engine):
    """The pool engine: the worker processes of one run."""

    def __init__(
        self, plan: Plan, client_store: FolderClientStore, spec: base.EngineSpec = base.SERIAL
    ) -> None:
        workers, compute = spec.workers, spec.compute
        self.plan, self.client_store, self.compute = plan, client_store, compute
        self.is_measuring = workers is None and not compute.is_cpu
        self.worker_count = workers or (
            base.count_gpus(compute) if self.is_measuring else base.count_cores()
        )
        self.workers: list[Worker] = []
        self.down = client_store.scratch / "down"
        self.encode = wire.EncodeOnce(
            lambda tensors, key: wire.encode_message({"down": tensors}, key, self.down / f"{key}")
        )

    def __enter__(self) -> Self:
        start_fork_server()
        data_folder = self.client_store.scratch / "data"
        self.plan.federation.save(data_folder)
        self.worker_arguments = (
            wire.pickle_for_children(strip_plan_data(self.plan)),
            str(data_folder),
            str(self.client_store.memory_folder),
            str(self.client_store.scratch),
        )
        try:
            for i in range(self.worker_count):
                self.workers.append(self.start_worker(i))
        except BaseException as error:  # including Ctrl-C: no worker may outlive the folder
            self.__exit__(error)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.batch or kind is not None:
                worker.process.kill()  # stateless: nothing is lost
        for worker in self.workers:
            worker.process.join()

    def start_worker(self, i: int) -> Worker:
        """Start worker process ``i`` on its share of the accelerator."""
        where = WorkerPlace.choose(self.compute, i, self.worker_count)
        return Worker(run_worker, *self.worker_arguments, where, dict(LOADED))

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        if self.is_measuring and jobs:
            # the first job of each kind is the longest
            kinds = {job.kind: job for job in reversed(jobs)}
            yield from self.run_jobs(list(kinds.values()))
            self.add_workers()
            jobs = [job for job in jobs if job is not kinds[job.kind]]
        yield from self.run_jobs(jobs)

    def add_workers(self) -> None:
        """Start as many workers as fit into the GPUs' memory, as measured in the first jobs."""
        uses = [worker.memory_use for worker in self.workers if worker.memory_use]
        fitting = min((use.count_fitting_workers() for use in uses), default=None)
        self.is_measuring = False
        self.worker_count = base.count_gpu_workers(self.compute, fitting)
        for i in range(len(self.workers), self.worker_count):
            self.workers.append(self.start_worker(i))

    def run_jobs(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Run jobs in batches on the workers; repeat the batches of workers that died."""
        batches = base.batch_by_plan(self.plan, self.compute, jobs, self.worker_count)
        waiting, deaths, disturbed = batches[::-1], Counter[int](), set[str]()
        remaining = len(jobs)
        while remaining:
            for worker in self.workers:
                if not worker.batch and waiting:
                    self.assign_batch(worker, waiting.pop())
            busy = {w.pipe: w for w in self.workers if w.batch}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                batch, replies = worker.batch, receive_replies(worker)
                if replies is None:
                    deaths.update(map(id, batch))
                    disturbed.update(job.client for job in batch)
                    self.replace_worker(worker, batch, deaths[id(batch[0])])
                    # one by one, to find the job that kills workers
                    waiting += [[job] for job in reversed(batch)]
                    continue
                worker.batch, remaining = (), remaining - len(batch)
                yield from replies
        for client in disturbed:
            remove_unfinished_files(self.client_store.client_folder(client))
        self.delete_sent_files()

    def delete_sent_files(self) -> None:
        """Delete the files with tensors that were sent to workers in this round."""
        for message in self.encode.clear():
            if message is not None:
                message.delete()

    def assign_batch(self, worker: Worker, batch: Sequence[Job]) -> None:
        """Send a batch of jobs to an idle worker."""
        message = wire.JobBatch.encode(batch, self.encode)
        worker.batch = tuple(batch)
        sharing = WorkerPlace.choose(self.compute, self.workers.index(worker), self.worker_count)
        # a worker that died while idle is noticed where replies are read
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((message, sharing.sharing))

    def replace_worker(self, worker: Worker, batch: Sequence[Job], deaths: int) -> None:
        """Replace a dead worker; stop the run if several workers died on the same job."""
        exit_code, job = worker.wait_for_exit(), batch[0]
        if exit_code == 1:  # Python's exit code: the worker exited before it could take a job
            raise EngineError(
                "a worker of the pool could not start: it imports the script again, so the script"
                ' must call hp.run below `if __name__ == "__main__":` (or use the serial engine);'
                " if that is not the cause, see the error above"
            )
        if deaths >= base.MAX_ATTEMPTS:
            raise EngineError(
                f"client {job.client}, round {job.t}: {base.MAX_ATTEMPTS} workers died on this job"
                f" (exit code {exit_code}), possibly because memory ran out; lower engine.workers"
            )
        i = self.workers.index(worker)
        self.workers[i] = self.start_worker(i)


def receive_replies(worker: Worker) -> list[Reply] | None:
    """Receive a worker's replies to its batch of jobs; return None if it died."""
    received: wire.ReplyBatch
    try:
        received, worker.memory_use = worker.receive()
    except EOFError:
        return None
    return received.decode()


def strip_plan_data(plan: Plan) -> Plan:
    """Return a plan without its examples, which workers open from files."""
    empty = torch.empty(0)
    bare = replace(plan.federation, x=empty, y=empty, train={}, test={}, validation={})
    return replace(plan, federation=bare)


# In the worker ------------------------------------------------------------------------------


def run_worker(
    pipe: connection.Connection,
    plan_pickle: bytes,
    data: str,
    memories: str,
    scratch: str,
    where: WorkerPlace,
    sources: Sources,
) -> None:
    """Run a worker process: receive jobs and send replies until the driver closes the pipe or exits."""
    try:
        federation = Federation.open(Path(data))
    except FileNotFoundError:  # the driver was stopped while we started, and cleaned up
        return
    try:
        bare: Plan = wire.unpickle_from_parent(plan_pickle, sources)
        plan = replace(bare, federation=federation)
    except EngineError as error:
        with suppress(*PIPE_CLOSED):
            pipe.send(error)
            pipe.recv()  # the driver reads replies after it has sent a job
        return
    client_store = FolderClientStore(Path(memories), Path(scratch))
    compute, cache = where.prepare(), wire.TensorCache[int]()
    gc.freeze()  # existing objects stay, and would take long to scan
    while True:
        try:
            run_batch(pipe, plan, client_store, cache, compute)
        except PIPE_CLOSED:
            return


def run_batch(
    pipe: connection.Connection,
    plan: Plan,
    client_store: FolderClientStore,
    cache: wire.TensorCache[int],
    compute: Compute,
) -> None:
    """Run a batch of jobs in a worker: receive the batch and send the replies, or a failed job's error."""
    batch, sharing = pipe.recv()
    limit_gpu_memory(compute, sharing)  # more batches may have arrived
    jobs = batch.decode(cache)
    first = jobs[0]
    with send_errors(pipe, f"client {first.client}, round {first.t}"):
        replies = work_together(plan, jobs, client_store, compute)
        name = f"{os.getpid()}-{first.kind}-{first.t}-{first.turn}"
        path = client_store.scratch / "up" / f"{name}-{encode_folder_name(first.client)}"
        pipe.send((wire.ReplyBatch.encode(replies, path), measure_gpu_memory(compute)))
