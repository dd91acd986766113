"""Kill -9 anything, resume, same bits: a few kills per algorithm; `tests/crash.py` does more."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from crash import survived
from heterophony.algorithms import CLASSES
from support import digits, identical, played


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_kills_of_driver_and_workers_change_nothing(name, tmp_path):
    expected, found, _ = survived(name, kills=2, seed=sorted(CLASSES).index(name), folder=tmp_path)
    assert found == expected


def test_a_killed_worker_is_replaced_and_its_job_repeated():
    victims = []

    def kill_one(event):
        if event["event"] == "round" and len(victims) < 3:
            workers = [
                w
                for server in psutil.Process().children()
                for w in server.children()
                if w.pid not in victims
            ]
            victims.append(workers[0].pid)
            os.kill(workers[0].pid, signal.SIGKILL)

    stormy = played("fedreg", digits(), engine="pool", workers=2, rounds=4, on_event=kill_one)
    assert len(victims) == 3
    assert identical(stormy, played("fedreg", digits(), rounds=4))
