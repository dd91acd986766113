"""Report what each device did in a round: times, bytes, and what its board measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty
from typing import Self

from ..core.algorithm import Reply, Server
from ..core.errors import CodecError, DivergedError, EngineError, HeterophonyError, NotFiniteError
from ..core.tensors import Tensors
from ..jobs.plan import Job, Plan
from ..runs.events import DeviceRound
from .broker.broker import Broker
from .protocol import topics
from .protocol.assignments import LostJob
from .protocol.server_session import ServerSession
from .protocol.topics import Publication
from .reply_checks import ReplyValidator
from .transport.mqtt_transport import MqttTransport
from .transport.queues import ReceivedMessage, compute_cost

Metrics = Mapping[str, float]
MAX_VALUE = 1e15  # a device may report anything


class RoundReport:
    """Takes the state of all devices when a round begins, and compares when it ends."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.bytes: dict[str, tuple[int, int]] = {}
        self.metrics: dict[str, Metrics] = {}
        self.last: dict[str, DeviceRound] = {}

    def begin(self, now: float) -> None:
        self.session.stats.timeline.begin(now)
        self.bytes = {d: (c.bytes_down, c.bytes_up) for d, c in self.session.stats.counters.items()}
        self.metrics = {d: record.metrics for d, record in self.session.registry.devices.items()}

    def end(self, now: float) -> None:
        """Describe the round for all devices that hold clients of the run."""
        stats = self.session.stats
        self.last = {}
        for device in sorted(set(self.session.registry.device_of_client.values())):
            counters, record = stats.get_counters(device), self.session.registry.devices.get(device)
            down, up = self.bytes.get(device, (0, 0))
            metrics = compare_metrics(
                self.metrics.get(device, {}), record.metrics if record else {}
            )
            self.last[device] = stats.timeline.describe(
                device, now, counters.bytes_down - down, counters.bytes_up - up, metrics
            )


def compare_metrics(before: Metrics, after: Metrics) -> dict[str, float]:
    """Return what a device measured since its last report before the round.

    Seconds and joules are counted from the device's start; smaller ones are of a new start.
    """
    if not after or after == before:
        return {}
    if after.get("seconds", 0.0) < before.get("seconds", 0.0):
        before = {}
    out = {k: after[k] for k in ("peak_bytes", "celsius", "clients_possible") if k in after}
    elapsed = after.get("seconds", 0.0) - before.get("seconds", 0.0)
    if elapsed > 0 and "cpu_seconds" in after:
        spent = after["cpu_seconds"] - before.get("cpu_seconds", 0.0)
        out["cpu_share"] = round(spent / elapsed, 3)
    if "joules" in after:
        out["joules"] = round(after["joules"] - before.get("joules", 0.0), 1)
    return {k: v for k, v in out.items() if 0 <= v <= MAX_VALUE}


FLOOD_REASON = "it sent more messages than a device may"


class DeviceBlocker:
    """Keeps the messages of some devices from the server, for good.

    ``broker`` is the broker of this run, if its folder is on this machine. Then a device that floods
    is revoked there, and its connection ended: else it would keep Mosquitto busy.
    """

    def __init__(
        self,
        session: ServerSession,
        transport: MqttTransport,
        broker: Broker | None,
        say: Callable[[str], None],
    ) -> None:
        self.session, self.transport = session, transport
        self.broker, self.say = broker, say

    def shut_out(self, device: str) -> None:
        """Take nothing of this device any more."""
        self.session.shut_out_device(device, FLOOD_REASON, time.monotonic())
        if self.broker is None:
            self.listen_to_others()
            return
        try:
            self.broker.revoke(device)
        except HeterophonyError as error:
            self.say(f"device {device} cannot be revoked at the broker: {error}")
            self.listen_to_others()

    def listen_to_others(self) -> None:
        """Subscribe to the topics of all other devices seen so far, instead of to all devices.

        A message without a subscriber ends at the broker. MQTT cannot leave a single name out.
        """
        shut_out = self.session.registry.shut_out
        others = [name for name in self.session.stats.counters if name not in shut_out]
        self.transport.replace_subscriptions(topics.list_server_subscriptions(others))


MAX_BATCH = 256  # messages that are answered before the round is looked at again
POLL_SECONDS = 0.05  # the longest wait before the clock is checked again
JobKey = tuple[str, str, int]
ShutOut = Callable[[str], None]  # takes the name of a device


