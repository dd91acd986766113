"""The engine whose workers are devices: jobs go out over MQTT, replies come back, sooner or later.

Without a deadline the server is patient: everybody can be asked, and a device that is away is
waited for, so the run has the bits of a simulation. With one, only those who are here are asked,
and a round closes when the deadline has passed and the quorum has answered. What comes before
round 0 and after the last is always waited for: everybody is measured once, and tells in the end
what it keeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty
from typing import Self

from ..core.algorithm import Reply
from ..core.errors import DivergedError, EngineError
from ..jobs.plan import Job, Plan
from .protocol.server_session import Hub
from .protocol.topics import Publish
from .reply_checks import Expected
from .transport.inbox import Event, Message
from .transport.link import Link

MOMENT = 0.05  # seconds between looks at the clock
Key = tuple[str, str, int]


class Fleet:
    """A hub and the link it speaks through."""

    def __init__(
        self,
        plan: Plan,
        hub: Hub,
        link: Link,
        expected: Expected,
        deadline: float | None,
        needed: Callable[[int], int],
        oldest: Callable[[], int],
        say: Callable[[str], None],
        look: Callable[[], None],
    ) -> None:
        self.plan, self.hub, self.link, self.expected = plan, hub, link, expected
        self.deadline, self.needed, self.oldest = deadline, needed, oldest
        self.say, self.look = say, look

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The link is not ours to close."""

    def present(self, clients: Sequence[str]) -> list[str]:
        if self.deadline is None:
            return list(clients)
        here = set[str]()
        while not here:
            pump(self.hub, self.link, self.say, self.look)
            here = set(self.hub.guests.present())
        return [c for c in clients if c in here]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        open_jobs: dict[Key, Job] = {(j.client, j.kind, j.turn): j for j in jobs}
        training = sum(j.kind == "train" for j in jobs)
        trained, begun = 0, time.monotonic()
        publish(self.hub, self.link, self.hub.submit(list(jobs), begun, self.oldest()))
        while open_jobs:
            for reply in self.hub.arrived():
                job = open_jobs.pop((reply.client, reply.kind, reply.turn), None)
                if job is not None:
                    trained += reply.kind == "train"
                    yield self.expected.weighed(reply, job)
            for lost in self.hub.given_up():
                open_jobs.pop((lost.job.client, lost.job.kind, lost.job.turn), None)
                self.lost(lost.job, lost.device, lost.why)
            if open_jobs and self.over(jobs, begun, trained, training):
                self.hub.abandon()
                return
            pump(self.hub, self.link, self.say, self.look)

    def over(self, jobs: Sequence[Job], begun: float, trained: int, training: int) -> bool:
        """Is the round to be closed without those who have not answered?"""
        ends = any(j.kind != "train" and j.t in (0, self.plan.rounds) for j in jobs)
        if self.deadline is None or ends or time.monotonic() - begun < self.deadline:
            return False
        return trained >= min(training, self.needed(training))

    def lost(self, job: Job, device: str, why: str) -> None:
        """With a deadline the round goes on without it, whatever a device says or sends."""
        where = f"device {device}, client {job.client}, round {job.t}: {why}"
        if self.deadline is not None:
            self.say(where)
        elif "NaN or infinity" in why:
            raise DivergedError(where)
        else:
            raise EngineError(f"{where}; mend it and resume: nothing is lost")


def pump(hub: Hub, link: Link, say: Callable[[str], None], look: Callable[[], None]) -> None:
    """Hear what has arrived, for a moment at most, say what there is to say, have a look."""
    try:
        item: Message | Event | None = link.inbox.get(timeout=MOMENT)
    except Empty:
        item = None
    while item is not None:
        now = time.monotonic()
        if isinstance(item, Message):
            publish(hub, link, hub.receive(item.topic, item.payload, now))
        elif item.kind == "connected":
            publish(hub, link, hub.connected(now))
        else:
            say(item.words)
        try:
            item = link.inbox.get_nowait()
        except Empty:
            item = None
    publish(hub, link, hub.tick(time.monotonic()))
    look()


def part(hub: Hub, link: Link, say: Callable[[str], None]) -> None:
    """Tell the devices that the run has ended; that takes a connection, so wait for one."""
    while not link.connected:
        pump(hub, link, say, look=lambda: None)  # how they stood at the end is written already
    publish(hub, link, hub.end())


def publish(hub: Hub, link: Link, messages: Sequence[Publish]) -> None:
    """Hand them over; what does not go through is said again later."""
    hub.sent([m for m in messages if link.publish(m.topic, m.payload, m.retain)])
