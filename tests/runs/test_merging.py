"""A merged model is finite and bounded, or it is not merged; the error and the event say who."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.support import QUICK, digits
from heterophony.algorithms.fednova import FedNova
from heterophony.boards.engine import BoardJudge
from heterophony.boards.protocol.messages import BlobRef, Control
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.reply_checks import ReplyValidator
from heterophony.core.algorithm import Algorithm, Reply, Server
from heterophony.core.errors import CodecError, DivergedError, EngineError
from heterophony.engines.base import Serial
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job, Plan
from heterophony.models.convnets import digitsnet
from heterophony.population.participation import Uniform
from heterophony.runs.folder import RunFolder
from heterophony.runs.loop import run_round, run_rounds


def planned(algorithm: Algorithm) -> Plan:
    return Plan(
        algorithm=algorithm,
        model=partial(digitsnet, digits().shape, digits().classes, 1),
        federation=digits(),
        rounds=2,
        participation=Uniform(rate=1.0),
        training=QUICK,
        evaluate_every=9,
    )


def with_work(reply: Reply, work: float) -> Reply:
    tensors = reply.tensors | {"fednova/work": torch.tensor(work, dtype=torch.float64)}
    return replace(reply, tensors=tensors)


class Poisoned(Serial):
    """Client 1 says that it worked next to nothing."""

    work = 1e-300

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for reply in super().run(jobs):
            bad = (reply.client, reply.kind) == ("1", "train")
            yield with_work(reply, self.work) if bad else reply


class Judging(Poisoned):
    """The same, with the judge of a run on boards."""

    judge: BoardJudge | None = None

    def __init__(self, plan: Plan, store: FolderClientStore, has_deadline: bool = True) -> None:
        super().__init__(plan, store)
        self.said, blob = list[str](), BlobRef.from_bytes(b"x")
        control = Control("run", "id", 1, "running", 0, 1, 0, blob)
        self.session = ServerSession(control, b"x", lambda *_: "", 0.0, {"1": "mallory"})
        self.judge = BoardJudge(self.session, ReplyValidator(plan), has_deadline, self.said.append)


def stored(tmp_path) -> FolderClientStore:
    return FolderClientStore(tmp_path / "clients", tmp_path / "scratch")


def test_a_model_that_is_not_finite_is_never_committed(tmp_path):
    plan, folder = planned(FedNova()), RunFolder(tmp_path / "run")
    folder.create("")
    try:
        with (
            pytest.raises(
                DivergedError, match="NaN or infinity, because of the update of client 1"
            ),
            Poisoned(plan, folder.client_store) as engine,
        ):
            list(run_rounds(plan, engine, folder))
        assert [e["event"] for e in folder.iterate_events()] == ["start"]
        assert folder.restore_newest_commit(plan.federation.sizes()) is None
    finally:
        folder.close()


@pytest.mark.parametrize(
    ("work", "words"), [(1e-300, "holds NaN or infinity"), (1e-20, "times that of the initial one")]
)
def test_on_boards_the_round_goes_on_without_the_one_who_spoils_it(tmp_path, work, words):
    plan = planned(FedNova())
    with Judging(plan, stored(tmp_path)) as engine:
        engine.work = work
        after, _, event = run_round(plan, engine, plan.create_initial_server())
    assert event["refused"] == ["1"]
    assert "1" not in event["clients"]
    assert len(event["clients"]) == len(plan.federation.clients) - 1
    assert all(bool(torch.isfinite(v).all()) for v in after.model.values())
    (line,) = engine.said
    assert line.startswith("board mallory, client 1, round 0: its update is refused: ")
    assert words in line
    assert engine.session.stats.counters["mallory"].refused == 1


@pytest.mark.parametrize(("work", "kind"), [(1e-300, DivergedError), (1e-20, EngineError)])
def test_without_a_deadline_the_run_stops_and_says_who(tmp_path, work, kind):
    plan = planned(FedNova())
    with Judging(plan, stored(tmp_path), has_deadline=False) as engine:
        engine.work = work
        with pytest.raises(kind, match="board mallory, client 1, round 0: its update is refused"):
            run_round(plan, engine, plan.create_initial_server())


class Mistaken(Algorithm):
    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        raise KeyError("a mistake of the algorithm")


class Spoilt(Algorithm):
    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        return server.update(server.model * float("inf"))


def test_a_mistake_of_the_algorithm_is_nobodys_fault(tmp_path):
    plan = planned(Mistaken())
    with Judging(plan, stored(tmp_path)) as engine, pytest.raises(KeyError, match="a mistake"):
        run_round(plan, engine, plan.create_initial_server())


def test_where_nobody_alone_is_responsible_nothing_is_merged(tmp_path):
    plan = planned(Spoilt())
    server = plan.create_initial_server()
    with Judging(plan, stored(tmp_path)) as engine:
        after, _, event = run_round(plan, engine, server)
    assert (event["clients"], event["void"]) == ([], True)
    assert event["refused"] == list(plan.federation.clients)
    assert (after.t, after.model.digest()) == (1, server.model.digest())


def test_an_update_cannot_grow_with_what_was_sent():
    """After some rounds, what was sent is itself poisoned."""
    plan = planned(Algorithm())
    validator = ReplyValidator(plan)
    model = plan.create_initial_server().model
    grown = [model * 500.0**n for n in range(3)]
    first, second = (
        Job(kind="train", t=t, client="1", tensors=sent) for t, sent in enumerate(grown[:2])
    )
    validator.check_tensors(grown[1], first)
    with pytest.raises(CodecError, match="1000 times that of the initial tensors"):
        validator.check_tensors(grown[2], second)
