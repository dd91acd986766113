"""A testbed on one machine: the bits of a simulation whatever fails, and no process left over."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from helpers.boards import installed
from helpers.commands import TRAINING
from heterophony.boards import testbed
from heterophony.boards.broker import process
from heterophony.boards.testbed import (
    FAULT_KINDS,
    CuttableProxy,
    PrivateBroker,
    Testbed,
    assign_clients,
    draw_fault,
    parse_fault_kinds,
    run_server,
    start_testbed_fork_server,
)
from heterophony.cli import app
from heterophony.config.reading import read_config
from heterophony.engines.child_processes import CONTEXT
from heterophony.runs.folder import RunFolder

QUICK = ("rounds=2", "data.clients=4", "data.partition.alpha=0.5", "training.epochs=1")
SETTINGS = [w for s in (*QUICK, *TRAINING, "model.name=mlp") for w in ("-c", s)]
LONG = 120  # seconds; a machine may be busy


@pytest.fixture
def mosquitto() -> None:
    installed()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty folder, without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")


def call(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def refused(*words: str) -> str:
    """Return the one line on stderr of a command that is refused."""
    done = call("testbed", *words)
    assert (done.exit_code, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


def test_killed_boards_and_brokers_cost_no_bit_and_the_same_command_shows_the_result(mosquitto):
    words = ["testbed", *SETTINGS, "--boards", "2", "--faults", "boards,broker", "--json"]
    done = call(*words)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    simulation = ["run", *SETTINGS, "-c", "algorithm.name=fedreg", "-c", "engine.name=serial"]
    alone = json.loads(call(*simulation, "--json").stdout)
    assert {k: result[k] for k in ("model_sha256", "G", "P_local", "bytes")} == {
        k: alone[k] for k in ("model_sha256", "G", "P_local", "bytes")
    }
    struck = [line for line in done.stderr.splitlines() if line.startswith("round")]
    assert struck == [
        "round 0: board 1 was killed and restarted",
        "round 1: the broker was killed and restarted",
    ]
    assert not Path("runs/testbed/testbed/broker").exists()
    again = call(*words[:-1])
    trained = result["P_local"]
    assert f"P, just trained   {100 * trained['best']:.2f} (round {trained['best_round']})" in (
        again.stdout
    )
    assert "killed" not in again.stderr
    other = refused(*SETTINGS, "-c", "seed=1")
    assert other == "runs/testbed holds a run with other settings; choose another --out"
    assert refused(*SETTINGS, "--boards", "3") == (
        "runs/testbed was started with 2 boards: use --boards 2, or choose another --out"
    )


def test_without_mosquitto_there_is_the_line_to_install_it(monkeypatch):
    monkeypatch.setattr(process.shutil, "which", lambda *_, **__: None)
    assert refused() == "Mosquitto is not installed; get it with: sudo apt-get install mosquitto"
    assert not Path("runs").exists()


def test_mistakes_are_reported_before_anything_is_written(mosquitto):
    assert refused("--faults", "board") == ("--faults: there is no 'board'; did you mean 'boards'?")
    assert refused(*SETTINGS, "--boards", "5") == (
        "--boards 5: there are only 4 clients; use fewer boards, or -c data.clients=5"
    )
    assert refused(*SETTINGS, "-c", "algorithm.name=centralized").endswith("use heterophony run")
    assert refused(*SETTINGS, "-c", "data.new_clients=0.5").startswith(
        "data.new_clients: clients on boards cannot join"
    )
    assert not Path("runs").exists()


def test_clients_are_assigned_evenly_in_their_order():
    clients = [str(i) for i in range(31)]
    by_board = assign_clients(clients, None, RunFolder(Path("none")))
    assert [c for assigned in by_board for c in assigned] == clients
    assert sorted(map(len, by_board)) == [3] * 9 + [4]


def test_faults_depend_on_seed_and_round_alone():
    assert parse_fault_kinds(["broker, boards", "network"]) == ("boards", "broker", "network")
    assert parse_fault_kinds(["broker", "all"]) == FAULT_KINDS
    drawn = [draw_fault(FAULT_KINDS, 0, t, 10) for t in range(100)]
    assert drawn == [draw_fault(FAULT_KINDS, 0, t, 10) for t in range(100)]
    assert drawn != [draw_fault(FAULT_KINDS, 1, t, 10) for t in range(100)]
    assert {s.kind for s in drawn if s} == set(FAULT_KINDS)
    assert {s.board for s in drawn if s} == set(range(10))
    assert draw_fault([], 0, 0, 10) is None


# Nothing is left ------------------------------------------------------------------------------


def run_testbed(pipe, folder: Path) -> None:
    """Run a testbed until it is killed; send the ids of its processes."""
    run = RunFolder(folder)
    run.create("rounds = 1\n[data]\nclients = 2\n")
    with Testbed(run, [["0"]], 0, (), lambda words: None, lambda event: None) as bed:
        assert bed.broker
        others = [part.process.pid for part in bed.processes]
        pipe.send([bed.broker.cleanup_process.pid, bed.broker.broker.find_pid(), *others])
        signal.pause()


def ends(number: int) -> bool:
    """Has the process ended, or does it within a long time?"""
    try:
        watched = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], LONG)[0])
    finally:
        os.close(watched)


def test_all_end_with_a_testbed_that_is_killed(mosquitto, tmp_path):
    start_testbed_fork_server()
    ours, theirs = CONTEXT.Pipe(duplex=False)
    testbed = CONTEXT.Process(target=run_testbed, args=(theirs, tmp_path / "run"))
    testbed.start()
    theirs.close()
    numbers = ours.recv()
    testbed.kill()
    testbed.join()
    assert len(numbers) == 4
    assert all(map(ends, numbers))


def test_a_restarted_server_removes_what_a_killed_one_left_unfinished(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    run.create(read_config(None).to_toml())
    run.close()
    names = (".events.jsonl.0123456789abcdef.new", "commits/.0000003.0123456789abcdef.new")
    of_board = run.path / "testbed/boards/board-1/.state.0123456789abcdef.new"
    for path in (*(run.path / name for name in names), of_board):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(testbed, "serve", lambda *given: None)
    run_server(print, run.path, None)
    assert [p for p in run.path.rglob(".*") if p.suffix == ".new"] == [of_board]  # being written


def test_a_broker_that_was_left_over_does_not_disturb_the_next(mosquitto, tmp_path):
    left = PrivateBroker(tmp_path / "broker")
    number = left.broker.find_pid()
    left.cleanup_process.kill()
    left.cleanup_process.join()
    left.close_pidfd()
    broker = PrivateBroker(tmp_path / "broker")
    try:
        assert number is not None
        assert ends(number)
        assert broker.broker.find_pid() not in (None, number)
        port = broker.port
        broker.restart()
        assert broker.port == port
    finally:
        broker.stop()
    assert not (tmp_path / "broker").exists()


# The network ----------------------------------------------------------------------------------


def test_a_proxy_forwards_both_ways_until_it_is_cut_and_then_again():
    with socket.create_server(("127.0.0.1", 0)) as broker:
        proxy = CuttableProxy(broker.getsockname()[1])
        try:
            for _ in range(2):
                board = socket.create_connection(("127.0.0.1", proxy.port), LONG)
                end, _ = broker.accept()
                with board, end:
                    board.sendall(b"there")
                    assert end.recv(5, socket.MSG_WAITALL) == b"there"
                    end.sendall(b"back")
                    assert board.recv(4, socket.MSG_WAITALL) == b"back"
                    proxy.cut()
                    for side in (board, end):
                        with suppress(ConnectionResetError):
                            assert side.recv(1) == b""
        finally:
            proxy.close()


def test_a_broker_that_is_killed_while_it_starts_is_started_again(mosquitto, tmp_path, monkeypatch):
    """A testbed that was told that its broker had died must not end because it dies again."""
    broker = PrivateBroker(tmp_path / "broker")
    true_wait, killed = process.wait_until_answering, []

    def kill_and_wait(folder, server, log_start):
        pid = true_wait(folder, server, log_start)
        if len(killed) < 2:  # once before, and once after its start is known
            killed.append(pid)
            pidfd = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([pidfd], [], [], LONG)
            os.close(pidfd)
            if len(killed) == 1:
                return true_wait(folder, server, log_start)
        return pid

    try:
        monkeypatch.setattr(process, "wait_until_answering", kill_and_wait)
        port = broker.port
        broker.restart()
        assert len(killed) == 2
        assert broker.port == port
        assert broker.broker.find_pid() not in (None, *killed)
        assert broker.pidfd is not None
    finally:
        broker.stop()
