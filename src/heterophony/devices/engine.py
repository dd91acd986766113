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
from .protocol.assignments import LostJob
from .protocol.server_session import ServerSession
from .protocol.topics import Publication
from .reply_checks import ReplyValidator
from .transport.inbox import ConnectionEvent, ReceivedMessage
from .transport.mqtt_transport import MqttTransport

POLL_SECONDS = 0.05  # seconds between looks at the clock
JobKey = tuple[str, str, int]


class DeviceEngine:
    """A hub and the link it speaks through."""

    def __init__(
        self,
        plan: Plan,
        hub: ServerSession,
        link: MqttTransport,
        expected: ReplyValidator,
        deadline: float | None,
        needed: Callable[[int], int],
        oldest: Callable[[], int],
        say: Callable[[str], None],
        look: Callable[[], None],
    ) -> None:
        self.plan, self.server_session, self.transport, self.reply_validator = (
            plan,
            hub,
            link,
            expected,
        )
        self.deadline, self.count_needed, self.find_oldest_round = deadline, needed, oldest
        self.say, self.update_status = say, look

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The link is not ours to close."""

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        if self.deadline is None:
            return list(clients)
        here = set[str]()
        while not here:
            process_messages(self.server_session, self.transport, self.say, self.update_status)
            here = set(self.server_session.registry.list_available_clients())
        return [c for c in clients if c in here]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        open_jobs: dict[JobKey, Job] = {(j.client, j.kind, j.turn): j for j in jobs}
        training = sum(j.kind == "train" for j in jobs)
        trained, begun = 0, time.monotonic()
        publish_all(
            self.server_session,
            self.transport,
            self.server_session.submit_jobs(list(jobs), begun, self.find_oldest_round()),
        )
        while open_jobs:
            for reply in self.server_session.take_replies():
                job = open_jobs.pop((reply.client, reply.kind, reply.turn), None)
                if job is not None:
                    trained += reply.kind == "train"
                    yield self.reply_validator.set_trusted_weight(reply, job)
            for lost in self.server_session.take_lost_jobs():
                open_jobs.pop((lost.job.client, lost.job.kind, lost.job.turn), None)
                self.handle_lost_job(lost)
            if open_jobs and self.is_round_over(jobs, begun, trained, training):
                self.server_session.abandon_open_tasks()
                return
            process_messages(self.server_session, self.transport, self.say, self.update_status)

    def is_round_over(self, jobs: Sequence[Job], begun: float, trained: int, training: int) -> bool:
        """Is the round to be closed without those who have not answered?"""
        ends = any(j.kind != "train" and j.t in (0, self.plan.rounds) for j in jobs)
        if self.deadline is None or ends or time.monotonic() - begun < self.deadline:
            return False
        return trained >= min(training, self.count_needed(training))

    def handle_lost_job(self, lost: LostJob) -> None:
        """With a deadline the round goes on without it, whatever a device says or sends."""
        client, t = lost.job.client, lost.job.t
        where = f"device {lost.device}, client {client}, round {t}: {lost.why}"
        if self.deadline is not None:
            self.say(where)
        elif lost.diverged:
            raise DivergedError(where)
        else:
            raise EngineError(f"{where}; mend it and resume: nothing is lost")


def process_messages(
    hub: ServerSession, link: MqttTransport, say: Callable[[str], None], look: Callable[[], None]
) -> None:
    """Hear what has arrived, for a moment at most, say what there is to say, have a look."""
    try:
        item: ReceivedMessage | ConnectionEvent | None = link.inbox.get(timeout=POLL_SECONDS)
    except Empty:
        item = None
    while item is not None:
        now = time.monotonic()
        if isinstance(item, ReceivedMessage):
            publish_all(hub, link, hub.receive(item.topic, item.payload, now))
        elif item.kind == "connected":
            publish_all(hub, link, hub.handle_connected(now))
        else:
            say(item.text)
        try:
            item = link.inbox.get_nowait()
        except Empty:
            item = None
    publish_all(hub, link, hub.tick(time.monotonic()))
    look()


def announce_end(hub: ServerSession, link: MqttTransport, say: Callable[[str], None]) -> None:
    """Tell the devices that the run has ended; that takes a connection, so wait for one."""
    while not link.connected:
        process_messages(
            hub, link, say, look=lambda: None
        )  # how they stood at the end is written already
    publish_all(hub, link, hub.end_run())


def publish_all(hub: ServerSession, link: MqttTransport, messages: Sequence[Publication]) -> None:
    """Hand them over; what does not go through is said again later."""
    hub.record_sent([m for m in messages if link.publish(m.topic, m.payload, m.retain)])
