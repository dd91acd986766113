"""Boards and strangers that mean ill, at a run over a real broker: refused, counted, told.

What is honest in the run has its bits all the same.
"""

from __future__ import annotations

import math
import pickle
import random
import resource
import ssl
import sys
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import torch

from helpers.boards import LONG, compute_one_at_a_time, mosquitto, on_boards, simulated, small
from helpers.mqtt import DEADLINE, Client, let_in
from heterophony.boards import reply_checks, server
from heterophony.boards.board import BoardRun
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.certificates import CertificateAuthority
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.protocol import messages, topics
from heterophony.boards.protocol import messages as framing
from heterophony.boards.protocol.blobs import Chunk
from heterophony.boards.protocol.blobs import encode_chunk as chunk
from heterophony.boards.protocol.board_stats import BoardCounters, BoardStats
from heterophony.boards.protocol.messages import BlobRef, Control, Done, Failed, Rejected, Status
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.core import codec
from heterophony.core.algorithm import Reply
from heterophony.core.tensors import Tensors
from heterophony.engines.base import Serial

HELD = {"one": ["0", "2"], "two": ["1"], "mallory": ["3"]}
HONEST_AT = 2  # the attempt at a task in which mallory tells the truth: the last it has
A = "a" * 64


def find_misbehaving(server: ServerSession) -> dict[str, BoardCounters]:
    """Return the counters of the boards with problems."""
    return {d: c for d, c in server.registry.stats.counters.items() if c.problems}


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    with mosquitto(tmp_path_factory.mktemp("broker"), *HELD, "trudy", "lost") as made:
        yield made


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    compute_one_at_a_time(monkeypatch)


# Replies with a true certificate and a false content ----------------------------------------


class Evil:
    def __reduce__(self):
        return exec, ("import subprocess; subprocess.run(['true'])",)


EVIL = pickle.dumps(Evil())


def forged(reply: Reply, tensors: dict[str, torch.Tensor] | None = None, **changes) -> bytes:
    """A reply as it travels, with something wrong in it."""
    said = {k: v for k, v in vars(reply).items() if k not in ("tensors", "aside")}
    said["metrics"] = {k: v for k, v in reply.metrics.items() if k != "seconds"}
    return codec.encode_blob(Tensors(reply.tensors if tensors is None else tensors), said | changes)


def altered(reply: Reply, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    name = "head.0.weight" if "head.0.weight" in reply.tensors else sorted(reply.tensors)[0]
    return forged(reply, {**reply.tensors, name: change(reply.tensors[name])})


def renamed(reply: Reply) -> bytes:
    name = sorted(reply.tensors)[0]
    return forged(reply, {("own.x" if k == name else k): v for k, v in reply.tensors.items()})


Attack = tuple[Callable[[Reply], bytes], str]  # and what the server says of it
TRAINING: list[Attack] = [
    (lambda r: altered(r, lambda v: v * math.nan), "holds NaN or infinity"),
    (lambda r: altered(r, lambda v: v + math.inf), "holds NaN or infinity"),
    (lambda r: altered(r, lambda v: v[:1]), "is torch.float32 (1,"),
    (lambda r: altered(r, lambda v: v.double()), "is torch.float64"),
    (renamed, "'own.x' is not expected"),
    (lambda r: altered(r, lambda v: v + 1e9), "times that of the tensors that were sent"),
    (lambda r: forged(r, samples=10**9), "claims 1000000000 examples"),
    (lambda r: forged(r, examples=10**15), "processed examples"),
]
EVALUATION: list[Attack] = [
    (lambda r: EVIL, "these bytes are not from heterophony"),
    (lambda r: forged(r, {"x": torch.zeros(3)}), "reply to an evaluation must not contain tensors"),
    (lambda r: forged(r, metrics={"P": 10**6}), "metric 'P' is 1e+06"),
    (lambda r: forged(r, metrics={"P": math.nan}), "is not a finite number"),
    (lambda r: forged(r, client="0"), "does not belong to the job of client '3'"),
    (lambda r: codec.MAGIC + (9).to_bytes(4, "big") + EVIL, "exceeds the limit of"),
]


def rubbish() -> list[bytes]:
    """What no reader takes: noise, damage, pickles, depth, length."""
    draw, sound = random.Random(0), messages.encode_message(Status("here", "x"))
    at = draw.randrange(len(sound) - 9)
    return [
        b"",
        draw.randbytes(40),
        draw.randbytes(5000),
        sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :],
        EVIL,
        framing.add_checksum(EVIL),
        framing.add_checksum(b"[" * 9000),
        framing.add_checksum(b'{"v":3,"kind":"assigned"}'),
        framing.add_checksum(b'{"v":3,"kind":"hello","x":NaN}'),
        framing.add_checksum(b"x" * (messages.MAX_BYTES + 1)),
        b"HETC" + draw.randbytes(90),
    ]


RUBBISH = rubbish()


