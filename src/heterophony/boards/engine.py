"""The engine of a run on boards: sends jobs and collects replies through a server session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty

from ..core.algorithm import Reply, Server
from ..core.errors import CodecError, DivergedError, EngineError, HeterophonyError, NotFiniteError
from ..core.tensors import Tensors
from ..engines.base import Engine
from ..jobs.plan import Job, Plan
from ..population.attacks import Faults
from ..runs.events import BoardRound
from .broker.broker import Broker
from .protocol import topics
from .protocol.assignments import LostJob
from .protocol.server_session import ServerSession
from .protocol.topics import Publication
from .reply_checks import ReplyValidator
from .transport.mqtt_transport import MqttTransport
from .transport.queues import ReceivedMessage, compute_cost

Metrics = Mapping[str, float]
MAX_VALUE = 1e15  # larger numbers that a board reports are left out


class RoundReport:
    """Describes what each board did in a round, from its counters at the start and end of the round."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.bytes: dict[str, tuple[int, int]] = {}
        self.metrics: dict[str, Metrics] = {}
        self.last: dict[str, BoardRound] = {}

    def begin(self, now: float) -> None:
        """Record the counters and measurements of all boards at the start of a round."""
        self.session.stats.timeline.begin(now)
        self.bytes = {d: (c.bytes_down, c.bytes_up) for d, c in self.session.stats.counters.items()}
        self.metrics = {d: record.metrics for d, record in self.session.registry.boards.items()}

    def end(self, now: float) -> None:
        """Describe the round that has ended, for every board that holds clients."""
        stats = self.session.stats
        self.last = {}
        for board in sorted(set(self.session.registry.board_of_client.values())):
            counters, record = stats.get_counters(board), self.session.registry.boards.get(board)
            down, up = self.bytes.get(board, (0, 0))
            metrics = compare_metrics(self.metrics.get(board, {}), record.metrics if record else {})
            self.last[board] = stats.timeline.describe(
                board, now, counters.bytes_down - down, counters.bytes_up - up, metrics
            )


def compare_metrics(before: Metrics, after: Metrics) -> dict[str, float]:
    """Return a board's measurements in a round: its report after the round minus the one before it.

    Seconds and joules count from the start of the board. If they decreased, the board was restarted.
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


FLOOD_REASON = "it sent more messages than a board is allowed to"
MAX_BATCH = 256  # messages to answer before the round is checked again
POLL_SECONDS = 0.05  # the longest wait before the clock is checked again
BROKER_CHECK_SECONDS = 1.0
JobKey = tuple[str, str, int]


class ServerLink:
    """The server's link to its boards: passes messages between the session and the transport.

    ``broker`` is the run's broker, if its folder is on this machine. Then the link restarts it after a
    crash, and revokes boards that flood it. ``on_poll`` is called several times a second; an error
    that it raises stops the run.
    """

    def __init__(
        self,
        session: ServerSession,
        transport: MqttTransport,
        say: Callable[[str], None],
        on_poll: Callable[[], None] = lambda: None,
        broker: Broker | None = None,
    ) -> None:
        self.session, self.transport = session, transport
        self.say, self.on_poll, self.broker = say, on_poll, broker
        self.next_broker_check = 0.0

    def process_messages(self) -> None:
        """Wait briefly for messages of boards, answer at most ``MAX_BATCH``, and repeat overdue ones."""
        session, inbox = self.session, self.transport.inbox
        for n in range(MAX_BATCH):
            try:
                item = inbox.get(block=n == 0, timeout=POLL_SECONDS)
            except Empty:
                break
            now = time.monotonic()
            if isinstance(item, ReceivedMessage):
                self.publish(session.receive(item.topic, item.payload, now))
                for board, size in session.take_requested():
                    inbox.give_back(board, compute_cost(size))
            elif item.kind == "flood":
                self.shut_out_board(item.text)
            elif item.kind == "connected":
                self.publish(session.handle_connected(now))
            else:
                self.say(item.text)
        self.publish(session.tick(time.monotonic()))
        self.restart_crashed_broker(time.monotonic())
        self.on_poll()

    def restart_crashed_broker(self, now: float) -> None:
        """Restart the broker if the connection is lost because the broker crashed on this machine."""
        if self.broker is None or self.transport.connected or now < self.next_broker_check:
            return
        self.next_broker_check = now + BROKER_CHECK_SECONDS
        if self.broker.restart_if_crashed():
            self.say("the broker crashed; restarting it")

    def publish(self, messages: Sequence[Publication]) -> None:
        """Publish messages to boards and count the queued ones; the session repeats the others later."""
        queued = [m for m in messages if self.transport.publish(m.topic, m.payload, m.retain)]
        self.session.record_sent(queued)

    def announce_end(self) -> None:
        """Wait for a connection, then announce to the boards that the run has finished."""
        self.on_poll = lambda: None  # the final status is written already
        while not self.transport.connected:
            self.process_messages()
        self.publish(self.session.end_run())

    def shut_out_board(self, board: str) -> None:
        """Accept nothing more from a board and, if possible, revoke its enrolment at the broker."""
        self.session.shut_out_board(board, FLOOD_REASON, time.monotonic())
        if self.broker is not None:
            try:
                self.broker.revoke(board)
                return
            except HeterophonyError as error:
                self.say(f"board {board} cannot be revoked at the broker: {error}")
        # the broker drops a message without a subscriber, and MQTT cannot leave out a single name
        others = self.session.stats.counters.keys() - self.session.registry.shut_out.keys()
        self.transport.replace_subscriptions(topics.list_server_subscriptions(sorted(others)))


class BoardJudge:
    """Handles boards' refused updates and lost jobs.

    If the run has a deadline, the round continues without these clients; otherwise the run stops.
    """

    def __init__(
        self,
        session: ServerSession,
        validator: ReplyValidator,
        has_deadline: bool,
        say: Callable[[str], None],
    ) -> None:
        self.session, self.validator = session, validator
        self.has_deadline, self.say = has_deadline, say

    def check_merged(self, after: Server) -> None:
        """Raise CodecError if the norm of the merged model is over its limit."""
        self.validator.check_merged(after)

    def refuse_update(self, reply: Reply, t: int, error: CodecError) -> None:
        """Record that a board's update was refused, and treat its job as lost."""
        board = self.session.registry.board_of_client.get(reply.client, "")
        why = f"its update is refused: {error}"
        self.session.stats.record_rejected_reply(
            board, f"client {reply.client}, round {t}, train: {why}"
        )
        job = Job(kind="train", t=t, client=reply.client, tensors=Tensors(), turn=reply.turn)
        self.handle_lost_job(LostJob(job, board, why, isinstance(error, NotFiniteError)))

    def handle_lost_job(self, lost: LostJob) -> None:
        """Report a lost job if the run has a deadline; otherwise raise EngineError or DivergedError."""
        job = lost.job
        text = f"board {lost.board}, client {job.client}, round {job.t}: {lost.why}"
        if self.has_deadline:
            self.say(text)
        elif lost.diverged:
            raise DivergedError(text)
        else:
            raise EngineError(f"{text}; fix it and resume: nothing is lost")


