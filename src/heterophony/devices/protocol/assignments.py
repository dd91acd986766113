"""Open tasks, from the job to the reply that is taken: pulled, checked, given again or given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...core.algorithm import Reply
from ...core.errors import CodecError
from ...core.tensors import Tensors
from ...jobs.plan import Job
from . import job_codec
from .backoff import Patience
from .blob_transfer import Pull
from .chunks import Chunk, Outgoing, count
from .device_registry import Guest, Guests
from .message_fields import Blob, line
from .messages import (
    Done,
    Failed,
    Message,
    Rejected,
    Taken,
    Task,
    Want,
)

TRIES = 3  # that a task has before it is given up
Check = Callable[[Job, Reply], None]  # raises CodecError with words
Said = list[Message | bytes]  # to the device that spoke; bytes are chunks


class Lost(NamedTuple):
    """A job that was given up, by whose fault and why."""

    job: Job
    device: str
    why: str


@dataclass
class Open:
    """A task without a reply."""

    job: Job
    task: Task
    patience: Patience


class Assignments:
    """The tasks of a round, and what became of them."""

    def __init__(self, run: str, guests: Guests, check: Check, limit: int) -> None:
        self.run, self.guests, self.check, self.limit = run, guests, check, limit
        self.t: int | None = None  # nothing was asked for yet
        self.open: dict[str, Open] = {}
        self.blobs: dict[str, Outgoing] = {}
        self.taken: set[str] = set()
        self.replies: list[Reply] = []
        self.lost: list[Lost] = []

    # Giving ---------------------------------------------------------------------------------
    def give(self, jobs: Sequence[Job], t: int, now: float) -> None:
        """Tasks for these jobs, in this order."""
        if t != self.t:
            self.taken, self.t = set(), t
        if not self.open:
            self.blobs.clear()
            for guest in self.guests.known.values():
                guest.pulled.clear()
        put = dict[int, Blob]()  # by identity: what all clients get is encoded once
        for job in jobs:
            down, mean = (self.put(x, put) for x in (job.tensors, job.average))
            task = job_codec.task_of(self.run, job, down, mean)
            self.open[task.id] = Open(job, task, Patience(now))

    def put(self, tensors: Tensors, put: dict[int, Blob]) -> Blob:
        if id(tensors) not in put:
            outgoing = Outgoing.of(job_codec.encode_tensors(tensors))
            self.blobs[outgoing.blob.sha256] = outgoing
            put[id(tensors)] = outgoing.blob
        return put[id(tensors)]

    def abandon(self) -> None:
        """No reply to an open task is taken any more."""
        self.open.clear()
        self.blobs.clear()
        for guest in self.guests.known.values():
            guest.ready.clear()
            guest.pulling = None

    def of(self, device: str) -> list[Open]:
        """Open tasks of the clients on a device that is here."""
        here = [(o, *self.guests.of_client(o.task.client)) for o in self.open.values()]
        return [o for o, holder, guest in here if guest is not None and holder == device]

    def remind(self, device: str, guest: Guest, now: float) -> Said:
        """All that the device should know and do: it may have forgotten."""
        mine = self.of(device)
        for o in mine:
            o.patience.renew(now)
        return [*(o.task for o in mine), *(guest.pulling[1].again() if guest.pulling else [])]

    def tick(self, device: str, guest: Guest, now: float) -> Said:
        """What to say again, after a silence."""
        tasks = [o.task for o in self.of(device) if o.patience.over(now)]
        return [*tasks, *(guest.pulling[1].overdue(now) if guest.pulling else [])]

    def wanted(self, device: str, want: Want) -> Said:
        """Chunks of a blob that belongs to one of the device's own tasks."""
        own = {b.sha256 for o in self.of(device) for b in (o.task.tensors, o.task.average)}
        if want.sha256 not in own:
            return []
        outgoing = self.blobs[want.sha256]
        self.guests.known[device].pulls(want, last=count(outgoing.blob) - 1)
        return [*outgoing.answer(want)]

    # Taking ---------------------------------------------------------------------------------
    def own(self, device: str, said: Done | Failed) -> Open | None:
        """The open task it is about; nobody speaks for a client that another device holds."""
        found = self.open.get(said.id)
        if found and self.guests.holders.get(found.task.client) != device:
            raise CodecError(f"it spoke for client {found.task.client!r}, which it does not hold")
        return found

    def done(self, device: str, guest: Guest, done: Done, now: float) -> Said:
        """A reply is there: pull it, one of a device after the other."""
        found = self.own(device, done)
        if found is None:
            return self.closed(done)
        if done.attempt < found.task.attempt:
            return []  # of an attempt that was judged already
        if (size := done.reply.size) > self.limit:
            return self.reject(device, found, f"{size} bytes, over the limit of {self.limit}", now)
        found.patience.renew(now)
        has = (found.task.tensors.sha256, found.task.average.sha256)
        guest.pulled |= dict.fromkeys(has, True)
        if guest.pulling and guest.pulling[0].id == done.id:
            if guest.pulling[0].reply == done.reply:
                return []
            guest.pulling = None  # it has made another reply: the old one is no more
        guest.ready[done.id] = done
        return self.pull(guest, now)

    def closed(self, done: Done) -> Said:
        """To a reply that nobody waits for: taken before, or late; or asked for later again."""
        if done.id in self.taken:
            return [Taken(done.id)]
        if self.t is not None and done.t < self.t:
            return [Rejected(done.id, done.attempt, f"round {done.t} is over")]
        return []  # a server that was just restarted will ask for it

    def pull(self, guest: Guest, now: float) -> Said:
        """Begin with the next reply that is ready, unless one is on its way and still due."""
        if guest.pulling and guest.pulling[0].id not in self.open:
            guest.pulling = None
        while guest.pulling is None and guest.ready:
            done = guest.ready.pop(next(iter(guest.ready)))
            if done.id in self.open:
                guest.pulling = done, Pull(done.reply, self.limit, now)
                return [*guest.pulling[1].ask()]
        return []

    def chunk(self, device: str, guest: Guest, chunk: Chunk, now: float) -> Said:
        """A piece of a reply; the last one decides."""
        if guest.pulling is None or not guest.pulling[1].take(chunk, now):
            return []
        done, pull = guest.pulling
        found = self.open.get(done.id)
        if found is None:  # given up meanwhile
            return self.pull(guest, now)
        found.patience.renew(now)
        content = pull.incoming.content()
        if content is None and pull.incoming.spoiled < TRIES:
            return [*pull.ask()]
        guest.pulling = None
        return self.judge(device, found, done, content, now) + self.pull(guest, now)

    def judge(
        self, device: str, found: Open, done: Done, content: bytes | None, now: float
    ) -> Said:
        try:
            if content is None:
                raise CodecError("the reply is not what its sha256 says")
            reply = job_codec.decode_reply(content, found.task, done.seconds)
            self.check(found.job, reply)
        except CodecError as error:
            return self.reject(device, found, str(error), now)
        self.replies.append(reply)
        self.guests.ledger.took(device, done.seconds)
        self.taken.add(done.id)
        del self.open[done.id]
        return [Taken(done.id)]

    def reject(self, device: str, found: Open, why: str, now: float) -> Said:
        told = Rejected(found.task.id, found.task.attempt, line(why))
        return [told, *self.blame(device, found, why, now)]

    def failed(self, device: str, failed: Failed, now: float) -> Said:
        found = self.own(device, failed)
        if found is None or failed.attempt < found.task.attempt:
            return []
        return self.blame(device, found, failed.why, now, failed.again)

    def blame(self, device: str, found: Open, why: str, now: float, again: bool = True) -> Said:
        """Count it, and give the task again, until it has had its tries."""
        job = found.job
        where = f"client {job.client}, round {job.t}, {job.kind}"
        self.guests.ledger.refused(device, f"{where}: {why}")
        tries = found.task.attempt + 1
        if again and tries < TRIES:
            found.task = replace(found.task, attempt=tries)
            found.patience.renew(now)
            return [found.task]
        self.lost.append(Lost(job, device, line(why)))
        del self.open[found.task.id]
        return []
