"""Kill any process, resume, and get the same bits; `scripts/soak` kills more often."""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import heterophony as hp
from helpers.crash import recorded
from helpers.support import CALM, calm, identical, played
from heterophony.algorithms import ALGORITHM_CLASSES
from heterophony.core.files import write_atomically
from heterophony.engines.base import EngineSpec, create_engine
from heterophony.engines.child_processes import CONTEXT, start_fork_server
from heterophony.jobs.client_store import FolderClientStore
from heterophony.jobs.plan import Job

ALGORITHMS = sorted(ALGORITHM_CLASSES)
# one algorithm for each kind of memory: none, the client's, the server's, both, derived data, …
KINDS = ["centralized", "fedavg", "fedper", "fedreg", "fedamp", "local", "scaffold"]


def drive(name: str, out: Path) -> hp.Result:
    """Go on with a run. A new process tests first what it computes in groups: some do without."""
    return played(name, out=out, resume=True, fast="auto" if name in KINDS else "off", **CALM)


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
    assert identical(calm(name), drive(name, out))


def storm(out: Path | None = None) -> hp.Result:
    """With clients drawn twice in a round, dropped out and late."""
    how = {"participation": hp.Skewed(count=5, gamma=0.5), "rounds": 6}
    how |= {"faults": hp.Faults(availability=0.9, dropout=0.3, deadline=40.0)}
    how |= {"speeds": hp.Speeds(sample_seconds=0.5, spread=0.5)}
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
    with create_engine(EngineSpec("pool", 1), plan, place) as pool:
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


# The command ------------------------------------------------------------------------------------

SOAK = Path(__file__).parents[2] / "scripts" / "soak"


def test_the_command_survives_kills_of_workers_fork_server_and_driver(tmp_path):
    """Only three kills, because every start is slow; `scripts/soak` kills as often as one likes."""
    words = ["--kills", "3", "--where", "pool", "--algorithms", "fedper"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SOAK), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *kills, result, summary = done.stdout.splitlines()
    assert [line.split(": ")[1].split(" (")[0] for line in kills] == [
        *("worker", "fork server", "driver")
    ]
    assert result.startswith("run 1 (fedper, pool): the same bits, ")
    assert summary == (
        "3 kills in 1 runs (pool: driver 1, pool: fork server 1, pool: worker 1):"
        " all results have the bits of undisturbed runs"
    )
    assert list(tmp_path.glob("soak-*")) == []


def test_the_command_fails_if_bits_differ(capsys):
    script = runpy.run_path(str(SOAK))
    calm = {"model_sha256": "a" * 64, "P": {"last": 0.5}, "P_local": None}

    def play(soak, algorithms, places):
        script["compare_results"](calm | {"model_sha256": "b" * 64}, calm, "run 1 (fedavg, pool)")

    script["main"].__globals__["run_soak"] = play
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    assert script["main"]([]) == 1
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before
    differs, summary = capsys.readouterr().out.splitlines()
    assert differs == (
        f"run 1 (fedavg, pool) DIFFERS in model_sha256: {'b' * 64}, undisturbed {'a' * 64}"
    )
    assert summary == "0 kills in 0 runs (): FAILED"


def test_the_command_accepts_only_ends_that_are_told(tmp_path):
    check = runpy.run_path(str(SOAK))["check_end"]
    exists = "error: board/entry already exists; remove it to add the entry again"
    for code, said in ((0, ""), (-signal.SIGKILL, ""), (3, exists)):
        check(code, said, "leaderboard", tmp_path)
    check(1, "(raylet) Raylet is terminated. Termination is unexpected.", "ray", tmp_path)
    for code, said in ((3, ""), (1, f"Traceback …\n{exists}"), (-signal.SIGSEGV, exists)):
        with pytest.raises(Exception, match=f"exited with code {code}"):
            check(code, said, "leaderboard", tmp_path)
