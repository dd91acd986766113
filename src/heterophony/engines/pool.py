"""The pool engine: one stateless process per core; tensors go through files, not pipes.

Workers come from a fork server that has imported torch already. A worker that dies is replaced
and its job repeated: the result is the same, because all state is in the place, by round.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any, Self

import torch

from ..core.algorithm import Reply
from ..core.codec import decode_groups, encode_groups
from ..core.errors import EngineError, HeterophonyError
from ..core.files import translate_disk_errors, write_atomically
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..jobs.client_store import FolderClientStore
from ..jobs.plan import Job, Plan, work
from .base import MAX_ATTEMPTS, sort_jobs

CONTEXT = multiprocessing.get_context("forkserver")


def start_fork_server(*preload: str) -> None:
    """Start the fork server now; it imports torch while this process does something else.

    One that runs already is left as it is, whatever else it was to import.

    Ctrl-C reaches the whole terminal, but is the driver's alone to answer: blocked in the server.
    """
    CONTEXT.set_forkserver_preload([f"{__package__}.preload", *preload])
    resource_tracker.ensure_running()  # it sets the mask itself, so before us
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Worker:
    """A process, our end of its pipe, and the job it is on."""

    process: Any
    pipe: connection.Connection
    job: Job | None = None


class Pool:
    """So many workers for one run."""

    def __init__(self, plan: Plan, place: FolderClientStore, workers: int) -> None:
        self.plan, self.client_store, self.worker_count = plan, place, workers
        self.workers: list[Worker] = []
        self.sent_files: dict[int, tuple[Tensors, Path]] = {}  # by identity; holds what it names
        self.file_number = 0

    def __enter__(self) -> Self:
        start_fork_server()
        shared = self.client_store.scratch / "data"
        self.plan.federation.save(shared)
        blob = pickle_plan(self.plan)
        self.worker_arguments = (
            blob,
            str(shared),
            str(self.client_store.memory_folder),
            str(self.client_store.scratch),
        )
        try:
            for _ in range(self.worker_count):
                self.workers.append(self.start_worker())
        except BaseException as error:  # Ctrl-C here: no worker may outlive the folder
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
        """A new process at work."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(
            target=run_worker, args=(theirs, *self.worker_arguments), daemon=True
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        waiting, tries = sort_jobs(jobs)[::-1], dict[int, int]()
        left = len(jobs)
        while left:
            for worker in self.workers:
                if worker.job is None and waiting:
                    self.assign_job(worker, waiting.pop())
            busy = {w.pipe: w for w in self.workers if w.job is not None}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                job, worker_answer = worker.job, self.receive_reply(worker)
                assert job is not None
                if worker_answer is None:
                    tries[id(job)] = tries.get(id(job), 0) + 1
                    self.replace_worker(worker, job, tries[id(job)])
                    waiting.append(job)
                else:
                    worker.job, left = None, left - 1
                    yield worker_answer
        self.delete_sent_files()

    def assign_job(self, worker: Worker, job: Job) -> None:
        files = [str(self.write_tensors(t)) for t in (job.tensors, job.generic_model)]
        bare = replace(job, tensors=Tensors(), generic_model=Tensors())
        worker.job = job
        # one that died while idle is noticed where answers are read
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((bare, *files))

    def write_tensors(self, tensors: Tensors) -> Path:
        """The tensors in a file; the same object for many clients is written once."""
        if id(tensors) not in self.sent_files:
            self.file_number += 1
            path = self.client_store.scratch / "down" / f"{self.file_number}"
            write_atomically(path, encode_groups({"down": tensors}), durable=False)
            self.sent_files[id(tensors)] = tensors, path
        return self.sent_files[id(tensors)][1]

    def receive_reply(self, worker: Worker) -> Reply | None:
        """The reply of a worker; None if it died."""
        try:
            answer, path = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(answer, BaseException):
            raise answer
        with translate_disk_errors(Path(path)):
            groups, _ = decode_groups(Path(path).read_bytes(), finite=False)
            Path(path).unlink()
        reply: Reply = replace(answer, tensors=groups["up"], aside=groups["aside"])
        return reply

    def replace_worker(self, worker: Worker, job: Job, tries: int) -> None:
        """Replace a dead worker; a job that kills every worker ends the run."""
        worker.pipe.close()
        worker.process.join()
        if worker.process.exitcode == 1:  # Python's own: it ended before it could take a job
            raise EngineError(
                "a worker of the pool could not start, for the reason above; workers import the"
                ' script again, so it must call the pool below `if __name__ == "__main__":` and'
                " define models and algorithms above it, in a file (or use the serial engine)"
            )
        if tries >= MAX_ATTEMPTS:
            raise EngineError(
                f"client {job.client}, round {job.t}: {MAX_ATTEMPTS} workers died on this job"
                f" (exit code {worker.process.exitcode}); is there enough memory?"
                " fewer engine.workers need less"
            )
        self.workers[self.workers.index(worker)] = self.start_worker()

    def delete_sent_files(self) -> None:
        for _, path in self.sent_files.values():
            path.unlink(missing_ok=True)
        self.sent_files.clear()


