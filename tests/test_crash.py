"""Kill -9 anything, resume, same bits: a few kills per algorithm; `tests/crash.py` does more."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from crash import recorded, survived
from heterophony.algorithms import CLASSES
from heterophony.engines.pool import CONTEXT, warm
from support import digits, identical, played

ALGORITHMS = sorted(CLASSES)
LONGER = {"rounds": 6, "model": "digitsnet"}


def drive(name: str, out: Path) -> None:
    played(name, digits(), out=out, resume=True, **LONGER)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_driver_resumes_to_the_same_bits(name, tmp_path):
    """The driver comes from the fork server, which has imported everything: it starts at once."""
    warm()
    rng, out = random.Random(name), tmp_path / "run"
    for at in (rng.randrange(2, 5), rng.randrange(6, 9)):
        driver = CONTEXT.Process(target=drive, args=(name, out))
        driver.start()
        while driver.is_alive() and recorded(out / "events.jsonl") < at:
            driver.join(rng.random() / 100)  # spreads the kills over all moments of a round
        driver.kill()
        driver.join()
    assert identical(played(name, **LONGER), played(name, out=out, resume=True, **LONGER))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_worker_is_replaced_and_its_job_repeated(name):
    victims: list[int] = []

    def kill_one(event):
        if event["event"] == "round" and len(victims) < 2:
            servers = psutil.Process().children()
            workers = [w.pid for s in servers for w in s.children() if w.pid not in victims]
            victims.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    stormy = played(name, engine="pool", workers=2, on_event=kill_one)
    assert len(victims) == 2
    assert identical(stormy, played(name))


def test_the_command_survives_kills_of_driver_and_workers(tmp_path):
    expected, found, _ = survived("fedreg", kills=2, seed=1, folder=tmp_path)
    assert found == expected
