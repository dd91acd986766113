"""A device's tasks, from their arrival until the server has taken the reply; one runs at a time.

Methods return messages to the server; bytes among them are encoded chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...core.errors import CodecError
from ...jobs.plan import Job
from . import blobs as chunks
from . import job_codec, messages, topics
from . import messages as framing
from .blobs import BlobCache, Chunk, ReplyStore, ResendTimer
from .message_fields import to_single_line
from .messages import (
    BlobRef,
    ClientSummary,
    Control,
    Done,
    Failed,
    Hello,
    Message,
    Metrics,
    Refused,
    Rejected,
    Status,
    Taken,
    Task,
    Want,
    Welcome,
)
from .topics import ParsedTopic, Publication

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


class DeviceSession:
    """One device in one run; ``session`` is a new id at each start of the device."""

    def __init__(
        self,
        *,
        run: str,
        device: str,
        session: str,
        reply_store: ReplyStore,
        max_blob_bytes: int,
        now: float,
    ) -> None:
        self.run, self.device, self.session = run, device, session
        self.tasks = TaskQueue(reply_store=reply_store, max_blob_bytes=max_blob_bytes, now=now)
        self.control: Control | None = None
        self.hello: Hello | None = None
        self.welcomed = False
        self.refusal_reason = ""  # why the server refuses this device
        self.last_rejection_reason = ""  # why it rejected the last reply
        self.presence_timer, self.hello_timer = ResendTimer(now), ResendTimer(now)

    # Called by the device -------------------------------------------------------------------
    @property
    def config(self) -> bytes | None:
        """The run's configuration file, once it has arrived."""
        return self.tasks.blob_cache.blobs.get(self.control.config.sha256) if self.control else None

    def introduce(
        self,
        version: str,
        clients: Sequence[ClientSummary],
        hardware: Mapping[str, str],
        now: float,
        folder_id: str = "",
    ) -> list[Publication]:
        """Tell the server which clients are here; possible once the configuration has arrived."""
        assert self.control is not None
        self.hello = Hello(
            session=self.session,
            epoch=self.control.epoch,
            version=version,
            config_sha256=self.control.config.sha256,
            clients=tuple(clients),
            hardware=hardware,
            home=folder_id,
        )
        self.welcomed, self.refusal_reason = False, ""
        return self.send_hello(now)

    def take_next_task(self) -> ReadyTask | None:
        """Start the next task that is ready; None while another one runs."""
        return self.tasks.take_next_task()

    def submit_reply(self, reply: bytes, seconds: float, now: float) -> list[Publication]:
        """Hand in the reply of the current task."""
        return self.address_to_server(self.tasks.finish_current(reply, seconds, now))

    def submit_failure(self, why: object, again: bool, now: float) -> list[Publication]:
        """Report that the current task failed; ``again`` if another attempt can help."""
        return self.address_to_server(self.tasks.fail_current(why, again, now))

    def report_metrics(self, values: Mapping[str, float]) -> list[Publication]:
        """Send numbers to show live."""
        return self.address_to_server([Metrics(values)])

    def make_status_publication(self, state: str) -> Publication:
        """Return the status ``here`` or ``gone``; the latter is also the last will."""
        topic = topics.make_device_topic(self.device, "status")
        payload = messages.encode_message(Status(state, self.session))
        return Publication(topic, framing.add_run(self.run, payload), retain=True)

    # Called for the network -----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """Repeat everything that the server may have missed."""
        self.presence_timer.reset(now)
        return [
            self.make_status_publication("here"),
            *self.send_hello(now),
            *self.address_to_server(self.tasks.repeat_all(now)),
        ]

    def tick(self, now: float) -> list[Publication]:
        """Repeat what got no answer for a while."""
        out = (
            [self.make_status_publication("here")]
            if self.presence_timer.advance_if_due(now)
            else []
        )
        hello = self.repeat_hello() if self.hello_timer.advance_if_due(now) else []
        return [*out, *hello, *self.address_to_server(self.tasks.repeat_overdue(now))]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message; ignore those that are damaged or not for this device."""
        try:
            address = topics.parse_topic(topic)
            run = address.run
            if address.device:
                run, payload = framing.split_run(payload)
            if run != self.run or address.device not in ("", self.device):
                return []
            return self.dispatch(address, payload, now)
        except CodecError:
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        if address.channel == "ctl":
            return self.handle_control(messages.decode_message(payload, Control), now)
        if address.channel == "down/chunk":
            return self.address_to_server(
                self.tasks.handle_chunk(chunks.decode_chunk(payload), now)
            )
        if address.channel == "down":
            return self.address_to_server(
                self.handle_message(messages.decode_message(payload, *messages.FROM_SERVER), now)
            )
        return []

    def handle_control(self, control: Control, now: float) -> list[Publication]:
        """Take over the state of the run; ignore one that is older than the last."""
        before = self.control
        if control.run != self.run or (before and rank_control(control) < rank_control(before)):
            return []
        self.control = control
        out = self.address_to_server(self.tasks.handle_control(control, now))
        if before is None or before.epoch != control.epoch:  # a new start of the server
            self.welcomed, self.refusal_reason = False, ""
            out += self.send_hello(now)
        return out

    def handle_message(self, message: Message, now: float) -> list[Message | bytes]:
        match message:
            case Welcome(session, epoch) if self.is_for_this_session(session, epoch):
                self.welcomed, self.refusal_reason = True, ""
            case Refused(session, epoch, why) if (
                self.is_for_this_session(session, epoch) and not self.welcomed
            ):
                self.refusal_reason = why
            case Task() if self.hello and message.client in {c.name for c in self.hello.clients}:
                return self.tasks.handle_task(message, now)
            case Want():
                return self.tasks.answer_want(message, now)
            case Taken(id):
                self.tasks.handle_taken(id)
            case Rejected(id, attempt, why):
                self.last_rejection_reason = why
                self.tasks.handle_rejected(id, attempt)
        return []

    def is_for_this_session(self, session: str, epoch: int) -> bool:
        """Return whether an answer belongs to this start of the device and of the server."""
        current = self.control.epoch if self.control else None
        return (session, epoch) == (self.session, current)

    # Publish --------------------------------------------------------------------------------
    def send_hello(self, now: float) -> list[Publication]:
        self.hello_timer.reset(now)
        return self.repeat_hello()

    def repeat_hello(self) -> list[Publication]:
        """Return the Hello as long as it is not answered."""
        if self.hello is None or self.control is None or self.welcomed or self.refusal_reason:
            return []
        return self.address_to_server([replace(self.hello, epoch=self.control.epoch)])

    def address_to_server(self, items: Iterable[Message | bytes]) -> list[Publication]:
        """Return publications to the server; bytes are encoded chunks."""
        up, chunk = (topics.make_device_topic(self.device, c) for c in ("up", "up/chunk"))
        return [
            Publication(chunk, framing.add_run(self.run, item))
            if isinstance(item, bytes)
            else Publication(up, framing.add_run(self.run, messages.encode_message(item)))
            for item in items
        ]


def rank_control(control: Control) -> tuple[int, int, int]:
    """Return a key that sorts Control messages in the order in which servers send them."""
    return control.epoch, control.t, messages.RUN_STATES.index(control.state)