class BoardEngine(Engine):
    """The engine that runs jobs on boards, through a link that the caller opens and closes."""

    def __init__(
        self,
        plan: Plan,
        link: ServerLink,
        validator: ReplyValidator,
        faults: Faults,
        find_oldest_round: Callable[[], int],
    ) -> None:
        self.plan, self.link, self.session = plan, link, link.session
        self.validator, self.faults = validator, faults
        self.find_oldest_round = find_oldest_round
        self.board_judge = BoardJudge(
            self.session, validator, faults.deadline is not None, link.say
        )
        self.report = RoundReport(self.session)

    @property
    def judge(self) -> BoardJudge:
        return self.board_judge

    def available(self, clients: Sequence[str]) -> list[str]:
        """Wait for boards and return the clients on connected ones; without a deadline, return all clients."""
        if self.faults.deadline is None:
            return list(clients)
        available = set[str]()
        while not available:
            self.link.process_messages()
            available = set(self.session.registry.list_available_clients())
        return [c for c in clients if c in available]

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        """Assign the jobs of a round to boards; yield the accepted replies until the round is over."""
        open_jobs: dict[JobKey, Job] = {(j.client, j.kind, j.turn): j for j in jobs}
        trained, begun = 0, time.monotonic()
        self.report.begin(begun)
        self.link.publish(self.session.submit_jobs(list(jobs), begun, self.find_oldest_round()))
        while open_jobs:
            for reply in self.session.take_replies():
                job = open_jobs.pop((reply.client, reply.kind, reply.turn), None)
                if job is not None:
                    trained += reply.kind == "train"
                    yield self.validator.set_trusted_weight(reply, job)
            for lost in self.session.take_lost_jobs():
                open_jobs.pop((lost.job.client, lost.job.kind, lost.job.turn), None)
                self.board_judge.handle_lost_job(lost)
            if open_jobs and self.is_round_over(jobs, time.monotonic() - begun, trained):
                self.session.assignments.abandon_open_jobs()
                break
            self.link.process_messages()
        self.report.end(time.monotonic())

    def is_round_over(self, jobs: Sequence[Job], seconds: float, trained: int) -> bool:
        """Return True if the round must close now, without the clients that have not replied.

        The last evaluation has no deadline, because it collects the digests of all clients' memories.
        """
        is_last = any(j.kind != "train" and j.t == self.plan.rounds for j in jobs)
        if self.faults.deadline is None or is_last or seconds < self.faults.deadline:
            return False
        training = sum(j.kind == "train" for j in jobs)
        return trained >= min(training, self.faults.count_needed_replies(training))

    def describe_round(self) -> dict[str, BoardRound]:
        """Return the activity of each board in the last round."""
        return self.report.last