class DeviceEngine:
    """Runs jobs through a server session and its transport, both owned by the caller."""

    def __init__(
        self,
        *,
        plan: Plan,
        session: ServerSession,
        transport: MqttTransport,
        reply_validator: ReplyValidator,
        deadline: float | None,
        count_needed: Callable[[int], int],
        find_oldest_round: Callable[[], int],
        say: Callable[[str], None],
        update_status: Callable[[], None],
        shut_out: ShutOut,
    ) -> None:
        self.plan = plan
        self.session = session
        self.transport = transport
        self.reply_validator = reply_validator
        self.deadline = deadline
        self.count_needed = count_needed
        self.find_oldest_round = find_oldest_round
        self.say = say
        self.update_status = update_status
        self.shut_out = shut_out
        self.report = RoundReport(session)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the transport open: the caller closes it."""

    def list_available_clients(self, clients: Sequence[str]) -> list[str]:
        if self.deadline is None:
            return list(clients)
        available = set[str]()
        while not available:
            self.process_messages()
            available = set(self.session.registry.list_available_clients())
        return [c for c in clients if c in available]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        open_jobs: dict[JobKey, Job] = {(j.client, j.kind, j.turn): j for j in jobs}
        training = sum(j.kind == "train" for j in jobs)
        trained, start = 0, time.monotonic()
        self.report.begin(start)
        submitted = self.session.submit_jobs(list(jobs), start, self.find_oldest_round())
        publish_all(self.session, self.transport, submitted)
        while open_jobs:
            for reply in self.session.take_replies():
                job = open_jobs.pop((reply.client, reply.kind, reply.turn), None)
                if job is not None:
                    trained += reply.kind == "train"
                    yield self.reply_validator.set_trusted_weight(reply, job)
            for lost in self.session.take_lost_jobs():
                open_jobs.pop((lost.job.client, lost.job.kind, lost.job.turn), None)
                self.handle_lost_job(lost)
            if open_jobs and self.is_round_over(jobs, start, trained, training):
                self.session.abandon_open_tasks()
                break
            self.process_messages()
        self.report.end(time.monotonic())

    def describe_devices(self) -> dict[str, DeviceRound]:
        """Return by name what each device did in the last round."""
        return self.report.last

    def process_messages(self) -> None:
        process_messages(self.session, self.transport, self.say, self.update_status, self.shut_out)

    def is_round_over(self, jobs: Sequence[Job], start: float, trained: int, training: int) -> bool:
        """Return whether to close the round without the clients that have not answered."""
        ends = any(j.kind != "train" and j.t in (0, self.plan.rounds) for j in jobs)
        if self.deadline is None or ends or time.monotonic() - start < self.deadline:
            return False
        return trained >= min(training, self.count_needed(training))

    def check_merged(self, before: Server, after: Server) -> None:
        self.reply_validator.check_merged(after)

    def handle_refused_update(self, reply: Reply, t: int, error: CodecError) -> None:
        """Count the update against its device; without a deadline, stop the run."""
        device = self.session.registry.device_of_client.get(reply.client, "")
        why = f"its update is refused: {error}"
        self.session.stats.record_rejected_reply(
            device, f"client {reply.client}, round {t}, train: {why}"
        )
        job = Job(kind="train", t=t, client=reply.client, tensors=Tensors(), turn=reply.turn)
        self.handle_lost_job(LostJob(job, device, why, isinstance(error, NotFiniteError)))

    def handle_lost_job(self, lost: LostJob) -> None:
        """With a deadline, continue the round without the job; without one, stop the run."""
        job = lost.job
        text = f"device {lost.device}, client {job.client}, round {job.t}: {lost.why}"
        if self.deadline is not None:
            self.say(text)
        elif lost.diverged:
            raise DivergedError(text)
        else:
            raise EngineError(f"{text}; fix it and resume: nothing is lost")


def process_messages(
    session: ServerSession,
    transport: MqttTransport,
    say: Callable[[str], None],
    update_status: Callable[[], None],
    shut_out: ShutOut,
) -> None:
    """Wait briefly for messages, answer some that have arrived, and repeat what is overdue.

    Not all of them: of a device that floods the server there are always more.
    """
    for n in range(MAX_BATCH):
        try:
            item = transport.inbox.get(block=n == 0, timeout=POLL_SECONDS)
        except Empty:
            break
        now = time.monotonic()
        if isinstance(item, ReceivedMessage):
            publish_all(session, transport, session.receive(item.topic, item.payload, now))
            for device, size in session.take_requested():
                transport.inbox.give_back(device, compute_cost(size))
        elif item.kind == "flood":
            shut_out(item.text)
        elif item.kind == "connected":
            publish_all(session, transport, session.handle_connected(now))
        else:
            say(item.text)
    publish_all(session, transport, session.tick(time.monotonic()))
    update_status()


def announce_end(
    session: ServerSession,
    transport: MqttTransport,
    say: Callable[[str], None],
    shut_out: ShutOut,
) -> None:
    """Wait for a connection, and tell the devices that the run has ended."""
    while not transport.connected:
        # the final status is written already
        process_messages(session, transport, say, lambda: None, shut_out)
    publish_all(session, transport, session.end_run())


def publish_all(
    session: ServerSession, transport: MqttTransport, messages: Sequence[Publication]
) -> None:
    """Publish messages and count those that were queued; the others are repeated later."""
    session.record_sent([m for m in messages if transport.publish(m.topic, m.payload, m.retain)])
