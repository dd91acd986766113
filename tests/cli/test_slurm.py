"""``heterophony slurm``: a job array that is killed and queued again ends with the same bits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from helpers.commands import call, refused
from heterophony.core.files import read_json

SMALL = ("-c", "rounds=40", "-c", "data.clients=6", "-c", "training.epochs=1")
SERIAL = ("-c", "model.name=mlp", "-c", "engine.name=serial")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(*words: str) -> str:
    """Return the array script that the command writes to the folder ``out``."""
    done = call("slurm", *words, "--out", "out")
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    for name in ("slurm.sh", "slurm-ray.sh"):
        subprocess.run(["bash", "-n", f"out/{name}"], check=True)
    return Path("out/slurm.sh").read_text()


class StandIn:
    """Slurm for one task of an array at a time; ``scontrol`` writes down what it is asked for."""

    def __init__(self) -> None:
        Path("bin").mkdir()
        scontrol = Path("bin/scontrol")
        scontrol.write_text(f'#!/bin/sh\necho "$@" >> {Path.cwd()}/asked\n')
        scontrol.chmod(0o755)

    def start(self, task: int) -> subprocess.Popen[bytes]:
        text = Path("out/slurm.sh").read_text()
        # the script puts its Python first
        text = re.sub(r"^PATH=(.*)$", rf"PATH={Path.cwd()}/bin:\1", text, flags=re.M)
        names = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
        environment = {**os.environ, **names}
        with Path("log").open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", text], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def read_asked(self) -> list[str]:
        return Path("asked").read_text().splitlines() if Path("asked").exists() else []


def signal_after(process: subprocess.Popen[bytes], folder: Path, events: int, number: int) -> int:
    """Send a signal when a run has so many events more; return the exit code of the script."""
    file = folder / "events.jsonl"

    def count() -> int:
        return file.read_bytes().count(b"\n") if file.exists() else 0

    before = count()
    while count() < before + events:
        assert process.poll() is None, Path("log").read_text()
        time.sleep(0.002)  # polling, not waiting: the loop ends with what it looks for
    process.send_signal(number)
    return process.wait(timeout=120)


def test_an_array_that_is_killed_and_queued_again_ends_with_the_same_bits():
    assert call("run", "fedper", *SMALL, *SERIAL, "--out", "plain").exit_code == 0
    script = write("compare", "fedper", "fedavg", *SMALL, *SERIAL, "--seeds", "0")
    assert "#SBATCH --array=0-1\n" in script
    slurm, folder = StandIn(), Path("out/fedper-0")
    assert signal_after(slurm.start(0), folder, 4, signal.SIGUSR1) == 75
    assert signal_after(slurm.start(0), folder, 3, signal.SIGUSR1) == 75
    assert slurm.read_asked() == ["requeue 7_0"] * 2
    assert not (folder / "result.json").exists()
    assert signal_after(slurm.start(0), folder, 3, signal.SIGTERM) == 75
    assert slurm.start(0).wait(timeout=120) == 0
    assert slurm.read_asked() == ["requeue 7_0"] * 2  # Slurm decides about a job that it ends
    hashes = [read_json(p / "result.json")["model_sha256"] for p in (folder, Path("plain"))]
    assert hashes[0] == hashes[1]
    assert not (Path("out/fedavg-0") / "result.json").exists()  # of the other task


def list_tasks(script: str) -> list[str]:
    return re.findall(r"^    \d+\) set -- (.*) ;;$", script, re.M)


def test_every_run_of_a_sweep_is_a_task():
    script = write(
        "sweep", "fedprox", "-s", "mu=0,0.1", *SMALL, "--time", "1:00", "--partition=gpu"
    )
    assert list_tasks(script) == ["resume out/mu=0-0", "resume out/mu=0.1-0"]
    assert "#SBATCH --partition=gpu\n#SBATCH --time=1:00\n#SBATCH --array=0-1\n" in script
    assert "#SBATCH --nodes" not in script
    ray = Path("out/slurm-ray.sh").read_text()
    assert "#SBATCH --nodes=2\n" in ray
    assert '--out out -c engine.name=ray -c "engine.address=$address" &\n' in ray


def test_a_tune_is_one_task():
    words = ("tune", "fedavg", "-s", "lr=0.1,0.2", "--sampler", "grid", *SMALL)
    assert list_tasks(write(*words)) == [" ".join([*words, "--out", "out"])]


def test_a_published_table_keeps_the_settings_of_the_engine():
    words = ("reproduce", "fedreg-table2-sota", "--rows", "FedAvg", "-c", "engine.name=serial")
    tasks = list_tasks(write(*words))
    assert tasks
    assert all(re.fullmatch(r"resume out/fedavg--\S+ -c engine.name=serial", t) for t in tasks)


def test_a_command_without_runs_is_refused():
    done = call("slurm", "reproduce", "fedreg-table2-sota", "--dry-run", "--out", "out")
    assert done.exit_code == 3
    assert done.stderr.endswith("error: slurm reproduce: nothing is left to run\n")
    assert not Path("out").exists()
    line = refused(3, "slurm", "compare", "fedavgg", "--out", "out")
    assert line.endswith("did you mean 'fedavg'?")
