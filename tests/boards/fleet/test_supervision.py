"""The boards while a run goes on: late ones join, dead boards are started again, lost SSH costs nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.local_boards import make_board
from heterophony.boards.fleet import steps
from heterophony.boards.fleet.run import Supervisor
from heterophony.boards.fleet.ssh import BoardError, ConnectionLostError
from heterophony.boards.fleet.steps import ProcessStatus
from heterophony.core.errors import EngineError

RUNNING = ProcessStatus(running=True, started=True, code=None, last="")
BOARD = make_board()


@pytest.fixture
def world(monkeypatch):
    """A supervisor of one board; ``answers`` are what the board gives, one after the other."""
    answers, started, said = [], [], []

    def answer(*_):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def start(board) -> None:
        started.append((preparation.assignment[board.name], preparation.run))

    preparation = SimpleNamespace(
        ssh=None, run="r", assignment={"nano": ("0",)}, prepare=answer, start=start
    )
    monkeypatch.setattr(steps, "read_status", answer)
    supervisor = Supervisor(preparation, set(), said.append, can_lose_boards=False)
    return SimpleNamespace(answers=answers, started=started, said=said, supervisor=supervisor)


def look(world, *answers) -> None:
    world.answers += answers
    for _ in answers:
        world.supervisor.supervise_board(BOARD)


def test_a_board_that_is_late_is_prepared_again_and_again_until_it_is_ready(world):
    world.supervisor.waiting.add("nano")
    look(
        world, ConnectionLostError("off"), ConnectionLostError("off"), BoardError("disk"), "started"
    )
    assert world.supervisor.waiting == set()
    assert world.said == [
        "nano: off; the run continues, because it does not need ssh",
        "nano: disk",
        "nano: is now ready",
        "nano: can be reached by ssh again",
    ]


def test_a_board_that_was_killed_is_started_again_and_one_that_ended_is_not(world):
    killed = ProcessStatus(running=False, started=True, code=137, last="waiting")
    ended = ProcessStatus(running=False, started=True, code=0, last="the run has finished")
    look(world, RUNNING, killed, RUNNING, ended)
    assert world.started == [(("0",), "r")]
    assert world.said == ["nano: heterophony exited with code 137; waiting; restarting it"]
    world.supervisor.raise_failure()


def test_a_board_that_can_never_work_ends_the_run_unless_the_run_can_do_without(world):
    wrong = ProcessStatus(running=False, started=True, code=3, last="error: too little memory")
    look(world, wrong)
    with pytest.raises(EngineError, match="nano: too little memory; fix this and run the same"):
        world.supervisor.raise_failure()
    assert world.started == []
    world.supervisor.can_lose_boards = True
    world.supervisor.failures.clear()
    look(world, wrong)
    world.supervisor.raise_failure()
    assert len(world.started) == 1