class Mallory(BoardRun):
    """Enrolled, holds a client, and lies as often as a task may be given again."""

    def __init__(self, *how) -> None:
        super().__init__(*how)
        self.attacks = {"train": iter(TRAINING), "evaluate": iter(EVALUATION)}
        self.lied = self.pestered = 0

    def submit_result(self, result, seconds, now):
        task = self.session.jobs.current
        if task.attempt == HONEST_AT:
            super().submit_result(result, seconds, now)
            return
        self.pester()
        lie, _ = next(self.attacks[task.job])
        self.lied += 1
        self.publish_all(self.session.submit_reply(lie(result), seconds, now))

    def pester(self) -> None:
        """Rubbish on all its topics, and pieces that nobody asked for.

        What still waits to be sent is not sent twice, so none of the last time may.
        """
        until = time.monotonic() + LONG
        while not self.transport._connection.outbox.empty:
            assert time.monotonic() < until
            time.sleep(0.01)
        for channel in ("up", "up/chunk", "status"):
            for payload in RUBBISH:
                self.send(channel, payload)
                self.pestered += 1
        for i in range(2):
            self.send("up/chunk", chunk(Chunk(A, i, bytes(100_000))))

    def pose(self, task: str) -> None:
        """As the one who holds client 0: its greeting, its reply, its failure."""
        hello = self.session.hello
        other = replace(hello, session="posing", clients=(replace(hello.clients[0], name="0"),))
        for said in (other, Done(task, 0, 0, BlobRef(A, 5), 1.0), Failed(task, 0, "broken", False)):
            self.send("up", messages.encode_message(said))

    def send(self, channel, payload: bytes) -> None:
        topic = topics.make_board_topic(self.session.board, channel)
        until = time.monotonic() + LONG
        while not self.transport.publish(
            topic, framing.add_run(self.session.run, payload)
        ):  # too much is under way
            assert time.monotonic() < until
            time.sleep(0.01)


# Watching the server ------------------------------------------------------------------------

