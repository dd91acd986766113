"""A device's tasks, from their arrival until the server has taken the reply; one runs at a time.

Methods return messages to the server; bytes among them are encoded chunks.
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
    """A task whose tensors have arrived, and its job."""

    task: Task
    job: Job


class TaskQueue:
    """Waiting tasks, the current one, and finished ones until the server cannot ask for them."""

    def __init__(self, *, reply_store: ReplyStore, max_blob_bytes: int, now: float) -> None:
        self.reply_store = reply_store
        self.max_blob_bytes = max_blob_bytes
        self.blob_cache = BlobCache(max_blob_bytes)
        self.control: Control | None = None
        self.waiting: dict[str, Task] = {}
        self.current: Task | None = None
        self.failures: dict[str, Failed] = {}  # of this round
        self.announcement_timers = {task: ResendTimer(now) for task in reply_store.announcements}

    def handle_control(self, control: Control, now: float) -> OutgoingMessages:
        """Drop tasks and replies of rounds that the server has left."""
        before, self.control = self.control, control
        if before is None or (before.epoch, before.t) != (control.epoch, control.t):
            self.failures.clear()
        self.waiting = {k: task for k, task in self.waiting.items() if self.is_round_open(task.t)}
        announced = self.reply_store.announcements.values()
        for done in [d for d in announced if not self.is_round_open(d.t)]:
            self.drop_reply(done.id)
        return self.request_blobs(now)

    def is_round_open(self, t: int) -> bool:
        """Return whether the server can ask for work of round ``t``.

        Work of earlier rounds may need memories that are deleted by now.
        """
        return self.control is not None and self.control.state != "ended" and t >= self.control.t

    def handle_task(self, task: Task, now: float) -> OutgoingMessages:
        """Queue a task; if it was finished before, announce its reply again."""
        if not self.is_round_open(task.t):
            return []
        self.handle_rejected(task.id, task.attempt - 1)  # a new attempt rejects the earlier ones
        if task.id in self.reply_store.announcements:
            self.announcement_timers[task.id] = ResendTimer(now)
            return [self.reply_store.announcements[task.id]]
        if task.id in self.failures:
            return [self.failures[task.id]]
        if max(task.tensors.size, task.average.size) > self.max_blob_bytes:
            why = f"its tensors are over this device's limit of {self.max_blob_bytes} bytes"
            return self.record_failure(task, why, again=True)
        if self.current is None or task.id != self.current.id:
            self.waiting[task.id] = task
        return self.request_blobs(now)

    # Work -----------------------------------------------------------------------------------
    def take_next_task(self) -> ReadyTask | None:
        """Start the next task whose tensors are here, training first; None if there is none."""
        ready = [t for t in self.waiting.values() if self.blob_cache.has_all(t.tensors, t.average)]
        if self.current or not ready:
            return None
        task = self.waiting.pop(min(ready, key=lambda t: (t.t, t.job != "train")).id)
        tensors, average = (self.blob_cache.blobs[b.sha256] for b in (task.tensors, task.average))
        try:
            ready_task = ReadyTask(task, job_codec.make_job(task, tensors, average))
        except CodecError as error:
            self.record_failure(task, error, again=True)  # sent when the server repeats the task
            return None
        self.current = task
        return ready_task

    def finish_current(self, reply: bytes, seconds: float, now: float) -> OutgoingMessages:
        """Store and announce the reply of the current task."""
        task = self.current
        assert task is not None
        out: OutgoingMessages = []
        if self.is_round_open(task.t):
            done = Done(task.id, task.attempt, task.t, BlobRef.from_bytes(reply), seconds)
            self.reply_store.put(done, reply)  # before it is announced
            self.announcement_timers[task.id] = ResendTimer(now)
            out = [done]
        self.current = None
        return out + self.request_blobs(now)

    def fail_current(self, why: object, again: bool, now: float) -> OutgoingMessages:
        """Report that the current task failed; ``again`` if another attempt can help."""
        task, self.current = self.current, None
        assert task is not None
        return self.record_failure(task, why, again) + self.request_blobs(now)

    def record_failure(self, task: Task, why: object, again: bool) -> OutgoingMessages:
        """Answer with this failure until the server assigns another attempt."""
        self.failures[task.id] = Failed(task.id, task.attempt, to_single_line(why), again)
        return [self.failures[task.id]]

    # Replies --------------------------------------------------------------------------------
    def answer_want(self, want: Want, now: float) -> OutgoingMessages:
        """Return chunks of a finished reply; a server that asks needs no announcement for now."""
        outgoing = self.reply_store.find_reply(want.sha256)
        if outgoing is None:
            return []
        for task, timer in self.announcement_timers.items():
            if self.reply_store.announcements[task].reply.sha256 == want.sha256:
                timer.reset(now)
        return [*outgoing.encode_wanted_chunks(want)]

    def handle_taken(self, id: str) -> None:
        """Stop announcing a reply, but keep it: the server might die before its commit."""
        self.announcement_timers.pop(id, None)

    def handle_rejected(self, id: str, attempt: int) -> None:
        """Drop the reply or failure of this attempt and of earlier ones."""
        done = self.reply_store.announcements.get(id)
        if done and done.attempt <= attempt:
            self.drop_reply(id)
        if id in self.failures and self.failures[id].attempt <= attempt:
            del self.failures[id]

    def drop_reply(self, id: str) -> None:
        self.announcement_timers.pop(id, None)
        self.reply_store.drop(id)

    # Blobs ----------------------------------------------------------------------------------
    def request_blobs(self, now: float) -> OutgoingMessages:
        """Request chunks of the configuration, then of the tasks' tensors in their order."""
        config = [self.control.config] if self.control else []
        needed = [b for task in self.waiting.values() for b in (task.tensors, task.average)]
        return [*self.blob_cache.request_missing([*config, *needed], now)]

    def handle_chunk(self, chunk: Chunk, now: float) -> OutgoingMessages:
        return self.request_blobs(now) if self.blob_cache.add_chunk(chunk, now) else []

    # Repeat ---------------------------------------------------------------------------------
    def repeat_all(self, now: float) -> OutgoingMessages:
        """Repeat all announcements and requests, after a new connection."""
        for timer in self.announcement_timers.values():
            timer.reset(now)
        return [
            *(self.reply_store.announcements[task] for task in self.announcement_timers),
            *self.blob_cache.repeat_request(),
        ]

    def repeat_overdue(self, now: float) -> OutgoingMessages:
        """Repeat announcements and requests that got no answer for a while."""
        due = [
            self.reply_store.announcements[task]
            for task, timer in self.announcement_timers.items()
            if timer.advance_if_due(now)
        ]
        return [*due, *self.blob_cache.repeat_overdue_request(now)]
