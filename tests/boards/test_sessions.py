"""Server and board sessions over a network that loses, repeats and delays; processes are killed."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

import heterophony as hp
from helpers.sessions import (
    CONFIG,
    LIMIT,
    MANY_FAULTS,
    RUN,
    SMALL_LIMIT,
    FaultRates,
    Simulation,
    doubled,
    holding,
    jobs_of,
)
from helpers.support import QUICK, digits, identical, model, same
from heterophony.boards.engine import BoardJudge
from heterophony.boards.protocol import blobs as chunks
from heterophony.boards.protocol import job_codec
from heterophony.boards.protocol.assignments import MESSAGES_PER_JOB
from heterophony.boards.protocol.blobs import GivenStore, OutgoingBlob, ReplyStore, decode_chunk
from heterophony.boards.protocol.board_session import JobQueue
from heterophony.boards.protocol.board_stats import BoardCounters
from heterophony.boards.protocol.messages import (
    BlobRef,
    Control,
    Done,
    Failed,
    Hello,
    Refused,
    Rejected,
    Taken,
    Want,
    add_run,
    decode_message,
    encode_message,
    split_run,
)
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.protocol.topics import make_board_topic, make_control_topic
from heterophony.core.algorithm import Reply
from heterophony.core.errors import (
    CodecError,
    DivergedError,
    EngineError,
    NotFiniteError,
    StorageError,
)
from heterophony.engines import base
from heterophony.engines.base import Serial
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.work import work as plan_work

BOARDS = {"pi-1": ["a", "b", "c"], "pi-2": ["d"], "pi-3": ["e", "f"]}
CLIENTS = list("abcdef")
CONFIG_BLOB = BlobRef.from_bytes(b"config")


def find_misbehaving(server: ServerSession) -> dict[str, BoardCounters]:
    """Return the counters of the boards with problems."""
    return {d: c for d, c in server.registry.stats.counters.items() if c.problems}


def content(replies: list[Reply]) -> list[tuple]:
    return [(r.client, r.kind, r.turn, r.samples, r.weight, r.examples, r.kept, dict(r.metrics),
             r.tensors.digest(), r.aside.digest()) for r in replies]  # fmt: skip


def expected(jobs) -> list[tuple]:
    return content([doubled(j) for j in jobs])


def test_a_calm_round_gives_every_reply_once_and_every_job_is_done_once(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    for t in range(3):
        jobs = jobs_of(t, CLIENTS)
        assert content(world.play(jobs)) == expected(jobs)
    assert set(world.boards["pi-1"].worked.values()) == {1}
    assert find_misbehaving(world.server) == {}


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_changes_nothing_but_the_time(tmp_path, seed):
    world = Simulation(tmp_path, BOARDS, MANY_FAULTS, seed)
    for t in range(3):
        jobs = jobs_of(t, CLIENTS, size=300 if seed % 6 else 100_000)
        assert content(world.play(jobs)) == expected(jobs)


def test_a_storm_with_several_turns_of_a_client_keeps_them_apart(tmp_path):
    jobs = [replace(j, turn=turn, keeps_memory=turn == 1) for j in jobs_of(0, "ab", tests=False)
            for turn in (0, 1)]  # fmt: skip
    world = Simulation(tmp_path, {"pi-1": ["a", "b"]}, MANY_FAULTS, seed=3)
    assert content(world.play(jobs)) == expected(jobs)


# Crashes ------------------------------------------------------------------------------------


def test_a_board_killed_after_its_work_announces_it_from_its_disk(tmp_path):
    world, jobs = Simulation(tmp_path, {"pi-1": ["a", "b"]}), jobs_of(0, "ab", tests=False)
    board = world.boards["pi-1"]
    world.publish("", world.server.submit_jobs(jobs, world.now))
    world.until(lambda: len(board.worked) == 1)
    world.jobs = jobs
    world.disconnect(board, 5.0)
    board.start(world.now)  # the announcement may be lost, the reply is not
    world.until(lambda: len(world.replies) == 2)
    assert set(board.worked.values()) == {1}


def test_a_server_killed_before_its_commit_gets_the_replies_again_without_more_work(tmp_path):
    world, jobs = Simulation(tmp_path, BOARDS), jobs_of(0, CLIENTS)
    first = world.play(jobs)
    world.start_server()
    world.until(lambda: len(world.replies) == len(jobs))
    assert sorted(content(world.replies), key=str) == sorted(content(first), key=str)
    assert {n for d in world.boards.values() for n in d.worked.values()} == {1}


def test_replies_lie_on_the_disk_until_the_server_has_gone_on(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a", "b"]})
    world.play(jobs_of(0, "ab"))
    assert len(list((tmp_path / "pi-1").iterdir())) == 4
    world.play(jobs_of(1, "a"))
    assert len(list((tmp_path / "pi-1").iterdir())) == 2
    world.publish("", world.server.end_run())
    world.until(lambda: world.boards["pi-1"].session.control.state == "ended")
    assert list((tmp_path / "pi-1").iterdir()) == []


def test_damaged_files_in_the_reply_store_are_dropped_and_the_work_is_done_again(tmp_path):
    world, jobs = Simulation(tmp_path, {"pi-1": ["a"]}), jobs_of(0, "a", tests=False)
    world.play(jobs)
    (kept,) = (tmp_path / "pi-1").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    (tmp_path / "pi-1" / ".half.new").write_bytes(b"{")
    assert ReplyStore(tmp_path / "pi-1").announcements == {}
    assert list((tmp_path / "pi-1").iterdir()) == []
    world.boards["pi-1"].start(world.now)
    world.start_server()
    world.until(lambda: len(world.replies) == 1)
    assert content(world.replies) == expected(jobs)
    assert set(world.boards["pi-1"].worked.values()) == {2}


def test_a_board_that_vanishes_while_it_sends_goes_on_with_the_chunks_that_are_missing(tmp_path):
    world, jobs = Simulation(tmp_path, {"pi-1": ["a"]}), jobs_of(0, "a", size=700_000, tests=False)
    board, chunks = world.boards["pi-1"], make_board_topic("pi-1", "up/chunk")
    world.publish("", world.server.submit_jobs(jobs, world.now))

    def received() -> int:
        record = world.server.registry.boards.get("pi-1")
        return len(record.current_transfer[1].received) if record and record.current_transfer else 0

    world.until(lambda: bool(board.worked))
    while received() < 5:  # in the middle of what is on its way
        world.now, _, to, topic, payload = heapq.heappop(world.flying)
        world.arrive(to, topic, payload)
    world.flying.clear()
    world.disconnect(board, 20.0)
    before = len([m for m in world.sent if m.topic == chunks])
    world.until(lambda: len(world.replies) == 1)
    assert content(world.replies) == expected(jobs)
    after = len([m for m in world.sent if m.topic == chunks]) - before
    assert after == 22 - 5
    assert set(board.worked.values()) == {1}


def test_a_gone_board_is_not_spoken_to_and_its_clients_are_not_present(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.until(lambda: world.server.registry.list_available_clients() == CLIENTS)
    world.disconnect(world.boards["pi-1"], 1e9)
    world.until(lambda: world.server.registry.list_available_clients() == ["d", "e", "f"])
    world.sent.clear()
    world.publish("", world.server.submit_jobs(jobs_of(0, CLIENTS), world.now))
    world.until(lambda: len(world.replies) == 6)
    assert not any("/b/pi-1/down" in m.topic for m in world.sent)
    world.boards["pi-1"].back = world.now
    world.until(lambda: len(world.replies) == 12)
    assert world.server.registry.list_available_clients() == CLIENTS


def test_a_broker_that_forgets_everything_costs_only_time(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    jobs = jobs_of(0, CLIENTS)
    world.publish("", world.server.submit_jobs(jobs, world.now))
    world.until(lambda: len(world.replies) >= 3)
    for board in world.boards.values():
        board.online, board.back = False, world.now + 3
    world.retained.clear()
    world.flying.clear()
    world.publish("", world.server.handle_connected(world.now))
    world.until(lambda: len(world.replies) >= 12)
    assert sorted(map(str, content(world.replies))) == sorted(map(str, expected(jobs)))
    assert {n for d in world.boards.values() for n in d.worked.values()} == {1}


def test_the_will_of_an_earlier_start_counts_nothing(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.until(lambda: world.server.registry.list_available_clients() == ["a"])
    will = world.boards["pi-1"].session.make_status_publication("gone")
    world.boards["pi-1"].start(world.now)
    world.until(lambda: world.boards["pi-1"].session.welcomed)
    assert world.server.receive(will.topic, will.payload, world.now) == []
    assert world.server.registry.list_available_clients() == ["a"]


# Late, replayed, foreign --------------------------------------------------------------------


def test_a_reply_that_comes_after_the_deadline_is_not_taken(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"], "pi-2": ["b"]})
    world.until(lambda: world.server.registry.list_available_clients() == ["a", "b"])
    slow = world.boards["pi-2"]
    world.publish("", world.server.submit_jobs(jobs_of(0, "ab", tests=False), world.now))
    world.until(lambda: slow.busy is not None)
    slow.busy = world.now + 30, slow.busy[1]
    world.until(lambda: len(world.replies) == 1)
    world.server.assignments.abandon_open_jobs()
    late = job_codec.encode_reply(doubled(slow.busy[1]))
    done = Done(slow.session.jobs.current.id, 0, 0, BlobRef.from_bytes(late), 1.0)
    replies = world.play(jobs_of(1, "ab", tests=False))
    assert content(replies) == expected(jobs_of(1, "ab", tests=False))
    (answer,) = world.server.handle_message("pi-2", done, world.now)
    assert decode_message(split_run(answer.payload)[1], Rejected) == Rejected(
        done.id, 0, "round 0 is over"
    )
    assert list((tmp_path / "pi-2").iterdir()) != []
    assert {d.t for d in slow.session.jobs.reply_store.announcements.values()} == {1}


def test_replayed_messages_of_earlier_rounds_change_nothing(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.play(jobs_of(0, CLIENTS))
    old = list(world.sent)
    jobs = jobs_of(1, CLIENTS)
    world.publish("", world.server.submit_jobs(jobs, world.now))
    for m in old:
        for to in ("", *world.boards):
            world.arrive(to, m.topic, m.payload)
    world.until(lambda: len(world.replies) >= 24)
    for m in old + world.sent:
        for to in ("", *world.boards):
            world.arrive(to, m.topic, m.payload)
    world.moment()
    assert sorted(map(str, content(world.replies[12:]))) == sorted(map(str, expected(jobs)))
    assert {n for d in world.boards.values() for n in d.worked.values()} == {1}
    assert world.boards["pi-1"].session.control.t == 1


def test_a_reply_that_is_announced_again_was_taken(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.play(jobs_of(0, "a", tests=False))
    (done,) = world.boards["pi-1"].session.jobs.reply_store.announcements.values()
    (answer,) = world.server.handle_message("pi-1", done, world.now)
    assert decode_message(split_run(answer.payload)[1], Taken) == Taken(done.id)
    assert world.server.take_replies() == []


def test_how_the_run_stood_before_is_no_news(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.play(jobs_of(4, "a", tests=False))
    world.start_server()
    world.until(lambda: len(world.replies) == 1)
    session = world.boards["pi-1"].session
    now = session.control
    assert (now.start, now.t, now.state) == (2, 4, "running")
    for old in ({"start": 1, "t": 9}, {"t": 3}, {"state": "waiting"}):
        payload = encode_message(replace(now, **old))
        assert session.receive(make_control_topic(RUN), payload, world.now) == []
        assert session.control == now


def test_messages_of_another_run_are_ignored(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.play(jobs_of(0, CLIENTS))
    before = len(world.sent)
    for m in list(world.sent):
        topic = m.topic.replace(f"/{RUN}/", "/run-2/")
        payload = m.payload if "/ctl" in topic else add_run("run-2", split_run(m.payload)[1])
        assert world.server.receive(topic, payload, world.now) == []
        for board in world.boards.values():
            assert board.session.receive(topic, payload, world.now) == []
    assert len(world.sent) == before
    assert world.server.take_replies() == []
    assert find_misbehaving(world.server) == {}


def test_a_task_of_a_round_that_is_over_is_not_done(tmp_path):
    """The memory it would begin from may be gone: its result would be wrong, and kept."""
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.play(jobs_of(3, "a", tests=False))
    old = job_codec.make_assigned(
        RUN, jobs_of(2, "a")[0], BlobRef.from_bytes(b"x"), BlobRef.from_bytes(b"y")
    )
    session = world.boards["pi-1"].session
    down = make_board_topic("pi-1", "down")
    assert session.receive(down, add_run(RUN, encode_message(old)), world.now) == []
    assert session.jobs.waiting == {}


# A server that has gone back ------------------------------------------------------------------


def queue_of_jobs(folder, *tensors: bytes) -> JobQueue:
    """Return the queue of a board that waits for the tensors of a job for each."""
    jobs = JobQueue(ReplyStore(folder), GivenStore(folder / "given"), max_blob_bytes=1000, now=0.0)
    jobs.handle_control(Control(RUN, "id", 1, "running", 0, 9, 0, CONFIG_BLOB), 0.0)
    jobs.blob_cache.blobs[CONFIG_BLOB.sha256] = b"config"
    for client, content in zip("abc", tensors, strict=False):
        blob = BlobRef.from_bytes(content)
        jobs.handle_assigned(job_codec.make_assigned(RUN, jobs_of(0, client)[0], blob, blob), 0.0)
    return jobs


def test_tensors_that_the_server_no_longer_sends_do_not_hold_up_those_of_other_jobs(tmp_path):
    first, second = BlobRef.from_bytes(b"first"), BlobRef.from_bytes(b"second")
    jobs = queue_of_jobs(tmp_path, b"first", b"second")
    wanted, now = list[str](), 0.0
    while now < 29:
        now += 1.0
        wanted += [w.sha256 for w in jobs.repeat_overdue(now) if isinstance(w, Want)]
    assert wanted == [second.sha256, first.sha256, second.sha256]  # the waits double
    (chunk,) = OutgoingBlob.from_bytes(b"second").encode_wanted_chunks(Want(second.sha256, (0,)))
    jobs.handle_chunk(decode_chunk(chunk), now)
    assert jobs.blob_cache.has_all(second)


def test_a_transfer_of_which_a_part_has_arrived_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4)
    first = BlobRef.from_bytes(b"first")
    jobs = queue_of_jobs(tmp_path, b"first", b"second")
    part, _ = OutgoingBlob.from_bytes(b"first").encode_wanted_chunks(Want(first.sha256, (0, 1)))
    jobs.handle_chunk(decode_chunk(part), 1.0)
    assert jobs.repeat_overdue(10.0) == [Want(first.sha256, (1,))]


def test_a_new_start_of_the_server_assigns_its_jobs_again(tmp_path):
    jobs = queue_of_jobs(tmp_path, b"first")
    jobs.handle_control(replace(jobs.control, start=2), 1.0)
    assert jobs.waiting == {}


# Wrong boards ------------------------------------------------------------------------------


def refusing(times: int):
    left = [times]

    def check(job, reply):
        if job.client == "b" and job.kind == "train" and left[0]:
            left[0] -= 1
            raise CodecError("tensor 'w' has a norm of 1e9")

    return check


def test_a_wrong_reply_is_rejected_counted_and_the_task_given_again(tmp_path):
    world = Simulation(tmp_path, BOARDS, check=refusing(1))
    jobs = jobs_of(0, CLIENTS)
    assert content(world.play(jobs)) == expected(jobs)
    assert world.boards["pi-1"].worked["b", "train", 0, 0] == 2
    assert world.boards["pi-1"].session.last_rejection_reason == "tensor 'w' has a norm of 1e9"
    (complaint,) = find_misbehaving(world.server).values()
    assert list(find_misbehaving(world.server)) == ["pi-1"]
    assert complaint.problems == 1
    assert complaint.last_reason == "client b, round 0, train: tensor 'w' has a norm of 1e9"


def test_a_board_that_is_always_wrong_is_given_up_and_the_round_goes_on(tmp_path):
    world = Simulation(tmp_path, BOARDS, check=refusing(99))
    jobs = jobs_of(0, CLIENTS)
    world.publish("", world.server.submit_jobs(jobs, world.now))
    world.until(lambda: len(world.replies) == 11 and world.server.assignments.lost_jobs)
    (lost,) = world.server.take_lost_jobs()
    assert (lost.job.client, lost.board, lost.why) == ("b", "pi-1", "tensor 'w' has a norm of 1e9")
    assert find_misbehaving(world.server)["pi-1"].problems == 3
    assert world.server.assignments.open_jobs == {}
    assert world.server.take_lost_jobs() == []


def test_what_is_judged_once_is_not_counted_again_however_often_it_is_repeated(tmp_path):
    failures = [OSError("disk"), OSError("disk")]
    world = Simulation(
        tmp_path,
        {"pi-1": ["a"]},
        FaultRates(lose=0.3, twice=0.5, delay=4.0),
        work=lambda job: failures.pop() if failures else doubled(job),
    )
    jobs = jobs_of(0, "a", tests=False)
    assert content(world.play(jobs)) == expected(jobs)
    assert find_misbehaving(world.server)["pi-1"].problems == 2
    assert world.server.take_lost_jobs() == []


@pytest.mark.parametrize(("error", "tries"), [(ArithmeticError("NaN"), 1), (OSError("disk"), 3)])
def test_work_that_fails_is_tried_again_only_where_that_can_help(tmp_path, error, tries):
    calls = []

    def work(job):
        calls.append(job)
        return error

    world = Simulation(tmp_path, {"pi-1": ["a"]}, work=work)
    world.publish("", world.server.submit_jobs(jobs_of(0, "a", tests=False), world.now))
    world.until(lambda: bool(world.server.assignments.lost_jobs))
    (lost,) = world.server.take_lost_jobs()
    assert (lost.board, lost.why, len(calls)) == ("pi-1", str(error), tries)
    assert lost.diverged == (tries == 1)


@pytest.mark.parametrize("error", [NotFiniteError("a norm of 1e9"), CodecError("NaN or infinity")])
def test_a_reply_diverged_by_the_type_of_its_error_and_not_by_its_words(tmp_path, error):
    def refuse(job, reply):
        raise error

    world = Simulation(tmp_path, {"pi-1": ["a"]}, check=refuse)
    world.publish("", world.server.submit_jobs(jobs_of(0, "a", tests=False), world.now))
    world.until(lambda: bool(world.server.assignments.lost_jobs))
    (lost,) = world.server.take_lost_jobs()
    assert (lost.why, lost.diverged) == (str(error), isinstance(error, NotFiniteError))
    judge = BoardJudge(world.server, validator=None, has_deadline=False, say=print)
    with pytest.raises(DivergedError if lost.diverged else EngineError, match=str(error)):
        judge.handle_lost_job(lost)


def test_an_error_that_no_check_foresaw_is_the_fault_of_the_board(tmp_path):
    def stumble(job, reply):
        if job.client == "b" and job.kind == "evaluate":
            raise KeyError("P")

    world = Simulation(tmp_path, BOARDS, check=stumble)
    world.publish("", world.server.submit_jobs(jobs_of(0, CLIENTS), world.now))
    world.until(lambda: len(world.replies) == 11 and world.server.assignments.lost_jobs)
    (lost,) = world.server.take_lost_jobs()
    assert (lost.job.client, lost.board) == ("b", "pi-1")
    assert lost.why == "it cannot be handled: KeyError('P')"
    assert not lost.diverged

    def trip(board, status):
        raise ZeroDivisionError

    world.server.registry.handle_status = trip
    status = world.boards["pi-2"].session.make_status_publication("here")
    assert world.server.receive(status.topic, status.payload, world.now) == []
    assert "ZeroDivisionError" in find_misbehaving(world.server)["pi-2"].last_reason


def test_an_error_of_the_server_itself_is_no_fault_of_a_board(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})

    def write(board, hello):
        raise StorageError("the disk is full")

    world.server.registry.check_admission = write
    with pytest.raises(StorageError, match="the disk is full"):
        world.until(lambda: False)


def test_of_two_boards_that_claim_a_client_the_first_keeps_it(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"], "pi-2": ["a", "b"]})
    world.boards["pi-2"].back = 5.0
    jobs = jobs_of(0, "a")
    assert content(world.play(jobs)) == expected(jobs)
    world.until(lambda: bool(world.boards["pi-2"].session.refusal_reason))
    why = world.boards["pi-2"].session.refusal_reason
    assert why.startswith("client 'a' is held by board 'pi-1'")
    assert find_misbehaving(world.server)["pi-2"].last_reason == why
    assert world.server.registry.list_available_clients() == ["a"]
    world.disconnect(world.boards["pi-1"], 1e9)  # gone or not: what 'a' keeps lies there
    world.boards["pi-2"].start(world.now)
    world.start_server()
    world.until(lambda: bool(world.boards["pi-2"].session.refusal_reason))
    assert world.server.registry.list_available_clients() == []


def test_nobody_answers_for_another_boards_client(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.until(lambda: world.server.registry.list_available_clients() == CLIENTS)
    world.publish("", world.server.submit_jobs(jobs_of(0, "a", tests=False), world.now))
    (assigned,) = world.server.assignments.open_jobs
    world.say("pi-2", Done(assigned, 0, 0, BlobRef.from_bytes(b"evil"), 0.1))
    world.say("pi-2", Failed(assigned, 0, "no", again=False))
    assert find_misbehaving(world.server)["pi-2"].problems == 2
    assert "does not hold" in find_misbehaving(world.server)["pi-2"].last_reason
    want = Want(world.server.assignments.open_jobs[assigned].assigned.tensors.sha256, (0,))
    assert (
        world.server.handle_message("pi-2", want, world.now) == []
    )  # nor reads what is sent to it
    assert len(world.server.handle_message("pi-1", want, world.now)) == 1
    world.until(lambda: len(world.replies) == 1)


def test_a_greeting_that_does_not_fit_is_refused_in_words(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.server.registry.check_admission = lambda board, hello: (
        "its data has 9 classes, the run 10"
    )
    world.until(lambda: bool(world.boards["pi-1"].session.refusal_reason))
    assert world.boards["pi-1"].session.refusal_reason == "its data has 9 classes, the run 10"
    twice = Hello("s", 1, "0.1.0", BlobRef.from_bytes(CONFIG).sha256, (holding("x"), holding("x")))
    other = Hello("s", 1, "0.1.0", "ab" * 32, (holding("x"),))
    told = [world.server.handle_message("pi-2", h, 0.0)[0].payload for h in (twice, other)]
    whys = [decode_message(split_run(p)[1], Refused).why for p in told]
    assert whys[0] == "it lists a client twice"
    assert whys[1].startswith("it has a different configuration")


def test_a_board_that_is_shut_out_is_heard_no_more_and_its_tasks_are_given_up(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.until(lambda: world.server.registry.list_available_clients() == CLIENTS)
    world.publish("", world.server.submit_jobs(jobs_of(0, CLIENTS), world.now))
    held = BOARDS["pi-2"]
    for _ in range(2):
        world.server.shut_out_board("pi-2", "a flood", world.now)
    lost = [(j.job.client, j.board, j.why) for j in world.server.take_lost_jobs()]
    assert sorted(lost) == sorted((c, "pi-2", "a flood") for c in held for _ in range(2))
    assert not set(held) & set(world.server.registry.list_available_clients())
    world.until(lambda: len(world.replies) == 2 * (len(CLIENTS) - len(held)))
    here = world.boards["pi-2"].session.make_status_publication("here")
    assert world.server.receive(here.topic, here.payload, world.now) == []
    assert world.server.stats.counters["pi-2"].state == "shut_out"
    world.publish("", world.server.submit_jobs(jobs_of(1, CLIENTS, tests=False), world.now))
    assert sorted(j.job.client for j in world.server.take_lost_jobs()) == sorted(held)


def test_only_what_was_asked_for_is_given_back(tmp_path):
    """The budget of a board is given back for requested chunks, once each, and for taken replies."""
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    jobs = jobs_of(0, "a", size=100_000, tests=False)
    (reply,) = world.play(jobs)
    sizes = [size for board, size in world.server.take_requested() if board == "pi-1"]
    assert sum(sizes) > reply.tensors.nbytes
    assert sizes.count(0) == MESSAGES_PER_JOB + 2  # and one Want for each of the two blobs
    for m in [m for m in world.sent if "/up" in m.topic]:  # all of it again
        world.arrive("", m.topic, m.payload)
    assert world.server.take_requested() == []


def test_rubbish_is_counted_against_its_board_and_disturbs_nobody(tmp_path):
    world = Simulation(tmp_path, BOARDS)
    world.until(lambda: world.server.registry.list_available_clients() == CLIENTS)
    world.publish("", world.server.submit_jobs(jobs_of(0, CLIENTS), world.now))
    draw = np.random.default_rng(0)
    for n in range(100):
        world.say("pi-2", draw.bytes(1 + 9 * n), chunk=bool(n % 2))
    world.server.receive("het/3/b/../up", b"", world.now)
    world.server.receive("$SYS/broker", b"", world.now)
    world.until(lambda: len(world.replies) == 12)
    assert {d: c.problems for d, c in find_misbehaving(world.server).items()} == {"pi-2": 100}


def test_a_reply_that_is_too_large_or_not_what_its_name_says_is_rejected(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.until(lambda: world.server.registry.list_available_clients() == ["a"])
    world.boards["pi-1"].online = False
    world.publish("", world.server.submit_jobs(jobs_of(0, "a", tests=False), world.now))
    (assigned,) = world.server.assignments.open_jobs
    world.say("pi-1", Done(assigned, 0, 0, BlobRef("ab" * 32, LIMIT + 1), 0.1))
    assert "over the limit" in find_misbehaving(world.server)["pi-1"].last_reason
    world.say("pi-1", Done(assigned, 1, 0, BlobRef("ab" * 32, 4), 0.1))
    for _ in range(3):
        world.say("pi-1", chunks.encode_chunk(chunks.Chunk("ab" * 32, 0, b"evil")), chunk=True)
    assert find_misbehaving(world.server)["pi-1"].problems == 2
    assert find_misbehaving(world.server)["pi-1"].last_reason.endswith(
        "does not have its announced sha256"
    )
    world.say("pi-1", Done(assigned, 2, 0, BlobRef.from_bytes(b"evil"), 0.1))
    world.say(
        "pi-1",
        chunks.encode_chunk(chunks.Chunk(BlobRef.from_bytes(b"evil").sha256, 0, b"evil")),
        chunk=True,
    )
    (lost,) = world.server.take_lost_jobs()
    assert (lost.board, lost.job.client) == ("pi-1", "a")


def test_the_limit_of_a_reply_is_that_of_its_job(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.until(lambda: world.server.registry.list_available_clients() == ["a"])
    world.boards["pi-1"].online = False
    world.publish("", world.server.submit_jobs(jobs_of(0, "a"), world.now))
    jobs = {o.job.kind: i for i, o in world.server.assignments.open_jobs.items()}
    record = world.server.registry.boards["pi-1"]
    world.say("pi-1", Done(jobs["evaluate"], 0, 0, BlobRef("ab" * 32, SMALL_LIMIT + 1), 0.1))
    assert record.current_transfer is None
    assert find_misbehaving(world.server)["pi-1"].refused == 1  # and the board is told
    assert "over the limit" in find_misbehaving(world.server)["pi-1"].last_reason
    world.say("pi-1", Done(jobs["train"], 0, 0, BlobRef("ab" * 32, SMALL_LIMIT + 1), 0.1))
    assert record.current_transfer[0].id == jobs["train"]


# Bytes --------------------------------------------------------------------------------------


def test_three_clients_of_a_board_get_the_common_model_once_and_the_rest_is_below_2_percent(
    tmp_path,
):
    world, jobs = Simulation(tmp_path, {"pi-1": ["a", "b", "c"]}), jobs_of(0, "abc", size=250_000)
    world.until(lambda: world.server.registry.list_available_clients() == ["a", "b", "c"])
    world.sent.clear()
    replies = world.play(jobs)
    down = sum(len(m.payload) for m in world.sent if "/down" in m.topic)
    up = sum(len(m.payload) for m in world.sent if "/up" in m.topic)
    sent = jobs[0].tensors.nbytes + jobs[-1].generic_model.nbytes
    came = sum(r.tensors.nbytes for r in replies)
    assert sent < down <= 1.02 * sent
    assert came < up <= 1.02 * came


# The real work ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedreg"])
def test_a_stormy_run_on_boards_has_the_bits_of_the_serial_one(tmp_path, monkeypatch, algorithm):
    how = {"rounds": 2, "participation": 0.5, "training": QUICK}
    plain = hp.run(algorithm, digits(), model="mlp", **how)
    worlds = []

    class OnBoards(Serial):
        def run(self, jobs):
            if not worlds:
                worlds.append(world_of(tmp_path, self.plan))
            yield from worlds[0].play(jobs)

    monkeypatch.setattr(base, "Serial", OnBoards)
    deployed = hp.run(algorithm, digits(), model="mlp", **how)
    assert same(model(plain), model(deployed))
    assert identical(plain, deployed)
    assert worlds[0].start > 1 or sum(d.starts for d in worlds[0].boards.values()) > 3


def world_of(disk, plan) -> Simulation:
    """Six clients on three boards, each with a place of its own."""
    names = plan.federation.clients
    boards = {f"pi-{i}": names[i::3] for i in range(3)}
    places = {c: FolderClientStore(disk / d / "memories", disk / d / "scratch")
              for d, held in boards.items() for c in held}  # fmt: skip
    return Simulation(disk / "shelves", boards, MANY_FAULTS, seed=5,
                 work=lambda job: plan_work(plan, job, places[job.client]))  # fmt: skip
