"""The pool engine: one stateless worker process per core; tensors go through files, not pipes.

A worker that dies is replaced and its job repeated. The result is the same, because all state is
in the client store, by round.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Self

import torch

from ..core.algorithm import Reply
from ..core.codec import decode_groups, encode_groups
from ..core.errors import EngineError
from ..core.files import translate_disk_errors, write_atomically
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan
from ..jobs.work import work
from .base import MAX_ATTEMPTS, sort_jobs
from .child_processes import PIPE_CLOSED, ChildProcess, send_errors, start_fork_server


class Worker(ChildProcess):
    """A worker process, and the job that it runs now."""

    job: Job | None = None


class Pool:
    """The workers of one run."""

    def __init__(self, plan: Plan, client_store: FolderClientStore, workers: int) -> None:
        self.plan, self.client_store, self.worker_count = plan, client_store, workers
        self.workers: list[Worker] = []
        # by the id of the tensors; keeping the tensors keeps the id from being used again
        self.sent_files: dict[int, tuple[Tensors, Path]] = {}
        self.file_number = 0

    def __enter__(self) -> Self:
        start_fork_server()
        data_folder = self.client_store.scratch / "data"
        self.plan.federation.save(data_folder)
        self.worker_arguments = (
            pickle_plan(self.plan),
            str(data_folder),
            str(self.client_store.memory_folder),
            str(self.client_store.scratch),
        )
        try:
            for _ in range(self.worker_count):
                self.workers.append(self.start_worker())
        except BaseException as error:  # also Ctrl-C: no worker may outlive the folder
            self.__exit__(error)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for worker in self.workers:
            worker.pipe.close()
            if worker.job is not None or kind is not None:
                worker.process.kill()  # stateless: nothing is lost
        for worker in self.workers:
            worker.process.join()

    def start_worker(self) -> Worker:
        return Worker(run_worker, *self.worker_arguments)

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        waiting, deaths = sort_jobs(jobs)[::-1], Counter[int]()
        remaining = len(jobs)
        while remaining:
            for worker in self.workers:
                if worker.job is None and waiting:
                    self.assign_job(worker, waiting.pop())
            busy = {w.pipe: w for w in self.workers if w.job is not None}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                job, reply = worker.job, self.receive_reply(worker)
                assert job is not None
                if reply is None:
                    deaths[id(job)] += 1
                    self.replace_worker(worker, job, deaths[id(job)])
                    waiting.append(job)
                else:
                    worker.job, remaining = None, remaining - 1
                    yield reply
        self.delete_sent_files()

    def assign_job(self, worker: Worker, job: Job) -> None:
        files = [str(self.write_tensors(t)) for t in (job.tensors, job.generic_model)]
        bare = replace(job, tensors=Tensors(), generic_model=Tensors())
        worker.job = job
        # a worker that died while idle is noticed where replies are read
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((bare, *files))

    def write_tensors(self, tensors: Tensors) -> Path:
        """Write the tensors to a file; the same object for many clients is written only once."""
        if id(tensors) not in self.sent_files:
            self.file_number += 1
            path = self.client_store.scratch / "down" / f"{self.file_number}"
            write_atomically(path, encode_groups({"down": tensors}), durable=False)
            self.sent_files[id(tensors)] = tensors, path
        return self.sent_files[id(tensors)][1]

    def receive_reply(self, worker: Worker) -> Reply | None:
        """Receive the reply of a worker; None if the worker died."""
        try:
            reply, path = worker.receive()
        except EOFError:
            return None
        with translate_disk_errors(Path(path)):
            groups, _ = decode_groups(Path(path).read_bytes(), finite=False)
            Path(path).unlink()
        complete: Reply = replace(reply, tensors=groups["up"], aside=groups["aside"])
        return complete

    def replace_worker(self, worker: Worker, job: Job, deaths: int) -> None:
        """Replace a dead worker; a job on which several died ends the run."""
        exit_code = worker.wait_for_exit()
        if exit_code == 1:  # Python's own: the worker ended before it could take a job
            raise EngineError(
                "a worker of the pool could not start, for the reason above; workers import the"
                ' script again, so it must call the pool below `if __name__ == "__main__":` and'
                " define models and algorithms above it, in a file (or use the serial engine)"
            )
        if deaths >= MAX_ATTEMPTS:
            raise EngineError(
                f"client {job.client}, round {job.t}: {MAX_ATTEMPTS} workers died on this job"
                f" (exit code {exit_code}); is there enough memory?"
                " fewer engine.workers need less"
            )
        self.workers[self.workers.index(worker)] = self.start_worker()

    def delete_sent_files(self) -> None:
        for _, path in self.sent_files.values():
            path.unlink(missing_ok=True)
        self.sent_files.clear()


def strip_data(plan: Plan) -> Plan:
    """Return the plan without its data, which workers open from files."""
    empty = torch.empty(0)
    bare = replace(plan.federation, x=empty, y=empty, train={}, test={}, validation={})
    return replace(plan, federation=bare)


def pickle_plan(plan: Plan) -> bytes:
    """Pickle the plan, for our own child processes only."""
    return pickle_for_children(strip_data(plan))


def pickle_for_children(value: object) -> bytes:
    """Pickle what our own child processes receive; one line where that is impossible."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EngineError(
            f"the pool engine cannot send this algorithm or model to its workers ({error});"
            " define it at the top level of a module, or use the serial engine"
        ) from None