FORBIDDEN = ("pickle.", "exec", "compile", "marshal.", "subprocess.", "socket.connect", "os.system",
             "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "ctypes.", "code.__new__")  # fmt: skip


class Watch:
    """What the interpreter is asked to do while the server takes a message.

    Python itself evaluates the types in our own classes, as text, when they are first looked at.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.seen: set[str] = set()
        sys.addaudithook(self.hear)  # it cannot be taken away again

    def hear(self, event: str, _: object) -> None:
        if self.thread != threading.get_ident() or not event.startswith(FORBIDDEN):
            return
        if sys._getframe(1).f_code.co_filename != typing.__file__:  # itself an event: hence last
            self.seen.add(event)

    def over(self, take: Callable, on: bool = True) -> Callable:
        """The function, watched, or with the watch laid down while it runs."""

        def taking(*args, **options):
            before, self.thread = self.thread, threading.get_ident() if on else None
            try:
                return take(*args, **options)
            finally:
                self.thread = before

        return taking


class Seen:
    """The server session of the run, and all problems it recorded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.server: ServerSession | None = None
        self.complaints: list[tuple[str, str]] = []
        self.posed = threading.Event()
        blame = BoardStats.record_problem

        def make(*how):
            self.server = ServerSession(*how)
            return self.server

        def note(stats, counters, board, what, why):
            blame(stats, counters, board, what, why)
            self.complaints.append((board, str(why)))
            if sum("it sent a message for" in w for _, w in self.complaints) == 2:
                self.posed.set()

        patch.setattr(server, "ServerSession", make)
        patch.setattr(BoardStats, "record_problem", note)


# Strangers ----------------------------------------------------------------------------------


def strangers(broker: Broker, known: dict[str, Enrolment]) -> dict[str, bool]:
    """Whom the broker lets in."""
    true, tomorrow = known["one"], datetime.now(UTC) + timedelta(days=1)
    pair = CertificateAuthority.create().issue_for_board("one", tomorrow)
    foreign = replace(true, certificate=pair.certificate, key=pair.key)
    broker.revoke("lost")
    trust = {
        "in the open": None,
        "anonymous": ssl.create_default_context(cadata=true.ca),
        "of another authority": foreign.make_ssl_context(),
        "revoked": known["lost"].make_ssl_context(),
    }
    return {who: let_in(true.address, true.port, how) for who, how in trust.items()}


def trespassing(known: Enrolment, run: str, session: str) -> tuple[list[str], list[str]]:
    """An enrolled board on others' topics, then one packet too large; what it hears meanwhile."""
    trudy, one = Client(known), f"{topics.TOPIC_ROOT}/b/one"
    trudy.subscribe("#", f"{topics.TOPIC_ROOT}/#", f"{one}/#", f"{one}/down/#")
    ended = Control(run, "id", 1 << 40, "ended", 99, 99, 0, BlobRef(A, 1))
    answers = [
        trudy.publish(topics.make_control_topic(run), messages.encode_message(ended), retain=True),
        trudy.publish(
            f"{one}/status",
            framing.add_run(run, messages.encode_message(Status("gone", session))),
            retain=True,
        ),
        trudy.publish(f"{one}/up", messages.encode_message(Failed(A, 0, "posing", False))),
        trudy.publish(f"{one}/up/chunk", RUBBISH[1]),
        trudy.publish(f"{one}/down", messages.encode_message(Rejected(A, 0, "posing"))),
        trudy.publish(f"{topics.TOPIC_ROOT}/b/mallory/down/chunk", RUBBISH[1]),
    ]
    trudy.paho.publish(topics.make_board_topic("trudy", "up"), bytes(2 << 20), qos=1)
    trudy.losses.get(timeout=DEADLINE)  # it alone is thrown out
    heard = [trudy.heard.get()[0] for _ in range(trudy.heard.qsize())]
    trudy.close()
    return answers, heard


def test_a_run_under_attack_has_its_bits_and_says_who_attacked(broker, tmp_path, monkeypatch):
    made, known = broker
    config = small("fedreg", rounds=4, **{"participation.rate": 1.0})
    alone, _ = simulated(config, tmp_path / "alone")
    seen, watch, found = Seen(monkeypatch), Watch(), {}
    monkeypatch.setattr(ServerSession, "receive", watch.over(ServerSession.receive))
    dry = reply_checks.simulate_reply  # the server's own training, of nothing that was sent to it
    monkeypatch.setattr(reply_checks, "simulate_reply", watch.over(dry, on=False))

    class Patient(BoardRun):
        """Hands nothing in before mallory has posed as it."""

        def submit_result(self, *result):
            assert seen.posed.wait(LONG)
            super().submit_result(*result)

    class Posing(Mallory):
        def submit_result(self, *result):
            if not self.lied:
                tasks = [o.assigned for o in list(seen.server.assignments.open_jobs.values())]
                self.pose(next(task.id for task in tasks if task.client == "0"))
            super().submit_result(*result)

    def at_the_gate(event, company):
        if event["event"] == "round" and event["t"] == 0:
            session = company.boards["one"].session.session
            found["strangers"] = strangers(made, known)
            found["trudy"] = trespassing(known["trudy"], company.run, session)
        found["mallory"], found["told"] = company.boards["mallory"], company.said

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kinds = {"one": Patient, "mallory": Posing}
    shown: list[str] = []
    result, _ = on_boards(config, known, tmp_path / "siege", HELD, kinds, shown.append, at_the_gate)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert result.model_sha256 == alone.model_sha256
    assert result.P.last == alone.P.last
    assert found["strangers"] == dict.fromkeys(found["strangers"], False)
    answers, heard = found["trudy"]
    assert set(answers) == {"Not authorized"}
    public = {topics.make_control_topic("siege"), topics.make_server_topic("siege")}
    assert set(heard) <= public
    mallory = found["mallory"]
    assert mallory.lied == len(TRAINING) + len(EVALUATION)
    every = mallory.lied + mallory.pestered + 3  # the last are those of posing
    counted = find_misbehaving(seen.server)
    assert {board: c.problems for board, c in counted.items()} == {"mallory": every}
    lies = Counter(words for _, words in TRAINING + EVALUATION)
    posing = {"is held by board 'one'": 1, "it sent a message for client '0'": 2}
    for words, times in {**lies, **posing}.items():
        assert sum(words in complaint for _, complaint in seen.complaints) == times, words
    assert any("mallory: " in words for words in shown), shown
    for words in lies:  # who looks at the board can read why
        assert any(words in told for told in found["told"]), words
    assert seen.server.registry.boards["mallory"].current_transfer is None
    assert grown < 200 << 10  # KiB
    assert watch.seen == set()
    watch.over(pickle.loads)(pickle.dumps(len))  # the control: it does see
    assert watch.seen == {"pickle.find_class"}


class Liar(BoardRun):
    """Measures honestly; of what it learned it sends NaN, again and again."""

    def submit_result(self, result, seconds, now):
        if self.session.jobs.current.job == "train":
            bad = altered(result, lambda v: v * math.nan)
            self.publish_all(self.session.submit_reply(bad, seconds, now))
        else:
            super().submit_result(result, seconds, now)


class Without(Serial):
    """Client 3 trains, and nobody hears of it."""

    def run(self, jobs):
        return (r for r in super().run(jobs) if (r.client, r.kind) != ("3", "train"))


def test_with_a_deadline_rounds_go_on_without_a_board_that_is_always_wrong(
    broker, tmp_path, monkeypatch
):
    _, known = broker
    rates = {"participation.rate": 1.0}
    alone, _ = simulated(small("fedreg", **rates), tmp_path / "alone", Without)
    said: list[str] = []
    patient = small("fedreg", **rates, **{"participation.deadline": 10 * LONG})
    kinds = {"mallory": Liar}
    result, events = on_boards(patient, known, tmp_path / "goes-on", HELD, kinds, said.append)
    assert result.model_sha256 == alone.model_sha256
    rounds = [e for e in events if e["event"] == "round"]
    assert [(e["clients"], e["dropped"]) for e in rounds] == [(["0", "1", "2"], ["3"])] * 2
    blamed = [w for w in said if "client 3, round" in w.split(": ")[0]]
    assert [w.split(": ")[0] for w in blamed] == [
        f"board mallory, client 3, round {t}" for t in range(2)
    ]
