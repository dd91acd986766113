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
from ..core.files import disk, write
from ..core.tensors import Tensors
from ..data.federation import Federation
from ..jobs.client_store import Place
from ..jobs.plan import Job, Plan, work
from .base import in_order

CONTEXT = multiprocessing.get_context("forkserver")
TRIES = 3


def warm(*preload: str) -> None:
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

    def __init__(self, plan: Plan, place: Place, workers: int) -> None:
        self.plan, self.place, self.count = plan, place, workers
        self.workers: list[Worker] = []
        self.sent: dict[int, tuple[Tensors, Path]] = {}  # by identity; holds what it names
        self.number = 0

    def __enter__(self) -> Self:
        warm()
        shared = self.place.scratch / "data"
        self.plan.federation.save(shared)
        blob = portable(self.plan)
        self.start = (blob, str(shared), str(self.place.memories), str(self.place.scratch))
        try:
            for _ in range(self.count):
                self.workers.append(self.hire())
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

    def hire(self) -> Worker:
        """A new process at work."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=serve, args=(theirs, *self.start), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)

    def present(self, clients: Sequence[str]) -> list[str]:
        return list(clients)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        waiting, tries = in_order(jobs)[::-1], dict[int, int]()
        left = len(jobs)
        while left:
            for worker in self.workers:
                if worker.job is None and waiting:
                    self.give(worker, waiting.pop())
            busy = {w.pipe: w for w in self.workers if w.job is not None}
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                job, worker_answer = worker.job, self.answer(worker)
                assert job is not None
                if worker_answer is None:
                    tries[id(job)] = tries.get(id(job), 0) + 1
                    self.bury(worker, job, tries[id(job)])
                    waiting.append(job)
                else:
                    worker.job, left = None, left - 1
                    yield worker_answer
        self.sweep()

    def give(self, worker: Worker, job: Job) -> None:
        files = [str(self.put(t)) for t in (job.tensors, job.average)]
        bare = replace(job, tensors=Tensors(), average=Tensors())
        worker.job = job
        # one that died while idle is noticed where answers are read
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((bare, *files))

    def put(self, tensors: Tensors) -> Path:
        """The tensors in a file; the same object for many clients is written once."""
        if id(tensors) not in self.sent:
            self.number += 1
            path = self.place.scratch / "down" / f"{self.number}"
            write(path, encode_groups({"down": tensors}), durable=False)
            self.sent[id(tensors)] = tensors, path
        return self.sent[id(tensors)][1]

    def answer(self, worker: Worker) -> Reply | None:
        """The reply of a worker; None if it died."""
        try:
            answer, path = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None
        if isinstance(answer, BaseException):
            raise answer
        with disk(Path(path)):
            groups, _ = decode_groups(Path(path).read_bytes(), finite=False)
            Path(path).unlink()
        reply: Reply = replace(answer, tensors=groups["up"], aside=groups["aside"])
        return reply

    def bury(self, worker: Worker, job: Job, tries: int) -> None:
        """Replace a dead worker; a job that kills every worker ends the run."""
        worker.pipe.close()
        worker.process.join()
        if worker.process.exitcode == 1:  # Python's own: it ended before it could take a job
            raise EngineError(
                "a worker of the pool could not start, for the reason above; workers import the"
                ' script again, so it must call the pool below `if __name__ == "__main__":` and'
                " define models and algorithms above it, in a file (or use the serial engine)"
            )
        if tries >= TRIES:
            raise EngineError(
                f"client {job.client}, round {job.t}: {TRIES} workers died on this job"
                f" (exit code {worker.process.exitcode}); is there enough memory?"
                " fewer engine.workers need less"
            )
        self.workers[self.workers.index(worker)] = self.hire()

    def sweep(self) -> None:
        for _, path in self.sent.values():
            path.unlink(missing_ok=True)
        self.sent.clear()


def without_data(plan: Plan) -> Plan:
    """The plan for workers, who open the data themselves."""
    empty = torch.empty(0)
    bare = replace(plan.federation, x=empty, y=empty, train={}, test={}, validation={})
    return replace(plan, federation=bare)


def portable(plan: Plan) -> bytes:
    """The plan for our own child processes."""
    try:
        return pickle.dumps(without_data(plan))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EngineError(
            f"the pool engine cannot send this algorithm or model to its workers ({error});"
            " define it at the top level of a module, or use the serial engine"
        ) from None


# In the worker ------------------------------------------------------------------------------


def serve(
    pipe: connection.Connection, blob: bytes, shared: str, memories: str, scratch: str
) -> None:
    """A worker's life: jobs in, replies out, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    settle()
    threading.Thread(target=outlived, daemon=True).start()
    try:
        federation = Federation.open(Path(shared))
    except FileNotFoundError:  # the driver was stopped while we started, and cleaned up
        return
    plan = replace(pickle.loads(blob), federation=federation)
    place = Place(Path(memories), Path(scratch))
    inbox = Inbox()
    while True:
        try:
            bare, tensors, average = pipe.recv()
            pipe.send(answered(plan, place, inbox, bare, tensors, average))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def answered(
    plan: Plan, place: Place, inbox: Inbox, bare: Job, tensors: str, average: str
) -> tuple[Reply | BaseException, str]:
    """A reply and the file with its tensors, or what went wrong."""
    path = place.scratch / "up" / f"{os.getpid()}-{bare.kind}-{bare.t}-{bare.client.encode().hex()}"
    try:
        job = replace(bare, tensors=inbox.read(tensors), average=inbox.read(average))
        reply = work(plan, job, place)
        write(path, encode_groups({"up": reply.tensors, "aside": reply.aside}), durable=False)
        return replace(reply, tensors=Tensors(), aside=Tensors()), str(path)
    except HeterophonyError as error:
        return type(error)(str(error)), ""
    except Exception as error:
        trace = traceback.format_exc()
        return EngineError(f"client {bare.client}, round {bare.t}: {error!r}\n{trace}"), ""


class Inbox:
    """The last few files read: all clients of a round share them."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.files = size, OrderedDict[str, Tensors]()

    def read(self, path: str) -> Tensors:
        if path not in self.files:
            with disk(Path(path)):
                self.files[path] = decode_groups(Path(path).read_bytes(), finite=False)[0]["down"]
            while len(self.files) > self.size:
                self.files.popitem(last=False)
        self.files.move_to_end(path)
        return self.files[path]


def settle() -> None:
    """As every worker of ours; and end with the parent."""
    settle_torch()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the fork server ends with the driver


def outlived() -> None:
    """End when the driver has ended, in the middle of whatever job, be it minutes long."""
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(0)


def settle_torch() -> None:
    """One torch thread; keep freed memory instead of returning it."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "mallopt"):  # glibc: else every step maps and unmaps its activations
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
