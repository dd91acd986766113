"""A device's tasks, from their arrival to the reply that the server has taken; one at a time.

Answers are messages to the server; bytes among them are chunks.
"""

from __future__ import annotations

from typing import NamedTuple

from ...core.errors import CodecError
from ...jobs.plan import Job
from . import job_codec
from .blob_cache import BlobCache
from .chunks import Chunk
from .message_fields import to_single_line
from .messages import BlobRef, Control, Done, Failed, Message, Task, Want
from .reply_store import ReplyStore
from .resend_timer import ResendTimer

OutgoingMessages = list[Message | bytes]


class ReadyTask(NamedTuple):
    """A task to be done now, and the job it stands for."""

    task: Task
    job: Job


class TaskQueue:
    """Tasks that wait, the one that is done, and finished ones until nobody can ask for them."""

    def __init__(self, shelf: ReplyStore, limit: int, now: float) -> None:
        self.reply_store, self.max_blob_bytes, self.blob_cache = shelf, limit, BlobCache(limit)
        self.control: Control | None = None
        self.waiting: dict[str, Task] = {}
        self.current: Task | None = None
        self.failures: dict[str, Failed] = {}  # of this round
        self.announcement_timers = {task: ResendTimer(now) for task in shelf.announcements}

    def handle_control(self, control: Control, now: float) -> OutgoingMessages:
        """What the server has gone past is let go: it has committed it, or does not wait."""
        before, self.control = self.control, control
        if before is None or (before.epoch, before.t) != (control.epoch, control.t):
            self.failures.clear()
        self.waiting = {k: task for k, task in self.waiting.items() if self.is_round_open(task.t)}
        for done in [
            d for d in self.reply_store.announcements.values() if not self.is_round_open(d.t)
        ]:
            self.drop_reply(done.id)
        return self.request_blobs(now)

    def is_round_open(self, t: int) -> bool:
        """Can the server want work of round ``t``? Memories that older work needs may be gone."""
        return self.control is not None and self.control.state != "ended" and t >= self.control.t

    def handle_task(self, task: Task, now: float) -> OutgoingMessages:
        """A task arrives, perhaps again: what is done is announced, not done twice."""
        if not self.is_round_open(task.t):
            return []
        self.handle_rejected(task.id, task.attempt - 1)  # given again: what there was is not wanted
        if task.id in self.reply_store.announcements:
            self.announcement_timers[task.id] = ResendTimer(now)
            return [self.reply_store.announcements[task.id]]
        if task.id in self.failures:
            return [self.failures[task.id]]
        if max(task.tensors.size, task.average.size) > self.max_blob_bytes:
            why = f"its tensors are over this device's limit of {self.max_blob_bytes} bytes"
            return self.record_failure(task, why, again=False)
        if self.current is None or task.id != self.current.id:
            self.waiting[task.id] = task
        return self.request_blobs(now)

    # Work -----------------------------------------------------------------------------------
    def take_next_task(self) -> ReadyTask | None:
        """The next task whose tensors are here, training first."""
        ready = [t for t in self.waiting.values() if self.blob_cache.has_all(t.tensors, t.average)]
        if self.current or not ready:
            return None
        task = self.waiting.pop(min(ready, key=lambda t: (t.t, t.job != "train")).id)
        down, mean = (self.blob_cache.blobs[b.sha256] for b in (task.tensors, task.average))
        try:
            work = ReadyTask(task, job_codec.make_job(task, down, mean))
        except CodecError as error:
            self.record_failure(task, error, again=False)  # told when the server asks again
            return None
        self.current = task
        return work

    def finish_current(self, reply: bytes, seconds: float, now: float) -> OutgoingMessages:
        """The work is done: keep the reply, announce it, go on."""
        task = self.current
        assert task is not None
        said: OutgoingMessages = []
        if self.is_round_open(task.t):
            done = Done(task.id, task.attempt, task.t, BlobRef.from_bytes(reply), seconds)
            self.reply_store.put(done, reply)  # before anybody hears of it
            self.announcement_timers[task.id] = ResendTimer(now)
            said = [done]
        self.current = None
        return said + self.request_blobs(now)

    def fail_current(self, why: object, again: bool, now: float) -> OutgoingMessages:
        """The work cannot be done, or not now."""
        task, self.current = self.current, None
        assert task is not None
        return self.record_failure(task, why, again) + self.request_blobs(now)

    def record_failure(self, task: Task, why: object, again: bool) -> OutgoingMessages:
        """Until the server gives it again, this is the answer."""
        self.failures[task.id] = Failed(task.id, task.attempt, to_single_line(why), again)
        return [self.failures[task.id]]

    # Replies --------------------------------------------------------------------------------
    def answer_want(self, want: Want, now: float) -> OutgoingMessages:
        """Chunks of a finished reply; who asks for them needs no announcement."""
        outgoing = self.reply_store.find_reply(want.sha256)
        if outgoing is None:
            return []
        for task, patience in self.announcement_timers.items():
            if self.reply_store.announcements[task].reply.sha256 == want.sha256:
                patience.reset(now)
        return [*outgoing.encode_wanted_chunks(want)]

    def handle_taken(self, id: str) -> None:
        """Announced no more; but kept, as the server might die before its commit."""
        self.announcement_timers.pop(id, None)

    def handle_rejected(self, id: str, attempt: int) -> None:
        """What came of the task in that attempt, or an earlier one, is not wanted."""
        if (
            id in self.reply_store.announcements
            and self.reply_store.announcements[id].attempt <= attempt
        ):
            self.drop_reply(id)
        if id in self.failures and self.failures[id].attempt <= attempt:
            del self.failures[id]

    def drop_reply(self, id: str) -> None:
        self.announcement_timers.pop(id, None)
        self.reply_store.drop(id)

    # Blobs ----------------------------------------------------------------------------------
    def request_blobs(self, now: float) -> OutgoingMessages:
        """Chunks to ask for: of the configuration, then of the tasks' tensors, in their order."""
        config = [self.control.config] if self.control else []
        needed = [b for task in self.waiting.values() for b in (task.tensors, task.average)]
        return [*self.blob_cache.request_missing([*config, *needed], now)]

    def handle_chunk(self, chunk: Chunk, now: float) -> OutgoingMessages:
        return self.request_blobs(now) if self.blob_cache.add_chunk(chunk, now) else []

    # Saying it again ------------------------------------------------------------------------
    def repeat_all(self, now: float) -> OutgoingMessages:
        """After a new connection: all announcements, and what is on its way."""
        for patience in self.announcement_timers.values():
            patience.reset(now)
        return [
            *(self.reply_store.announcements[task] for task in self.announcement_timers),
            *self.blob_cache.repeat_request(),
        ]

    def repeat_overdue(self, now: float) -> OutgoingMessages:
        due = [
            self.reply_store.announcements[task]
            for task, p in self.announcement_timers.items()
            if p.advance_if_due(now)
        ]
        return [*due, *self.blob_cache.repeat_overdue_request(now)]
