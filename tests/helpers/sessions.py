"""A server session and board sessions in one process, with simulated time and a seeded faulty network."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from heterophony.boards.protocol import job_codec
from heterophony.boards.protocol.blobs import GivenStore, ReplyStore
from heterophony.boards.protocol.board_session import BoardSession, JobQueue
from heterophony.boards.protocol.messages import BlobRef, ClientSummary, Control
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.protocol.topics import Publication, make_board_topic, make_control_topic
from heterophony.core.algorithm import Reply
from heterophony.core.tensors import Tensors
from heterophony.jobs.plan import Job

RUN, CONFIG, LIMIT = "run-1", b"algorithm = 'fedavg'\n" * 40, 1 << 24
GIVEN = bytes(range(256)) * 1500  # a checkpoint of three chunks
SMALL_LIMIT = 1 << 20  # of the reply to an evaluation
SERVER = ""


@dataclass
class FaultRates:
    """Probabilities of network faults, lost connections and killed processes."""

    lose: float = 0.0
    twice: float = 0.0
    damage: float = 0.0
    delay: float = 0.01  # at most, in seconds; long delays change the order
    cut: float = 0.0  # per half second and board; it is then offline for some seconds
    kill: float = 0.0  # per half second and board
    kill_server: float = 0.0  # per half second


CALM = FaultRates()
MANY_FAULTS = FaultRates(
    lose=0.15, twice=0.15, damage=0.03, delay=1.5, cut=0.02, kill=0.01, kill_server=0.01
)


def holding(client: str) -> ClientSummary:
    return ClientSummary(client, 40, 10, 0, (4,) * 10, "ab" * 32, (1, 8, 8), 10)


def doubled(job: Job) -> Reply:
    """Return a reply that depends only on the job and the client."""
    own = float(sum(job.client.encode()) + 7 * job.turn)
    up = job.tensors.map(lambda v: v * 2 + own)
    metrics = {"P": 3, "loss/own": 0.1 * own, "seconds": 0.5}
    return Reply(job.client, job.kind, up, 40, 40, metrics, turn=job.turn, examples=40)


@dataclass
class BoardRun:
    """A board: its disk outlives its process."""

    name: str
    clients: list[str]
    disk: Path
    work: Callable[[Job], Reply | Exception]
    session: BoardSession | None = None
    starts: int = 0
    online: bool = False
    back: float = 0.0  # when it is online again
    busy: tuple[float, Job] | None = None
    worked: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)

    def start(self, now: float) -> None:
        self.starts += 1
        stores = ReplyStore(self.disk), GivenStore(self.disk.with_name(f"{self.name}-given"))
        self.session = BoardSession(
            run=RUN,
            board=self.name,
            session=f"{self.name}-{self.starts}",
            jobs=JobQueue(*stores, LIMIT, now),
            now=now,
        )
        self.online, self.busy = False, None

    def live(self, now: float) -> list[Publication]:
        """Run one step of a board's program."""
        s = self.session
        out = s.tick(now)
        if s.has_everything and s.hello is None:
            assert s.config == CONFIG
            assert s.given.read_bytes() == GIVEN
            out += s.introduce("0.1.0", [holding(c) for c in self.clients], {"cpu": "a"}, now)
        if self.busy and self.busy[0] <= now:
            job, self.busy = self.busy[1], None
            reply = self.work(job)
            if isinstance(reply, Exception):
                out += s.submit_failure(reply, not isinstance(reply, ArithmeticError), now)
            else:
                self.worked[job.client, job.kind, job.t, job.turn] += 1
                out += s.submit_reply(job_codec.encode_reply(reply), reply.metrics["seconds"], now)
        if self.busy is None and (work := s.jobs.take_next_job()):
            self.busy = now + 1.5, work
        return out


