"""Kill any process, resume, and get the same bits; `tests/helpers/crash.py` kills more often."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import heterophony as hp
from helpers.crash import begin, command, killed, recorded
from helpers.support import CALM, calm, identical, played
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.core.files import write_atomically
from heterophony.engines.base import create_engine
from heterophony.engines.child_processes import CONTEXT, start_fork_server
from heterophony.experiments.execute import execute_plan
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job
from heterophony.runs.store import RunFolder

ALGORITHMS = sorted(ALGORITHM_CLASSES)
# one algorithm for each kind of memory: none, the client's, the server's, both, derived data, …
KINDS = ["centralized", "fedavg", "fedper", "fedreg", "fedamp", "local", "scaffold"]


def drive(name: str, out: Path) -> None:
    played(name, out=out, resume=True, **CALM)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_driver_resumes_to_the_same_bits(name, tmp_path):
    """Kill drivers at random moments. They start fast: the fork server has imported everything."""
    start_fork_server()
    rng, out = random.Random(name), tmp_path / "run"
    kills = [rng.randrange(1, 4), 5] if name in KINDS else [rng.randrange(1, 6)]
    for at in kills:  # the run has seven events before its end
        driver = CONTEXT.Process(target=drive, args=(name, out))
        driver.start()
        while driver.is_alive() and recorded(out / "events.jsonl") < at:
            driver.join(rng.random() / 200)  # spread the kills over a round
        driver.kill()
        driver.join()
    assert identical(calm(name), played(name, out=out, resume=True, **CALM))


def storm(out: Path | None = None) -> hp.Result:
    """With clients drawn twice in a round, dropped out and late."""
    how = {"participation": hp.Skewed(count=5, gamma=0.5), "rounds": 6}
    how |= {"faults": hp.Faults(availability=0.9, dropout=0.3, deadline=40.0)}
    how |= {"devices": hp.Devices(sample_seconds=0.5, spread=0.5)}
    return played("fedper", out=out, resume=out is not None, **how)


def test_a_killed_driver_resumes_the_same_faults_to_the_same_bits(tmp_path):
    start_fork_server()
    rng, out = random.Random(0), tmp_path / "run"
    for at in (3, 8):
        driver = CONTEXT.Process(target=storm, args=(out,))
        driver.start()
        while driver.is_alive() and recorded(out / "events.jsonl") < at:
            driver.join(rng.random() / 200)
        driver.kill()
        driver.join()
    calm, resumed = storm(), storm(out)
    assert identical(calm, resumed)
    assert calm.summary.simulated_seconds == resumed.summary.simulated_seconds > 0
    assert all(any(e[k] for e in calm.events if k in e) for k in ("dropped", "late", "clients"))


@pytest.mark.parametrize("name", KINDS)
def test_a_killed_worker_is_replaced_and_its_job_repeated(name):
    """The engine does not depend on the algorithm, so one of each kind is enough."""
    victims: list[int] = []

    def kill_one(event):
        if event["event"] == "round" and len(victims) < 2:
            servers = psutil.Process().children()
            workers = [w.pid for s in servers for w in s.children() if w.pid not in victims]
            victims.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    stormy = played(name, engine="pool", workers=2, on_event=kill_one, **CALM)
    assert len(victims) == 2
    assert identical(stormy, calm(name))


@dataclass(frozen=True)
class Endless:
    """A task that reports its process id and does not end."""

    told: Path

    def __call__(self, *_: object) -> None:
        write_atomically(self.told, str(os.getpid()).encode())
        signal.pause()


def stuck(folder: Path) -> None:
    plan, place = (
        played("fedavg", rounds=0).plan,
        FolderClientStore(folder / "kept", folder / "scratch"),
    )
    task = Endless(folder / "worker")
    with create_engine("pool", 1, plan, place) as pool:
        list(
            pool.run(
                [
                    Job(
                        kind="other",
                        t=0,
                        client=plan.federation.clients[0],
                        tensors=hp.Tensors(),
                        custom_work=task,
                    )
                ]
            )
        )


def test_a_worker_in_the_middle_of_a_job_ends_with_its_driver(tmp_path):
    start_fork_server()
    driver, worker = CONTEXT.Process(target=stuck, args=(tmp_path,)), tmp_path / "worker"
    driver.start()
    while driver.is_alive() and not worker.exists():
        driver.join(0.01)
    left = psutil.Process(int(worker.read_text()))
    driver.kill()
    driver.join()
    _, alive = psutil.wait_procs([left], 120)
    for process in alive:
        process.kill()
    assert alive == []


def test_the_command_survives_kills_of_driver_and_workers(tmp_path):
    """Only two kills, because every start is slow; `tests/helpers/crash.py` kills more often."""
    rng, out, events = random.Random(1), tmp_path / "run", tmp_path / "run" / "events.jsonl"
    assert killed(begin(out, "fedreg"), events, 3, "driver", rng) == -signal.SIGKILL
    before = recorded(events)
    resume = command("resume", str(out), "--json")
    assert killed(resume, events, before + 1, "worker", rng) == 0
    config = read_config(out / "config.toml")
    alone = execute_plan(
        config.build_plan(config.build_federation()), new(tmp_path / "alone", config)
    )
    found = json.loads((out / "result.json").read_text())
    assert found["model_sha256"] == alone.model_sha256


def new(path: Path, config: Config) -> RunFolder:
    folder = RunFolder(path)
    folder.create(config.to_toml())
    return folder
