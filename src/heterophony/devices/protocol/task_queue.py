"""A device's tasks, from their arrival to the reply that the server has taken; one at a time.

Answers are messages to the server; bytes among them are chunks.
"""

from __future__ import annotations

from typing import NamedTuple

from ...core.errors import CodecError
from ...jobs.plan import Job
from . import job_codec
from .backoff import Patience
from .blob_cache import Pantry
from .chunks import Chunk
from .message_fields import Blob, line
from .messages import (
    Control,
    Done,
    Failed,
    Message,
    Task,
    Want,
)
from .reply_store import Shelf

Said = list[Message | bytes]


class Work(NamedTuple):
    """A task to be done now, and the job it stands for."""

    task: Task
    job: Job


class Desk:
    """Tasks that wait, the one that is done, and finished ones until nobody can ask for them."""

    def __init__(self, shelf: Shelf, limit: int, now: float) -> None:
        self.shelf, self.limit, self.pantry = shelf, limit, Pantry(limit)
        self.control: Control | None = None
        self.queue: dict[str, Task] = {}
        self.doing: Task | None = None
        self.failures: dict[str, Failed] = {}  # of this round
        self.announced = {task: Patience(now) for task in shelf.done}

    def stands(self, control: Control, now: float) -> Said:
        """What the server has gone past is let go: it has committed it, or does not wait."""
        before, self.control = self.control, control
        if before is None or (before.epoch, before.t) != (control.epoch, control.t):
            self.failures.clear()
        self.queue = {k: task for k, task in self.queue.items() if self.due(task.t)}
        for done in [d for d in self.shelf.done.values() if not self.due(d.t)]:
            self.drop(done.id)
        return self.wants(now)

    def due(self, t: int) -> bool:
        """Can the server want work of round ``t``? Memories that older work needs may be gone."""
        return self.control is not None and self.control.state != "ended" and t >= self.control.t

    def task(self, task: Task, now: float) -> Said:
        """A task arrives, perhaps again: what is done is announced, not done twice."""
        if not self.due(task.t):
            return []
        self.rejected(task.id, task.attempt - 1)  # given again: what there was is not wanted
        if task.id in self.shelf.done:
            self.announced[task.id] = Patience(now)
            return [self.shelf.done[task.id]]
        if task.id in self.failures:
            return [self.failures[task.id]]
        if max(task.tensors.size, task.average.size) > self.limit:
            why = f"its tensors are over this device's limit of {self.limit} bytes"
            return self.give_up(task, why, again=False)
        if self.doing is None or task.id != self.doing.id:
            self.queue[task.id] = task
        return self.wants(now)

    # Work -----------------------------------------------------------------------------------
    def next_work(self) -> Work | None:
        """The next task whose tensors are here, training first."""
        ready = [t for t in self.queue.values() if self.pantry.has(t.tensors, t.average)]
        if self.doing or not ready:
            return None
        task = self.queue.pop(min(ready, key=lambda t: (t.t, t.job != "train")).id)
        down, mean = (self.pantry.blobs[b.sha256] for b in (task.tensors, task.average))
        try:
            work = Work(task, job_codec.job_of(task, down, mean))
        except CodecError as error:
            self.give_up(task, error, again=False)  # told when the server asks again
            return None
        self.doing = task
        return work

    def finished(self, reply: bytes, seconds: float, now: float) -> Said:
        """The work is done: keep the reply, announce it, go on."""
        task = self.doing
        assert task is not None
        said: Said = []
        if self.due(task.t):
            done = Done(task.id, task.attempt, task.t, Blob.of(reply), seconds)
            self.shelf.put(done, reply)  # before anybody hears of it
            self.announced[task.id] = Patience(now)
            said = [done]
        self.doing = None
        return said + self.wants(now)

    def failed(self, why: object, again: bool, now: float) -> Said:
        """The work cannot be done, or not now."""
        task, self.doing = self.doing, None
        assert task is not None
        return self.give_up(task, why, again) + self.wants(now)

    def give_up(self, task: Task, why: object, again: bool) -> Said:
        """Until the server gives it again, this is the answer."""
        self.failures[task.id] = Failed(task.id, task.attempt, line(why), again)
        return [self.failures[task.id]]

    # Replies --------------------------------------------------------------------------------
    def wanted(self, want: Want, now: float) -> Said:
        """Chunks of a finished reply; who asks for them needs no announcement."""
        outgoing = self.shelf.outgoing(want.sha256)
        if outgoing is None:
            return []
        for task, patience in self.announced.items():
            if self.shelf.done[task].reply.sha256 == want.sha256:
                patience.renew(now)
        return [*outgoing.answer(want)]

    def taken(self, id: str) -> None:
        """Announced no more; but kept, as the server might die before its commit."""
        self.announced.pop(id, None)

    def rejected(self, id: str, attempt: int) -> None:
        """What came of the task in that attempt, or an earlier one, is not wanted."""
        if id in self.shelf.done and self.shelf.done[id].attempt <= attempt:
            self.drop(id)
        if id in self.failures and self.failures[id].attempt <= attempt:
            del self.failures[id]

    def drop(self, id: str) -> None:
        self.announced.pop(id, None)
        self.shelf.drop(id)

    # Blobs ----------------------------------------------------------------------------------
    def wants(self, now: float) -> Said:
        """Chunks to ask for: of the configuration, then of the tasks' tensors, in their order."""
        config = [self.control.config] if self.control else []
        needed = [b for task in self.queue.values() for b in (task.tensors, task.average)]
        return [*self.pantry.ask([*config, *needed], now)]

    def chunk(self, chunk: Chunk, now: float) -> Said:
        return self.wants(now) if self.pantry.take(chunk, now) else []

    # Saying it again ------------------------------------------------------------------------
    def again(self, now: float) -> Said:
        """After a new connection: all announcements, and what is on its way."""
        for patience in self.announced.values():
            patience.renew(now)
        return [*(self.shelf.done[task] for task in self.announced), *self.pantry.again()]

    def tick(self, now: float) -> Said:
        due = [self.shelf.done[task] for task, p in self.announced.items() if p.over(now)]
        return [*due, *self.pantry.overdue(now)]
