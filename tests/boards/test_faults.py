"""Faults of a run on boards, with the real Mosquitto and real processes: same bits, or as told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.boards import (
    HOLDS,
    LONG,
    BoardProcesses,
    Point,
    configured,
    mosquitto,
    preload,
    simulated_result,
)
from helpers.fault_proxy import FaultProxy
from heterophony.boards.broker.broker import Broker
from heterophony.core.algorithm import Reply
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.work import work
from heterophony.runs.loop import build_evaluation_jobs
from heterophony.runs.round_events import compute_model_sha256

WORK = "heterophony.boards.board:work"


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[tuple[Broker, Path]]:
    """A broker, and the enrolments of three boards."""
    preload()
    folder = tmp_path_factory.mktemp("broker")
    with mosquitto(folder, *HOLDS, "three") as (made, _):
        yield made, folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    """The run without boards."""
    return simulated_result(tmp_path_factory.mktemp("alone") / "run", configured())


@pytest.fixture
def bench(broker, tmp_path) -> Iterator[Callable[..., BoardProcesses]]:
    made: list[BoardProcesses] = []

    def make(**settings: str) -> BoardProcesses:
        made.append(BoardProcesses(*broker, tmp_path, configured(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.end()


def same(result: dict[str, Any], alone: dict[str, Any]) -> bool:
    """The same bits everywhere: model, what clients keep, and what was measured."""
    return all(result[k] == alone[k] for k in ("model_sha256", "G", "P", "P_local", "bytes"))


def test_a_calm_run_has_the_bits_of_a_simulation(bench, alone):
    calm = bench()
    calm.server()
    for name in HOLDS:
        calm.board(name)
    assert same(calm.finished(), alone)


# kill -9 ------------------------------------------------------------------------------------

BOARD_DIES = {
    "before it greets": Point(
        "before", "heterophony.boards.protocol.board_session:BoardSession.introduce"
    ),
    "while it pulls chunks": Point(
        "after", "heterophony.boards.protocol.board_session:JobQueue.handle_chunk", 4
    ),
    "before its work": Point("before", WORK, 2),
    "before its memory is kept": Point(
        "before", "heterophony.jobs.client_store:FolderClientStore.save_memory"
    ),
    "with its memory half written": Point(
        "before", "heterophony.jobs.client_store:write_atomically"
    ),
    "with its memory kept and no reply": Point(
        "before", "heterophony.boards.protocol.blobs:ReplyStore.put"
    ),
    "with its reply stored": Point("after", "heterophony.boards.protocol.blobs:ReplyStore.put", 2),
    "while it sends chunks": Point(
        "before",
        "heterophony.boards.transport.mqtt_transport:MqttTransport.publish",
        5,
        "up/chunk",
    ),
    "after Taken": Point(
        "after", "heterophony.boards.protocol.board_session:JobQueue.handle_taken", 3
    ),
    "in the last evaluation": Point(
        "before", "heterophony.boards.protocol.board_session:JobQueue.finish_current", 8
    ),
}


@pytest.mark.parametrize("point", BOARD_DIES.values(), ids=BOARD_DIES)
def test_a_board_may_die_at_any_moment(bench, alone, point):
    run = bench()
    run.server()
    run.board("two")
    run.board("one", point)
    run.dead("one")
    run.board("one")
    assert same(run.finished(), alone)


SERVER_DIES = {
    "while it waits": Point(
        "after", "heterophony.boards.protocol.registry:BoardRegistry.handle_hello"
    ),
    "with everybody known": Point("before", "heterophony.boards.server:make_remote_federation"),
    "after it assigned its jobs": Point(
        "before", "heterophony.boards.protocol.server_session:ServerSession.take_replies"
    ),
    "with the first reply taken": Point(
        "after", "heterophony.boards.protocol.assignments:Assignments.accept_or_reject"
    ),
    "before it merges": Point("before", "heterophony.algorithms.fedreg:FedReG.merge", 2),
    "with a round told and not committed": Point(
        "before", "heterophony.runs.folder:RunFolder.commit"
    ),
    "with a commit half written": Point("before", "heterophony.core.files:write_atomically", 2),
    "with a commit and nobody told": Point("after", "heterophony.runs.folder:RunFolder.commit"),
    "in the last evaluation": Point(
        "after", "heterophony.boards.protocol.assignments:Assignments.accept_or_reject", 14
    ),
    "with the end known and no result": Point("before", "heterophony.studies.run:write_json"),
    "with a result and nobody told": Point(
        "before", "heterophony.boards.protocol.server_session:ServerSession.end_run"
    ),
}


@pytest.mark.parametrize("point", SERVER_DIES.values(), ids=SERVER_DIES)
def test_the_server_may_die_at_any_moment(bench, alone, point):
    run = bench()
    run.server(point)
    for name in HOLDS:
        run.board(name)
    run.dead("server")
    run.server()
    assert same(run.finished(), alone)


# The broker ---------------------------------------------------------------------------------


def test_the_broker_may_die_and_forget(bench, alone, broker):
    run = bench()
    run.server()
    for name in HOLDS:
        run.board(name)
    run.until(lambda: run.rounds() == 1)
    os.kill(broker[0].find_pid(), signal.SIGKILL)
    run.until(lambda: all("no connection" in run.said(name) for name in ("server", *HOLDS)))
    broker[0].start()
    assert same(run.finished(), alone)


# The link -----------------------------------------------------------------------------------


@pytest.fixture
def proxy(broker) -> Iterator[FaultProxy]:
    made = FaultProxy(broker[0].read_listen_settings().port)
    yield made
    made.close()


def begun(run: BoardProcesses, proxy: FaultProxy, **ways: int) -> None:
    """Everybody behind the proxy."""
    run.server(port=proxy.port, **ways)
    for name in HOLDS:
        run.board(name, port=proxy.port, **ways)


def test_a_slow_link_costs_only_time(bench, alone, proxy):
    run = bench()
    proxy.delay, proxy.jitter, proxy.rate = 0.005, 0.01, 2e6
    begun(run, proxy)
    assert same(run.finished(), alone)


def test_a_link_that_is_cut_again_and_again_costs_only_time(bench, alone, proxy):
    run, cuts = bench(), 0
    begun(run, proxy)
    run.until(lambda: run.board_of_client().keys() == {"0", "1", "2", "3"})
    while cuts < 5 and not run.run.result_file.exists():
        proxy.cut = 20_000
        run.until(lambda: proxy.cut is None or run.run.result_file.exists())
        cuts += 1
    proxy.mend()
    assert same(run.finished(), alone)
    assert cuts > 1


def test_a_link_that_stands_still_is_left_and_made_again(bench, alone, proxy):
    run = bench()
    begun(run, proxy, keepalive=1)
    run.until(lambda: run.rounds() == 1)
    proxy.stall()
    run.until(lambda: all("no connection" in run.said(name) for name in ("server", *HOLDS)))
    proxy.reset()
    proxy.mend()
    assert same(run.finished(), alone)


def test_a_link_that_damages_what_it_carries_costs_only_time(bench, alone, proxy):
    run = bench()
    begun(run, proxy)
    run.until(lambda: run.board_of_client().keys() == {"0", "1", "2", "3"})
    proxy.corrupt = 7_001
    run.until(lambda: any("no connection" in run.said(name) for name in ("server", *HOLDS)))
    proxy.mend()
    assert same(run.finished(), alone)


# Late, absent, repeated ---------------------------------------------------------------------


def test_the_server_waits_for_a_board_that_comes_late(bench, alone):
    run = bench()
    run.server()
    run.board("one")
    run.until(lambda: "waiting for 2 of 4 clients" in run.said("server"))
    run.board("two")
    assert same(run.finished(), alone)


PATIENT = {"participation__rate": "1.0", "participation__deadline": "2.0"}
PATIENT["participation__quorum"] = "2"  # the others answer, however slow the machine is


def rounds_of(run: BoardProcesses) -> list[tuple]:
    events = [e for e in run.events() if e["event"] == "round"]
    return [(e.get("asked", e["clients"]), e.get("dropped", [])) for e in events]


def own(run: BoardProcesses, name: str, client: str) -> Reply:
    """What a board says of a client after the last round, computed from its own folder."""
    server = run.run.restore_newest_commit(run.plan.federation.sizes())
    folder = run.folder / name / run.run.path.name
    place = FolderClientStore(folder / "clients", folder / "scratch")
    jobs = {j.client: j for j in build_evaluation_jobs(run.plan, server)}
    return work(run.plan, jobs[client], place)


def test_who_stands_still_is_dropped_and_measured_in_the_end_with_its_own_head(bench):
    run = bench(**PATIENT)
    run.server()
    run.board("one")
    still = run.board("two", Point("before", WORK, 5, signal=signal.SIGSTOP))
    run.stopped("two")
    run.until(lambda: run.rounds() == 2)
    os.kill(still.pid, signal.SIGCONT)
    result = run.finished()
    everybody = ["0", "1", "2", "3"]
    assert rounds_of(run) == [(everybody, []), (everybody, ["1", "3"])]
    measured = [e["P"] for e in run.events() if e["event"] == "evaluation"]
    assert [measured[1][i] for i in (1, 3)] == [None, None]
    replies = [own(run, "one" if c in "02" else "two", c) for c in everybody]
    assert measured[2] == [r.metrics["P"] for r in replies]
    server = run.run.restore_newest_commit(run.plan.federation.sizes())
    store = run.run.client_store
    assert result["model_sha256"] == compute_model_sha256(run.plan, store, server, replies)
    kept = run.folder / "two" / run.run.path.name / "clients"
    # Of the job it stood still in, and of the next if it began before word came that the round was over.
    assert len(list(kept.glob("*/0000001"))) in (1, 2)


def test_who_has_gone_is_not_asked_and_measured_again_when_it_is_back(bench):
    run = bench(**PATIENT, rounds="3")
    run.server()
    run.board("one")
    run.board("two", Point("before", WORK, 5), will_delay=0)
    run.dead("two")
    run.until(lambda: run.rounds() == 3)
    run.board("two")
    run.finished()
    everybody = ["0", "1", "2", "3"]
    assert rounds_of(run) == [(everybody, []), (everybody, ["1", "3"]), (["0", "2"], [])]
    measured = [e["P"] for e in run.events() if e["event"] == "evaluation"]
    assert [[m[i] is None for i in (0, 1, 2, 3)] for m in measured] == [
        *([False] * 4, [False, True, False, True], [False, True, False, True], [False] * 4)
    ]
    assert measured[3] == [
        own(run, "one" if c in "02" else "two", c).metrics["P"] for c in everybody
    ]


def test_messages_that_come_again_or_in_another_order_change_nothing(bench, alone, tmp_path):
    run = bench()
    again = {name: {"replays": tmp_path / f"{name}.all"} for name in ("server", *HOLDS)}
    taken = "heterophony.boards.protocol.assignments:Assignments.accept_or_reject"
    run.server(Point("after", taken, 8), **again["server"])
    run.board(
        "one",
        Point("after", "heterophony.boards.protocol.board_session:JobQueue.handle_taken", 2),
        **again["one"],
    )
    run.board("two", **again["two"])
    run.dead("one")
    run.board("one", **again["one"])
    run.dead("server")
    run.server(**again["server"])
    assert same(run.finished(), alone)


# Claims -------------------------------------------------------------------------------------


def test_a_second_board_that_claims_a_client_is_refused_with_words(bench, alone):
    run = bench()
    run.server()
    run.board("one")
    run.until(lambda: "0" in run.board_of_client())
    run.board("three", clients=["0"])
    assert "the server refuses this board: client '0' is held by board 'one'" in run.refused(
        "three"
    )
    run.board("two")
    assert same(run.finished(), alone)


def test_a_second_program_in_the_same_folder_is_refused_with_words(bench, alone):
    run = bench()
    run.server()
    first = run.board("one")
    run.until(lambda: "0" in run.board_of_client())
    second = run.board("one")
    second.join(LONG)
    assert second.exitcode == 2
    assert "BusyError: " in run.said("one")
    assert "in use by another process" in run.said("one")
    run.processes["one"] = first
    run.board("two")
    assert same(run.finished(), alone)


def test_a_second_program_with_a_copied_enrolment_is_refused_and_costs_only_time(bench, alone):
    run = bench()
    run.server()
    run.board("one", will_delay=0)
    run.until(lambda: "0" in run.board_of_client())
    run.board("one", home="elsewhere", will_delay=0)
    assert "the server refuses this board: board 'one' started in another folder" in run.refused(
        "elsewhere"
    )
    # a broker's last word to a connection that it closes may be lost on the way
    heard = ("another process connected as one", "no connection to the broker")
    run.until(lambda: any(words in run.said("one") for words in heard))
    run.board("two")
    assert same(run.finished(), alone)


def test_a_second_program_with_a_copied_enrolment_may_be_killed(bench, alone):
    run = bench()
    run.server()
    run.board("one", will_delay=1)
    run.until(lambda: "0" in run.board_of_client())
    run.board("one", BOARD_DIES["before it greets"], home="elsewhere", will_delay=1)
    run.dead("elsewhere")
    del run.processes["elsewhere"]
    run.board("two")
    assert same(run.finished(), alone)
