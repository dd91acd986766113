"""Child processes: their messages, errors and ends, as the parent sees them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection

import pytest

from heterophony.core.errors import DivergedError, EngineError
from heterophony.engines.child_processes import (
    START_ATTEMPTS,
    ChildProcess,
    send_errors,
    start_fork_server,
)


@pytest.fixture(autouse=True)
def fork_server() -> None:
    start_fork_server()


def greet_and_fail(pipe: Connection, error: Exception) -> None:
    with send_errors(pipe, "client 3, round 2"):
        pipe.send("hello")
        raise error


def test_an_error_of_ours_is_raised_as_the_same_type_with_the_same_text():
    child = ChildProcess(greet_and_fail, DivergedError("client 3: NaN"))
    assert child.receive() == "hello"
    with pytest.raises(DivergedError, match=r"^client 3: NaN$"):
        child.receive()
    with pytest.raises(EOFError):
        child.receive()
    assert child.wait_for_exit() == 0


def test_any_other_error_says_where_it_happened_and_has_its_trace():
    child = ChildProcess(greet_and_fail, KeyError("mistake"))
    child.receive()
    with pytest.raises(
        EngineError, match=r"^client 3, round 2: KeyError\('mistake'\)\nTraceback"
    ) as caught:
        child.receive()
    assert "greet_and_fail" in str(caught.value)
    assert child.wait_for_exit() == 0


def send_collection(pipe: Connection) -> None:
    pipe.send(gc.isenabled())


def test_a_child_collects_garbage_although_the_fork_server_does_not():
    child = ChildProcess(send_collection)
    assert child.receive()
    assert child.wait_for_exit() == 0


def send_pid_and_wait(pipe: Connection) -> None:
    pipe.send((os.getpid(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN))
    signal.pause()


def test_a_killed_child_is_noticed_and_can_be_started_again():
    child = ChildProcess(send_pid_and_wait)
    pids = []
    for _ in range(2):
        pid, ignores_ctrl_c = child.receive()
        assert ignores_ctrl_c
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EOFError):
            child.receive()
        assert child.wait_for_exit() == -signal.SIGKILL
        child.start()
    child.kill()
    assert len(set(pids)) == 2


def send_number(pipe: Connection) -> None:
    pipe.send(7)


def test_a_fork_server_that_dies_while_a_child_starts_is_replaced(monkeypatch):
    """Otherwise the command line takes the EOFError for Ctrl-D, says "Aborted", and the run ends."""
    true_connect, server = forkserver.connect_to_new_process, forkserver._forkserver._forkserver_pid
    asked = []

    def connect(fds: list[int]) -> tuple[int, int]:
        asked.append(fds)
        if len(asked) > 1:
            return true_connect(fds)
        os.kill(server, signal.SIGSTOP)  # so that it does not answer the request
        ends = true_connect(fds)
        os.kill(server, signal.SIGKILL)
        return ends

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect)
    child = ChildProcess(send_number)
    assert child.receive() == 7
    assert child.wait_for_exit() == 0
    assert len(asked) == 2
    assert forkserver._forkserver._forkserver_pid != server


def test_a_child_that_cannot_be_started_is_one_clear_line(monkeypatch):
    attempts = []

    def connect(fds: list[int]) -> None:
        attempts.append(fds)
        raise ConnectionRefusedError

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect)
    with pytest.raises(EngineError, match="the fork server exited every time"):
        ChildProcess(send_number)
    assert len(attempts) == START_ATTEMPTS


def test_workers_start_without_what_only_some_of_them_need():
    code = (
        "import sys, heterophony.engines.child_processes\n"
        "early = 'torch' in sys.modules\n"
        "import heterophony.engines.pool\n"
        "from heterophony.data.sources import read_source\n"
        "read_source('digits')\n"
        "slow = ('torch._dynamo', 'sklearn', 'scipy', 'matplotlib', 'pandas')\n"
        "print(early, [m for m in slow if m in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout == "False []\n"
