"""Child processes: their messages, errors and ends, as the parent sees them."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

import pytest

from heterophony.core.errors import DivergedError, EngineError
from heterophony.engines.child_processes import ChildProcess, send_errors, start_fork_server


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
