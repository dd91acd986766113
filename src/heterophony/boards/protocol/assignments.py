"""The server's tasks of a round: assigned, their replies pulled and checked, retried or given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...core.algorithm import Reply
from ...core.errors import CodecError, HeterophonyError, NotFiniteError
from ...core.tensors import Tensors
from ...jobs.plan import Job
from . import job_codec
from .blobs import BlobTransfer, Chunk, OutgoingBlob, ResendTimer, count_chunks
from .message_fields import to_single_line
from .messages import BlobRef, Done, Failed, Message, Rejected, Taken, Task, Want
from .registry import DeviceRegistry, RegisteredDevice

MAX_ATTEMPTS = 3  # before a task is given up
MESSAGES_PER_TASK = 2  # besides those for chunks: Done, and its repetition
ReplyCheck = Callable[[Job, Reply], None]  # raises CodecError with the reason for a refusal
ReplyLimit = Callable[[Job], int]  # returns the most bytes that the reply to a job can have
OutgoingMessages = list[Message | bytes]  # to one device; bytes are encoded chunks


class LostJob(NamedTuple):
    """A job that was given up, the device that had it, and why."""

    job: Job
    device: str
    why: str
    diverged: bool  # training left the finite numbers


@dataclass
class OpenTask:
    """A task without an accepted reply."""

    job: Job
    task: Task
    resend_timer: ResendTimer


class Assignments:
    """The open tasks of a round, and the replies and losses so far."""

    def __init__(
        self,
        *,
        run: str,
        registry: DeviceRegistry,
        check_reply: ReplyCheck,
        limit_reply_bytes: ReplyLimit,
    ) -> None:
        self.run = run
        self.registry = registry
        self.check_reply = check_reply
        self.limit_reply_bytes = limit_reply_bytes
        self.t: int | None = None  # None before the first round
        self.open_tasks: dict[str, OpenTask] = {}
        self.outgoing_blobs: dict[str, OutgoingBlob] = {}
        self.taken_ids: set[str] = set()
        self.replies: list[Reply] = []
        self.lost_jobs: list[LostJob] = []
        self.requested: list[tuple[str, int]] = []  # device and bytes of messages we asked for

    # Assign tasks ---------------------------------------------------------------------------
    def assign_jobs(self, jobs: Sequence[Job], t: int, now: float) -> None:
        """Open tasks for these jobs, in this order."""
        if t != self.t:
            self.taken_ids, self.t = set(), t
        if not self.open_tasks:
            self.outgoing_blobs.clear()
            for record in self.registry.devices.values():
                record.requested_blobs.clear()
                record.furthest_chunks.clear()
        encoded = dict[int, BlobRef]()  # by identity: tensors that all clients get are encoded once
        for job in jobs:
            tensors, average = (self.add_blob(x, encoded) for x in (job.tensors, job.generic_model))
            task = job_codec.make_task(self.run, job, tensors, average)
            self.open_tasks[task.id] = OpenTask(job, task, ResendTimer(now))
        self.give_up_tasks_of_shut_out_devices()

    def give_up_tasks_of_shut_out_devices(self) -> None:
        """Give up the tasks of devices that are shut out: they will not come back."""
        for open_task in list(self.open_tasks.values()):
            device = self.registry.device_of_client.get(open_task.task.client, "")
            if why := self.registry.shut_out.get(device):
                self.lost_jobs.append(LostJob(open_task.job, device, why, diverged=False))
                del self.open_tasks[open_task.task.id]

    def add_blob(self, tensors: Tensors, encoded: dict[int, BlobRef]) -> BlobRef:
        if id(tensors) not in encoded:
            outgoing = OutgoingBlob.from_bytes(job_codec.encode_tensors(tensors))
            self.outgoing_blobs[outgoing.blob.sha256] = outgoing
            encoded[id(tensors)] = outgoing.blob
        return encoded[id(tensors)]

    def abandon_open_tasks(self) -> None:
        """Accept no more replies to open tasks."""
        self.open_tasks.clear()
        self.outgoing_blobs.clear()
        for record in self.registry.devices.values():
            record.ready_replies.clear()
            record.current_transfer = None

    def list_open_tasks(self, device: str) -> list[OpenTask]:
        """Return the open tasks of the clients on a device, if it is connected."""
        found = [(o, *self.registry.find_device(o.task.client)) for o in self.open_tasks.values()]
        return [o for o, holder, record in found if record is not None and holder == device]

    def repeat_all(self, device: str, record: RegisteredDevice, now: float) -> OutgoingMessages:
        """Repeat all tasks and requests to a device that may have forgotten them."""
        tasks = self.list_open_tasks(device)
        for open_task in tasks:
            open_task.resend_timer.reset(now)
        requests = record.current_transfer[1].repeat_request() if record.current_transfer else []
        return [*(open_task.task for open_task in tasks), *requests]

    def repeat_overdue(self, device: str, record: RegisteredDevice, now: float) -> OutgoingMessages:
        """Repeat tasks and requests that got no answer for a while."""
        tasks = [o.task for o in self.list_open_tasks(device) if o.resend_timer.advance_if_due(now)]
        if record.current_transfer is None:
            return [*tasks]
        return [*tasks, *record.current_transfer[1].repeat_overdue_request(now)]

    def answer_want(self, device: str, want: Want) -> OutgoingMessages:
        """Return the wanted chunks, if they belong to one of the device's own tasks."""
        own = {
            b.sha256 for o in self.list_open_tasks(device) for b in (o.task.tensors, o.task.average)
        }
        if want.sha256 not in own:
            return []
        outgoing = self.outgoing_blobs[want.sha256]
        self.registry.stats.timeline.record_want(device, self.registry.stats.now)
        record = self.registry.devices[device]
        sent_before = record.requested_blobs.get(want.sha256, False)
        if record.record_want(want, last=count_chunks(outgoing.blob) - 1):
            self.requested.append((device, 0))
        if record.requested_blobs[want.sha256] and not sent_before:
            self.record_blob("sent", device, outgoing.blob, round=self.t)
        return [*outgoing.encode_wanted_chunks(want)]

    def record_blob(self, kind: str, device: str, blob: BlobRef, **details: Any) -> None:
        """Record in the journal that tensors went to a device, or a reply came from it."""
        digest = blob.sha256[:16]
        self.registry.stats.record_fact(kind, device, bytes=blob.size, sha256=digest, **details)

    # Pull and check replies -----------------------------------------------------------------
    def find_own_task(self, device: str, message: Done | Failed) -> OpenTask | None:
        """Return the open task of a message; refuse one for a client that another device holds."""
        open_task = self.open_tasks.get(message.id)
        if open_task and self.registry.device_of_client.get(open_task.task.client) != device:
            raise CodecError(
                f"it sent a message for client {open_task.task.client!r}, which it does not hold"
            )
        return open_task

    def handle_done(
        self, device: str, record: RegisteredDevice, done: Done, now: float
    ) -> OutgoingMessages:
        """Pull the announced reply; a device's replies are pulled one after the other."""
        open_task = self.find_own_task(device, done)
        if open_task is None:
            return self.answer_closed_task(done)
        if done.attempt < open_task.task.attempt:
            return []  # that attempt was rejected already
        if (size := done.reply.size) > (limit := self.limit_reply_bytes(open_task.job)):
            why = f"{size} bytes, over the limit of {limit}"
            return self.reject_reply(device, open_task, why, now)
        open_task.resend_timer.reset(now)
        self.registry.stats.timeline.record_done(device, done.id, now)
        task = open_task.task
        record.requested_blobs |= dict.fromkeys((task.tensors.sha256, task.average.sha256), True)
        if record.current_transfer and record.current_transfer[0].id == done.id:
            if record.current_transfer[0].reply == done.reply:
                return []
            record.current_transfer = None  # the device replaced the reply that was being pulled
        record.ready_replies[done.id] = done
        return self.start_next_transfer(record, now)

    def answer_closed_task(self, done: Done) -> OutgoingMessages:
        """Answer a reply to no open task: it was taken, is too late, or is needed later."""
        if done.id in self.taken_ids:
            return [Taken(done.id)]
        if self.t is not None and done.t < self.t:
            return [Rejected(done.id, done.attempt, f"round {done.t} is over")]
        return []  # a restarted server will assign this task again

    def start_next_transfer(self, record: RegisteredDevice, now: float) -> OutgoingMessages:
        """Start pulling the next ready reply, unless one of an open task is being pulled."""
        if record.current_transfer and record.current_transfer[0].id not in self.open_tasks:
            record.current_transfer = None
        while record.current_transfer is None and record.ready_replies:
            done = record.ready_replies.pop(next(iter(record.ready_replies)))
            if done.id in self.open_tasks:
                limit = self.limit_reply_bytes(self.open_tasks[done.id].job)
                transfer = BlobTransfer(done.reply, limit, now)
                record.current_transfer = done, transfer
                return [*transfer.request_next()]
        return []

    def handle_chunk(
        self, device: str, record: RegisteredDevice, chunk: Chunk, now: float
    ) -> OutgoingMessages:
        """Add a chunk of a reply; after the last one, accept or reject the reply."""
        if record.current_transfer is None or not record.current_transfer[1].add_chunk(chunk, now):
            return []
        self.requested.append((device, len(chunk.data)))
        done, transfer = record.current_transfer
        open_task = self.open_tasks.get(done.id)
        if open_task is None:  # given up meanwhile
            return self.start_next_transfer(record, now)
        open_task.resend_timer.reset(now)
        content = transfer.incoming.assemble()
        if content is None and transfer.incoming.digest_failures < MAX_ATTEMPTS:
            return [*transfer.request_next()]
        record.current_transfer = None
        answer = self.accept_or_reject(device, open_task, done, content, now)
        return answer + self.start_next_transfer(record, now)

    def accept_or_reject(
        self, device: str, open_task: OpenTask, done: Done, content: bytes | None, now: float
    ) -> OutgoingMessages:
        try:
            if content is None:
                raise CodecError("the reply does not have its announced sha256")
            reply = job_codec.decode_reply(content, open_task.task, done.seconds)
            self.check_reply(open_task.job, reply)
        except CodecError as error:
            diverged = isinstance(error, NotFiniteError)
            return self.reject_reply(device, open_task, str(error), now, diverged)
        except HeterophonyError:  # of the server itself: a full disk, or a request to stop
            raise
        except Exception as error:  # no reply ends the run, whatever it holds
            return self.reject_reply(device, open_task, describe_unexpected_error(error), now)
        self.replies.append(reply)
        self.registry.stats.record_taken_reply(device, open_task.task, done)
        self.requested += [(device, 0)] * MESSAGES_PER_TASK
        task = open_task.task
        self.record_blob(
            "received", device, done.reply, round=task.t, client=task.client, job=task.job
        )
        self.taken_ids.add(done.id)
        del self.open_tasks[done.id]
        return [Taken(done.id)]

    def reject_reply(
        self, device: str, open_task: OpenTask, why: str, now: float, diverged: bool = False
    ) -> OutgoingMessages:
        task = open_task.task
        rejection = Rejected(task.id, task.attempt, to_single_line(why))
        retried = self.retry_or_give_up(device, open_task, why, now, diverged=diverged)
        return [rejection, *retried]

    def handle_failed(self, device: str, failed: Failed, now: float) -> OutgoingMessages:
        open_task = self.find_own_task(device, failed)
        if open_task is None or failed.attempt < open_task.task.attempt:
            return []
        # only a device whose training diverged says that another attempt cannot help
        return self.retry_or_give_up(
            device, open_task, failed.why, now, failed.again, diverged=not failed.again
        )

    def retry_or_give_up(
        self,
        device: str,
        open_task: OpenTask,
        why: str,
        now: float,
        again: bool = True,
        *,
        diverged: bool,
    ) -> OutgoingMessages:
        """Count the failure; assign the task again until its attempts are used up."""
        job = open_task.job
        where = f"client {job.client}, round {job.t}, {job.kind}"
        self.registry.stats.record_rejected_reply(device, f"{where}: {why}")
        attempt = open_task.task.attempt + 1
        if again and attempt < MAX_ATTEMPTS:
            open_task.task = replace(open_task.task, attempt=attempt)
            open_task.resend_timer.reset(now)
            return [open_task.task]
        self.lost_jobs.append(LostJob(job, device, to_single_line(why), diverged))
        del self.open_tasks[open_task.task.id]
        return []


def describe_unexpected_error(error: Exception) -> str:
    """Describe an error that no check foresaw, while a device's message was handled."""
    return f"it cannot be handled: {error!r}"
