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


def write(*words: str, out: str = "out") -> str:
    """Return the array script that the command writes to the folder ``out``."""
    done = call("slurm", *words, "--out", out)
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    for name in ("slurm.sh", "slurm-ray.sh"):
        subprocess.run(["bash", "-n", f"{out}/{name}"], check=True)
    return Path(f"{out}/slurm.sh").read_text()


class StandIn:
    """Slurm for one script at a time; ``scontrol`` writes down what it is asked for."""

    def __init__(self, **programs: str) -> None:
        """``programs`` are further stand-ins by name, as lines of a shell."""
        Path("bin").mkdir()
        for name, lines in {"scontrol": 'echo "$@" >> asked', **programs}.items():
            program = Path(f"bin/{name}")
            program.write_text(f"#!/bin/sh\ncd {Path.cwd()} || exit 1\n{lines}\n")
            program.chmod(0o755)

    def start(self, task: int) -> subprocess.Popen[bytes]:
        return self.start_script(
            "out/slurm.sh", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(task)
        )

    def start_script(self, path: str, **names: str) -> subprocess.Popen[bytes]:
        text = Path(path).read_text()
        # the script puts its Python first
        text = re.sub(r"^PATH=(.*)$", rf"PATH={Path.cwd()}/bin:\1", text, flags=re.M)
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


# two nodes: Slurm starts the step on both at once, and each node's Ray runs until the job ends
SRUN = """
while [ "$1" != bash ]; do shift; done
SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@"; wait
"""
RAY = """
case "$*" in
    "status "*) sed 's/.*/ 1 node_x/' started ;;
    "start --address="*) grep -q head started && echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN $*" >> started ;;
    *) echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN $*" >> started ;;
esac
"""
# with a signal, it reaches the script once the script handles it, as it does minutes before a time limit
PYTHON = """
echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN $*" >> started
[ -f signal ] || exit 3
trap 'exit 75' USR1
until [ $((0x$(sed -n 's/^SigCgt:.//p' /proc/$PPID/status) & 0x200)) -ne 0 ]; do :; done
kill -USR1 $PPID
while :; do :; done
"""
NODES = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "4"}


def test_the_script_for_ray_starts_it_on_all_nodes_and_then_the_command():
    write("compare", "fedavg", *SMALL)
    Path("started").touch()
    slurm = StandIn(srun=SRUN, ray=RAY, python=PYTHON, hostname="echo first", sleep="exit 0")
    assert slurm.start_script("out/slurm-ray.sh", **NODES).wait(timeout=120) == 3
    lines = [line.split(" ", 2) for line in Path("started").read_text().splitlines()]
    ((mode, token),) = {(line[0], line[1]) for line in lines}
    assert mode == "token"
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert [line[2] for line in lines] == [
        "start --head --port=22345 --num-cpus=4 --include-dashboard=false --block",
        "start --address=first:22345 --num-cpus=4 --block",
        f"-m heterophony compare fedavg {' '.join(SMALL)} --out out -c engine.name=ray"
        " -c engine.address=first:22345",
    ]
    assert slurm.read_asked() == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux to see who handles a signal")
def test_the_script_for_ray_is_queued_again_before_its_time_limit():
    write("compare", "fedavg", *SMALL)
    Path("started").touch()
    Path("signal").touch()
    slurm = StandIn(srun=SRUN, ray=RAY, python=PYTHON, hostname="echo first", sleep="exit 0")
    assert slurm.start_script("out/slurm-ray.sh", **NODES).wait(timeout=120) == 75
    assert slurm.read_asked() == ["requeue 12345"]


def test_a_percent_sign_in_a_path_is_not_a_number_of_slurm():
    script = write("compare", "fedavg", *SMALL, out="100%A")
    assert f"#SBATCH --output={Path.cwd()}/100%%A/slurm-%A_%a.log\n" in script
    assert list_tasks(script) == ["resume 100%A/fedavg-0"]


def test_an_array_that_may_be_too_large_is_said(monkeypatch):
    assert "MaxArraySize" not in write("compare", "fedavg", "fedper", *SMALL)
    monkeypatch.setattr("heterophony.cli.slurm.LARGEST_ARRAY", 1)
    done = call("slurm", "compare", "fedavg", "fedper", *SMALL, "--out", "out")
    (said,) = (line for line in done.stderr.splitlines() if "MaxArraySize" in line)
    assert said.startswith("sbatch refuses 2 tasks if that is more than the cluster's MaxArraySize")
    assert f"\n# {said}\n" in Path("out/slurm.sh").read_text()


@pytest.mark.parametrize("name", ["iid", "Dirichlet"])
def test_a_partition_of_data_is_not_one_of_slurm(name):
    said = refused(3, "slurm", "compare", "fedavg", "--out", "out", "--partition", name)
    wanted = f"-c data.partition.kind={name.lower()}"
    assert said == f"--partition is Slurm's; for the data write {wanted}"
    assert not Path("out").exists()


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