class Simulation:
    """The server, the boards and the network between them."""

    def __init__(
        self,
        disk: Path,
        boards: dict[str, list[str]],
        weather: FaultRates = CALM,
        seed: int = 0,
        work: Callable[[Job], Reply | Exception] = doubled,
        check: Callable[[Job, Reply], None] = lambda job, reply: None,
    ) -> None:
        self.draw, self.weather, self.check = np.random.default_rng(seed), weather, check
        self.now, self.number, self.start, self.run_id = 0.0, 0, 0, "first"
        self.flying: list[tuple[float, int, str, str, bytes]] = []
        self.retained: dict[str, bytes] = {}
        self.boards = {d: BoardRun(d, c, disk / d, work) for d, c in boards.items()}
        self.sent: list[Publication] = []
        self.jobs: list[Job] = []
        self.replies: list[Reply] = []
        self.board_of_client: dict[str, str] = {}
        self.start_server()
        for board in self.boards.values():
            board.start(0.0)

    def start_server(self) -> None:
        """Start the server as after kill -9: it knows only the boards' clients, and assigns the whole round again."""
        self.start += 1
        control = Control(
            *(RUN, self.run_id, self.start, "waiting", 0, 9, 0, BlobRef.from_bytes(CONFIG)),
            (BlobRef.from_bytes(GIVEN),),
        )
        self.server = ServerSession(
            *(control, CONFIG, lambda board, hello: "", self.now, self.board_of_client), GIVEN
        )
        self.server.assignments.rules = SimpleNamespace(
            check_reply=lambda reply, job: self.check(job, reply),
            limit_reply_bytes=lambda job: LIMIT if job.kind == "train" else SMALL_LIMIT,
        )
        self.replies = []
        self.publish(SERVER, self.server.handle_connected(self.now))
        if self.jobs:
            self.publish(SERVER, self.server.submit_jobs(self.jobs, self.now))
        for topic in [t for t in self.retained if t.endswith("/status")]:
            self.fly(SERVER, topic, self.retained[topic])

    def publish(self, sender: str, messages: Sequence[Publication]) -> None:
        for m in messages:
            self.sent.append(m)
            if sender and not self.boards[sender].online:
                continue
            if m.retain:
                self.retained[m.topic] = m.payload
            if sender:
                self.fly(SERVER, m.topic, m.payload)
            elif m.topic == make_control_topic(RUN):
                for name in self.boards:
                    self.fly(name, m.topic, m.payload)
            else:
                self.fly(m.topic.split("/")[3], m.topic, m.payload)

    def fly(self, to: str, topic: str, payload: bytes) -> None:
        w = self.weather
        for _ in range(1 + (self.draw.random() < w.twice)):
            if self.draw.random() >= w.lose:
                if self.draw.random() < w.damage:
                    at = int(self.draw.integers(len(payload)))
                    payload = payload[:at] + bytes([payload[at] ^ 0x55]) + payload[at + 1 :]
                self.number += 1
                when = self.now + self.draw.random() * w.delay
                heapq.heappush(self.flying, (when, self.number, to, topic, payload))

    def arrive(self, to: str, topic: str, payload: bytes) -> None:
        if to == SERVER:
            self.publish(SERVER, self.server.receive(topic, payload, self.now))
        elif to in self.boards and self.boards[to].online:
            self.publish(to, self.boards[to].session.receive(topic, payload, self.now))

    def disconnect(self, board: BoardRun, seconds: float) -> None:
        """Disconnect a board; the broker publishes its last will."""
        if board.online:
            will = board.session.make_status_publication("gone")
            self.publish(board.name, [will])
        board.online, board.back = False, self.now + seconds

    def mishaps(self, board: BoardRun) -> None:
        chance = self.draw.random(2)
        if chance[0] < self.weather.cut:
            self.disconnect(board, 10 * self.draw.random())
        if chance[1] < self.weather.kill:
            self.disconnect(board, 5.0)
            board.start(self.now)

    def moment(self) -> None:
        """Let half a second pass."""
        until = self.now + 0.5
        while self.flying and self.flying[0][0] <= until:
            self.now, _, to, topic, payload = heapq.heappop(self.flying)
            self.arrive(to, topic, payload)
        self.now = until
        for board in self.boards.values():
            self.mishaps(board)
            if not board.online and board.back <= self.now:
                board.online = True
                self.publish(board.name, board.session.handle_connected(self.now))
                if make_control_topic(RUN) in self.retained:
                    self.fly(
                        board.name, make_control_topic(RUN), self.retained[make_control_topic(RUN)]
                    )
            self.publish(board.name, board.live(self.now))
        self.publish(SERVER, self.server.tick(self.now))
        self.replies += self.server.take_replies()
        self.board_of_client = dict(self.server.registry.board_of_client)
        if self.draw.random() < self.weather.kill_server:
            self.start_server()

    def play(self, jobs: Sequence[Job], within: float = 3000.0) -> list[Reply]:
        """Return the replies to these jobs, in the order of the jobs."""
        self.jobs, self.replies = list(jobs), []
        self.publish(SERVER, self.server.submit_jobs(jobs, self.now))
        self.until(lambda: len(self.replies) >= len(jobs), within)
        order = {(j.client, j.kind, j.turn): i for i, j in enumerate(jobs)}
        assert len(self.replies) == len({(r.client, r.kind, r.turn) for r in self.replies})
        return sorted(self.replies, key=lambda r: order[r.client, r.kind, r.turn])

    def until(self, there: Callable[[], bool], within: float = 600.0) -> None:
        """Let time pass until a condition holds; fail after ``within`` simulated seconds."""
        end = self.now + within
        while not there():
            assert self.now < end, f"nothing after {within} seconds"
            self.moment()

    def say(self, board: str, message: object, chunk: bool = False) -> None:
        """Deliver a message to the server on a board's topic."""
        from heterophony.boards.protocol.messages import add_run, encode_message

        topic = make_board_topic(board, "up/chunk" if chunk else "up")
        payload = message if isinstance(message, bytes) else encode_message(message)
        self.publish(SERVER, self.server.receive(topic, add_run(RUN, payload), self.now))


def jobs_of(t: int, clients: Sequence[str], size: int = 100, tests: bool = True) -> list[Job]:
    """Return the jobs of a round: all train on one model, all evaluate with one average."""
    model = Tensors({"w": torch.arange(size, dtype=torch.float32) + t, "b": torch.ones(3)})
    mean = model | {"head": torch.full((4,), float(t))}
    jobs = [Job(kind="train", t=t, client=c, tensors=model) for c in clients]
    return jobs + (
        [Job(kind="evaluate", t=t, client=c, tensors=model, generic_model=mean) for c in clients]
        if tests
        else []
    )