def strip_data(plan: Plan) -> Plan:
    """The plan for workers, who open the data themselves."""
    empty = torch.empty(0)
    bare = replace(plan.federation, x=empty, y=empty, train={}, test={}, validation={})
    return replace(plan, federation=bare)


def pickle_plan(plan: Plan) -> bytes:
    """The plan for our own child processes."""
    try:
        return pickle.dumps(strip_data(plan))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EngineError(
            f"the pool engine cannot send this algorithm or model to its workers ({error});"
            " define it at the top level of a module, or use the serial engine"
        ) from None


# In the worker ------------------------------------------------------------------------------


def run_worker(
    pipe: connection.Connection, blob: bytes, shared: str, memories: str, scratch: str
) -> None:
    """A worker's life: jobs in, replies out, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    configure_worker_process()
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        federation = Federation.open(Path(shared))
    except FileNotFoundError:  # the driver was stopped while we started, and cleaned up
        return
    plan = replace(pickle.loads(blob), federation=federation)
    place = FolderClientStore(Path(memories), Path(scratch))
    inbox = TensorFileCache()
    while True:
        try:
            bare, tensors, average = pipe.recv()
            pipe.send(answer_job(plan, place, inbox, bare, tensors, average))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def answer_job(
    plan: Plan,
    place: FolderClientStore,
    inbox: TensorFileCache,
    bare: Job,
    tensors: str,
    average: str,
) -> tuple[Reply | BaseException, str]:
    """A reply and the file with its tensors, or what went wrong."""
    path = place.scratch / "up" / f"{os.getpid()}-{bare.kind}-{bare.t}-{bare.client.encode().hex()}"
    try:
        job = replace(bare, tensors=inbox.read(tensors), generic_model=inbox.read(average))
        reply = work(plan, job, place)
        write_atomically(
            path, encode_groups({"up": reply.tensors, "aside": reply.aside}), durable=False
        )
        return replace(reply, tensors=Tensors(), aside=Tensors()), str(path)
    except HeterophonyError as error:
        return type(error)(str(error)), ""
    except Exception as error:
        trace = traceback.format_exc()
        return EngineError(f"client {bare.client}, round {bare.t}: {error!r}\n{trace}"), ""


class TensorFileCache:
    """The last few files read: all clients of a round share them."""

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


def configure_worker_process() -> None:
    """As every worker of ours; and end with the parent."""
    configure_torch()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the fork server ends with the driver


def exit_with_parent() -> None:
    """End when the driver has ended, in the middle of whatever job, be it minutes long."""
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(0)


def configure_torch() -> None:
    """One torch thread; keep freed memory instead of returning it."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "mallopt"):  # glibc: else every step maps and unmaps its activations
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
