"""Open tasks, from the job to the reply that is taken: pulled, checked, given again or given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...core.algorithm import Reply
from ...core.errors import CodecError, NotFiniteError
from ...core.tensors import Tensors
from ...jobs.plan import Job
from . import job_codec
from .blob_transfer import BlobTransfer
from .chunks import Chunk, OutgoingBlob, count_chunks
from .device_registry import DeviceRegistry, RegisteredDevice
from .message_fields import to_single_line
from .messages import BlobRef, Done, Failed, Message, Rejected, Taken, Task, Want
from .resend_timer import ResendTimer

MAX_ATTEMPTS = 3  # that a task has before it is given up
ReplyCheck = Callable[[Job, Reply], None]  # raises CodecError with words
OutgoingMessages = list[Message | bytes]  # to the device that spoke; bytes are chunks


class LostJob(NamedTuple):
    """A job that was given up, by whose fault and why."""

    job: Job
    device: str
    why: str
    diverged: bool  # did training leave the finite numbers? Then trying again is no use


@dataclass
class OpenTask:
    """A task without a reply."""

    job: Job
    task: Task
    resend_timer: ResendTimer


class Assignments:
    """The tasks of a round, and what became of them."""

    def __init__(self, run: str, guests: DeviceRegistry, check: ReplyCheck, limit: int) -> None:
        self.run, self.registry, self.check_reply, self.max_reply_bytes = run, guests, check, limit
        self.t: int | None = None  # nothing was asked for yet
        self.open_tasks: dict[str, OpenTask] = {}
        self.outgoing_blobs: dict[str, OutgoingBlob] = {}
        self.taken_ids: set[str] = set()
        self.replies: list[Reply] = []
        self.lost_jobs: list[LostJob] = []

    # Giving ---------------------------------------------------------------------------------
    def assign_jobs(self, jobs: Sequence[Job], t: int, now: float) -> None:
        """Tasks for these jobs, in this order."""
        if t != self.t:
            self.taken_ids, self.t = set(), t
        if not self.open_tasks:
            self.outgoing_blobs.clear()
            for guest in self.registry.devices.values():
                guest.requested_blobs.clear()
        put = dict[int, BlobRef]()  # by identity: what all clients get is encoded once
        for job in jobs:
            down, mean = (self.add_blob(x, put) for x in (job.tensors, job.generic_model))
            task = job_codec.make_task(self.run, job, down, mean)
            self.open_tasks[task.id] = OpenTask(job, task, ResendTimer(now))

    def add_blob(self, tensors: Tensors, put: dict[int, BlobRef]) -> BlobRef:
        if id(tensors) not in put:
            outgoing = OutgoingBlob.from_bytes(job_codec.encode_tensors(tensors))
            self.outgoing_blobs[outgoing.blob.sha256] = outgoing
            put[id(tensors)] = outgoing.blob
        return put[id(tensors)]

    def abandon_open_tasks(self) -> None:
        """No reply to an open task is taken any more."""
        self.open_tasks.clear()
        self.outgoing_blobs.clear()
        for guest in self.registry.devices.values():
            guest.ready_replies.clear()
            guest.current_transfer = None

    def list_open_tasks(self, device: str) -> list[OpenTask]:
        """Open tasks of the clients on a device that is here."""
        here = [(o, *self.registry.find_device(o.task.client)) for o in self.open_tasks.values()]
        return [o for o, holder, guest in here if guest is not None and holder == device]

    def repeat_all(self, device: str, guest: RegisteredDevice, now: float) -> OutgoingMessages:
        """All that the device should know and do: it may have forgotten."""
        mine = self.list_open_tasks(device)
        for o in mine:
            o.resend_timer.reset(now)
        return [
            *(o.task for o in mine),
            *(guest.current_transfer[1].repeat_request() if guest.current_transfer else []),
        ]

    def repeat_overdue(self, device: str, guest: RegisteredDevice, now: float) -> OutgoingMessages:
        """What to say again, after a silence."""
        tasks = [o.task for o in self.list_open_tasks(device) if o.resend_timer.advance_if_due(now)]
        return [
            *tasks,
            *(
                guest.current_transfer[1].repeat_overdue_request(now)
                if guest.current_transfer
                else []
            ),
        ]

    def answer_want(self, device: str, want: Want) -> OutgoingMessages:
        """Chunks of a blob that belongs to one of the device's own tasks."""
        own = {
            b.sha256 for o in self.list_open_tasks(device) for b in (o.task.tensors, o.task.average)
        }
        if want.sha256 not in own:
            return []
        outgoing = self.outgoing_blobs[want.sha256]
        self.registry.devices[device].record_want(want, last=count_chunks(outgoing.blob) - 1)
        return [*outgoing.encode_wanted_chunks(want)]

    # Taking ---------------------------------------------------------------------------------
    def find_own_task(self, device: str, said: Done | Failed) -> OpenTask | None:
        """The open task it is about; nobody speaks for a client that another device holds."""
        found = self.open_tasks.get(said.id)
        if found and self.registry.device_of_client.get(found.task.client) != device:
            raise CodecError(f"it spoke for client {found.task.client!r}, which it does not hold")
        return found

    def handle_done(
        self, device: str, guest: RegisteredDevice, done: Done, now: float
    ) -> OutgoingMessages:
        """A reply is there: pull it, one of a device after the other."""
        found = self.find_own_task(device, done)
        if found is None:
            return self.answer_closed_task(done)
        if done.attempt < found.task.attempt:
            return []  # of an attempt that was judged already
        if (size := done.reply.size) > self.max_reply_bytes:
            return self.reject_reply(
                device, found, f"{size} bytes, over the limit of {self.max_reply_bytes}", now
            )
        found.resend_timer.reset(now)
        has = (found.task.tensors.sha256, found.task.average.sha256)
        guest.requested_blobs |= dict.fromkeys(has, True)
        if guest.current_transfer and guest.current_transfer[0].id == done.id:
            if guest.current_transfer[0].reply == done.reply:
                return []
            guest.current_transfer = None  # it has made another reply: the old one is no more
        guest.ready_replies[done.id] = done
        return self.start_next_transfer(guest, now)

    def answer_closed_task(self, done: Done) -> OutgoingMessages:
        """To a reply that nobody waits for: taken before, or late; or asked for later again."""
        if done.id in self.taken_ids:
            return [Taken(done.id)]
        if self.t is not None and done.t < self.t:
            return [Rejected(done.id, done.attempt, f"round {done.t} is over")]
        return []  # a server that was just restarted will ask for it

    def start_next_transfer(self, guest: RegisteredDevice, now: float) -> OutgoingMessages:
        """Begin with the next reply that is ready, unless one is on its way and still due."""
        if guest.current_transfer and guest.current_transfer[0].id not in self.open_tasks:
            guest.current_transfer = None
        while guest.current_transfer is None and guest.ready_replies:
            done = guest.ready_replies.pop(next(iter(guest.ready_replies)))
            if done.id in self.open_tasks:
                guest.current_transfer = done, BlobTransfer(done.reply, self.max_reply_bytes, now)
                return [*guest.current_transfer[1].request_next()]
        return []

    def handle_chunk(
        self, device: str, guest: RegisteredDevice, chunk: Chunk, now: float
    ) -> OutgoingMessages:
        """A piece of a reply; the last one decides."""
        if guest.current_transfer is None or not guest.current_transfer[1].add_chunk(chunk, now):
            return []
        done, pull = guest.current_transfer
        found = self.open_tasks.get(done.id)
        if found is None:  # given up meanwhile
            return self.start_next_transfer(guest, now)
        found.resend_timer.reset(now)
        content = pull.incoming.assemble()
        if content is None and pull.incoming.digest_failures < MAX_ATTEMPTS:
            return [*pull.request_next()]
        guest.current_transfer = None
        return self.accept_or_reject(device, found, done, content, now) + self.start_next_transfer(
            guest, now
        )

    def accept_or_reject(
        self, device: str, found: OpenTask, done: Done, content: bytes | None, now: float
    ) -> OutgoingMessages:
        try:
            if content is None:
                raise CodecError("the reply is not what its sha256 says")
            reply = job_codec.decode_reply(content, found.task, done.seconds)
            self.check_reply(found.job, reply)
        except CodecError as error:
            diverged = isinstance(error, NotFiniteError)
            return self.reject_reply(device, found, str(error), now, diverged)
        self.replies.append(reply)
        self.registry.stats.record_taken_reply(device, done.seconds)
        self.taken_ids.add(done.id)
        del self.open_tasks[done.id]
        return [Taken(done.id)]

    def reject_reply(
        self, device: str, found: OpenTask, why: str, now: float, diverged: bool = False
    ) -> OutgoingMessages:
        told = Rejected(found.task.id, found.task.attempt, to_single_line(why))
        return [told, *self.retry_or_give_up(device, found, why, now, diverged=diverged)]

    def handle_failed(self, device: str, failed: Failed, now: float) -> OutgoingMessages:
        found = self.find_own_task(device, failed)
        if found is None or failed.attempt < found.task.attempt:
            return []
        # a device says that trying again is no use only where training diverged
        diverged = not failed.again
        return self.retry_or_give_up(device, found, failed.why, now, failed.again, diverged)

    def retry_or_give_up(
        self,
        device: str,
        found: OpenTask,
        why: str,
        now: float,
        again: bool = True,
        diverged: bool = False,
    ) -> OutgoingMessages:
        """Count it, and give the task again, until it has had its tries."""
        job = found.job
        where = f"client {job.client}, round {job.t}, {job.kind}"
        self.registry.stats.record_rejected_reply(device, f"{where}: {why}")
        tries = found.task.attempt + 1
        if again and tries < MAX_ATTEMPTS:
            found.task = replace(found.task, attempt=tries)
            found.resend_timer.reset(now)
            return [found.task]
        self.lost_jobs.append(LostJob(job, device, to_single_line(why), diverged))
        del self.open_tasks[found.task.id]
        return []