def unpickle_plan(plan_pickle: bytes) -> Plan:
    """Unpickle the plan in a worker, which has to find the user's classes again."""
    try:
        plan: Plan = pickle.loads(plan_pickle)
    except Exception as error:  # importing a user's module can raise anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise EngineError(
            f"the pool's workers cannot load this algorithm or model ({reason}); define it at the"
            ' top level of a file, above `if __name__ == "__main__":`, or use the serial engine'
        ) from None
    return plan


# In the worker ------------------------------------------------------------------------------


def run_worker(
    pipe: connection.Connection, plan_pickle: bytes, data: str, memories: str, scratch: str
) -> None:
    """Receive jobs and send replies, until the driver closes the pipe or ends."""
    try:
        federation = Federation.open(Path(data))
    except FileNotFoundError:  # the driver was stopped while we started, and cleaned up
        return
    try:
        plan = replace(unpickle_plan(plan_pickle), federation=federation)
    except EngineError as error:
        with suppress(*PIPE_CLOSED):
            pipe.send(error)
            pipe.recv()  # the driver reads replies after it has sent a job
        return
    client_store = FolderClientStore(Path(memories), Path(scratch))
    cache = TensorFileCache()
    while True:
        try:
            job, tensors, generic_model = pipe.recv()
            with send_errors(pipe, f"client {job.client}, round {job.t}"):
                job = replace(
                    job, tensors=cache.read(tensors), generic_model=cache.read(generic_model)
                )
                pipe.send(run_job(plan, client_store, job))
        except PIPE_CLOSED:
            return


def run_job(plan: Plan, client_store: FolderClientStore, job: Job) -> tuple[Reply, str]:
    """Run a job; return the reply without its tensors, and the file that holds them."""
    reply = work(plan, job, client_store)
    name = f"{os.getpid()}-{job.kind}-{job.t}-{job.client.encode().hex()}"
    path = client_store.scratch / "up" / name
    write_atomically(
        path, encode_groups({"up": reply.tensors, "aside": reply.aside}), durable=False
    )
    return replace(reply, tensors=Tensors(), aside=Tensors()), str(path)


class TensorFileCache:
    """Keeps the tensors of the last few files: many jobs of a round share them."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.files = size, OrderedDict[str, Tensors]()

    def read(self, path: str) -> Tensors:
        if path not in self.files:
            with translate_disk_errors(Path(path)):
                self.files[path] = decode_groups(Path(path).read_bytes(), finite=False)[0]["down"]
            while len(self.files) > self.size:
                self.files.popitem(last=False)
        self.files.move_to_end(path)
        return self.files[path]
