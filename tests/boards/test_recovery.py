"""What the server and boards do about a broker that crashes, and a run that is started anew."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.boards import (
    HELD,
    LONG,
    compute_one_at_a_time,
    mosquitto,
    on_boards,
    run_in_folder,
    simulated,
    small,
)
from helpers.sessions import RUN, Simulation, jobs_of
from heterophony.boards.board import BoardFolder, BoardRun, take_part_in_run, wait_for_run
from heterophony.boards.broker.broker import Broker
from heterophony.boards.broker.certificates import EnrolledClients
from heterophony.boards.broker.enrolment import Enrolment, make_endpoint
from heterophony.boards.engine import BoardEngine
from heterophony.boards.protocol.messages import BlobRef, Control, encode_message
from heterophony.boards.protocol.topics import (
    SERVER_GONE,
    SERVER_HERE,
    make_control_topic,
    make_server_topic,
)
from heterophony.boards.server import ServerHooks, serve
from heterophony.boards.transport.mqtt_transport import MqttTransport
from heterophony.core.errors import StoppedError
from heterophony.population.attacks import Faults


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[tuple[Broker, dict[str, Enrolment]]]:
    with mosquitto(tmp_path_factory.mktemp("recovery"), *HELD) as made:
        yield made


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    compute_one_at_a_time(monkeypatch)


def test_a_broker_killed_in_a_round_is_started_again_and_costs_no_bit(broker, tmp_path):
    made, known = broker
    config, killed, said = small("fedreg"), list[int](), list[str]()

    class Killer(BoardRun):
        """Kills the broker before it hands in its first result."""

        def submit_result(self, *result):
            if not killed:
                killed.append(made.find_pid())
                os.kill(killed[0], signal.SIGKILL)
            super().submit_result(*result)

    result, _ = on_boards(
        *(config, known, tmp_path / "killed", HELD, {"one": Killer}, said.append),
        enrolled=EnrolledClients(made.folder),
    )
    assert result.model_sha256 == simulated(config, tmp_path / "plain")[0].model_sha256
    assert said.count("the broker crashed; restarting it") == 1
    assert made.find_pid() not in (None, *killed)


def test_a_broker_that_was_stopped_is_not_started_again(tmp_path):
    with mosquitto(tmp_path) as (made, _):
        assert not made.restart_if_crashed()
        made.stop()
        assert not made.restart_if_crashed()
        assert made.find_pid() is None


def test_boards_go_on_with_a_run_that_was_deleted_and_started_anew(broker, tmp_path):
    known, config, said = broker[1], small("fedreg"), list[str]()
    boards = [
        threading.Thread(
            target=take_part_in_run,
            args=(known[name], "again", tmp_path / name, clients, said.append),
            daemon=True,
        )
        for name, clients in HELD.items()
    ]
    for board in boards:
        board.start()

    def stop(event):
        if event["event"] == "round":
            raise StoppedError("by the test")

    def run(hooks):
        return run_in_folder(
            config,
            tmp_path / "run",
            lambda out: serve(config, out, known["server"], "again", hooks),
        )[0]

    with pytest.raises(StoppedError):
        run(ServerHooks(said.append, stop))
    shutil.rmtree(tmp_path / "run")
    result = run(ServerHooks(said.append))
    for board in boards:
        board.join(LONG)
        assert not board.is_alive()
    assert result.model_sha256 == simulated(config, tmp_path / "plain")[0].model_sha256
    assert sum(line.startswith("run again was started again") for line in said) == len(HELD)
    for name in HELD:  # what the earlier run left is kept
        assert len(list((tmp_path / name).iterdir())) == 2


def test_another_run_of_the_same_name_is_noticed_though_it_is_at_an_earlier_start(tmp_path):
    world = Simulation(tmp_path, {"pi-1": ["a"]})
    world.play(jobs_of(3, "a", tests=False))
    session = world.boards["pi-1"].session
    before = session.control
    new = replace(before, run_id="second", start=1, t=0, state="waiting")
    assert session.receive(make_control_topic(RUN), encode_message(new), world.now) == []
    assert (session.control, session.replaced_by) == (before, "second")


def test_a_board_without_a_run_takes_one_whose_server_is_connected(broker):
    known, said = broker[1], list[str]()
    with MqttTransport(make_endpoint(known["server"])) as server:
        assert server.inbox.get(timeout=LONG).kind == "connected"
        for run, state in (("old", SERVER_GONE), ("new", SERVER_HERE)):
            control = Control(run, "id", 1, "waiting", 0, 1, 0, BlobRef.from_bytes(b"x"))
            server.publish(make_control_topic(run), encode_message(control), retain=True)
            server.publish(make_server_topic(run), state, retain=True)
        assert wait_for_run(known["one"], said.append) == "new"
    assert (said[0], said[-1]) == ("waiting for a server", "found run new")
    assert set(said[1:-1]) <= {
        "run old has no server at present; waiting for it, or for another run"
    }


def test_the_deadline_holds_at_the_first_evaluation_and_not_at_the_last(tmp_path):
    session = Simulation(tmp_path, {"pi-1": ["a"]}).server
    link = SimpleNamespace(session=session, say=print)
    engine = BoardEngine(SimpleNamespace(rounds=3), link, None, Faults(deadline=2.0), lambda: 0)
    first, last = jobs_of(0, "ab"), jobs_of(3, "ab")[2:]
    assert not engine.is_round_over(first, seconds=1.9, trained=2)
    assert engine.is_round_over(first, seconds=2.0, trained=2)
    assert not engine.is_round_over(last, seconds=1e6, trained=0)


def test_a_board_removes_what_it_was_writing_when_it_was_killed(tmp_path):
    BoardFolder(tmp_path).close()
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / ".0000001.0123456789abcdef.new").write_bytes(b"half")
    BoardFolder(tmp_path).close()
    assert sorted(tmp_path.rglob("*")) == before
