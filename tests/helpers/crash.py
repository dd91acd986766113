"""Kill -9 the driver and its workers at random moments, resume each time, and compare the bits.

python tests/crash.py ALGORITHM [--kills 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SETTINGS = [
    *("rounds=8", "data.clients=5", "local.epochs=2", "local.batch=8", "participation.rate=0.6"),
    *("model.name=mlp", "engine.name=pool", "engine.workers=2"),
]


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "heterophony", *words]


def begin(out: Path, algorithm: str) -> list[str]:
    pairs = [w for s in [*SETTINGS, f"algorithm.name={algorithm}"] for w in ("-c", s)]
    return command("run", *pairs, "--json", "--out", str(out))


def finished(words: list[str]) -> str:
    """Run to the end; the model's hash."""
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["model_sha256"])


def workers(driver: psutil.Process) -> list[psutil.Process]:
    """The pool's processes: children of the fork server, which is the driver's child."""
    return [w for server in driver.children() for w in server.children()]


def recorded(events: Path) -> int:
    """How many events there are so far."""
    return events.read_bytes().count(b"\n") if events.exists() else 0


def killed(words: list[str], events: Path, at: int, victim: str, rng: random.Random) -> int:
    """Start, wait until so many events are recorded, kill -9; the exit code if it ends first."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    driver = psutil.Process(process.pid)
    while process.poll() is None:
        if recorded(events) >= at:
            try:
                if victim == "driver":
                    driver.kill()
                    return process.wait()
                if hit := workers(driver):  # none while it starts, and once its rounds are done
                    os.kill(rng.choice(hit).pid, signal.SIGKILL)
                    at += 3  # and another one later
            except (psutil.Error, ProcessLookupError):
                continue
        time.sleep(rng.random() / 50)  # spreads the kills over all moments of a round
    return process.wait()


def survived(algorithm: str, kills: int, seed: int, folder: Path) -> tuple[str, str, int]:
    """The hash without and with kills, and how many kills there were."""
    rng = random.Random(seed)
    expected = finished(begin(folder / "calm", algorithm))
    out, count = folder / "stormy", 0
    words = begin(out, algorithm)
    while count < kills:
        events, victim = out / "events.jsonl", "worker" if rng.random() < 0.4 else "driver"
        code = killed(words, events, recorded(events) + rng.randrange(1, 4), victim, rng)
        count += 1
        if (out / "config.toml").exists():
            words = command("resume", str(out), "--json")
        if code == 0:  # it finished in spite of a dead worker: begin again
            assert finished(command("resume", str(out), "--json")) == expected
            out = folder / f"stormy-{count}"
            words = begin(out, algorithm)
    if not (out / "config.toml").exists():
        return expected, finished(begin(out, algorithm)), count
    return expected, finished(command("resume", str(out), "--json")), count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected, found, count = survived(asked.algorithm, asked.kills, asked.seed, Path(folder))
    print(f"{asked.algorithm}: {count} kills, {'same bits' if found == expected else 'DIFFERENT'}")
    raise SystemExit(found != expected)


if __name__ == "__main__":
    main()
