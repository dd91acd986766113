"""Measure the time to list a thousand finished runs, and to write the page of fifty of them.

python benchmarks/listing.py [--runs 1000] [--reported 50] [--rounds 100] [--clients 100]

The runs are invented, in a temporary folder, but have the files of real ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from heterophony.config.reading import read_config
from heterophony.core.files import write_json
from heterophony.runs.summary import summarise

NAMES = ["fedavg", "fedper", "fedreg", "ditto", "local"]
CLASSES, TESTED, REPEATS = 10, 40, 3
Event = dict[str, Any]


def make_events(name: str, seed: int, rounds: int, clients: int) -> list[Event]:
    """Invent the events of a run in which a fifth of the clients train in each round."""
    draw, everyone = np.random.default_rng(seed), [str(c) for c in range(clients)]
    events: list[Event] = [
        {"event": "start", "version": "0", "algorithm": name, "seed": seed, "rounds": rounds,
         "clients": everyone, "train": [3 * TESTED] * clients, "test": [TESTED] * clients,
         "classes": [str(k) for k in range(CLASSES)], "labels": [[12] * CLASSES] * clients,
         "shared_parameters": 10**6, "data_sha256": "0" * 64, "start_sha256": "0" * 64}
    ]  # fmt: skip
    spent = {"seconds": 1.5, "work": {"train": 2.5, "evaluate": 0.25}}
    for t in range(rounds + 1):
        right = draw.integers(0, TESTED + 1, size=(3, clients)).tolist()
        events.append({"event": "evaluation", "t": t, "G": right[0], "P": right[1]})
        chosen = sorted(draw.choice(clients, size=max(1, clients // 5), replace=False).tolist())
        if t < rounds:
            events.append(
                {"event": "round", "t": t, "clients": [everyone[c] for c in chosen],
                 "bytes_down": 10**8, "bytes_up": 10**8, "loss": {"main": 1.25}, "measures": {},
                 "P_local": [[right[2][c], TESTED] for c in chosen], **spent}
            )  # fmt: skip
    return [*events, {"event": "end", "t": rounds, "model_sha256": "0" * 64, **spent}]


def make_run(folder: Path, number: int, rounds: int, clients: int) -> None:
    """Write one run folder, with folders of its clients, which listing runs should not open."""
    name, seed = NAMES[number % len(NAMES)], number // len(NAMES)
    for client in range(clients):
        (folder / "commits" / "clients" / str(client)).mkdir(parents=True)
    settings = [f"algorithm.name={name}", f"seed={seed}", f"rounds={rounds}"]
    (folder / "config.toml").write_text(read_config(None, settings).to_toml())
    events = make_events(name, seed, rounds, clients)
    lines = [json.dumps(e, separators=(",", ":")) + "\n" for e in events]
    (folder / "events.jsonl").write_text("".join(lines))
    write_json(folder / "result.json", summarise(events).to_dict())


def time_command(*words: str, cwd: str) -> float:
    """Return the seconds of a command, including the start of Python: the best of a few repeats."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "heterophony", *words],
            cwd=cwd,
            check=True,
            capture_output=True,
        )
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("runs", 1000), ("reported", 50), ("rounds", 100), ("clients", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(options.runs):
            make_run(Path(folder) / "runs" / f"{i:04d}", i, options.rounds, options.clients)
        listed = time_command("list", "runs", cwd=folder)
        print(f"list runs, {options.runs} runs: {listed:.2f} s")
        some = [f"runs/{i:04d}" for i in range(min(options.reported, options.runs))]
        reported = time_command("report", *some, "-o", "page.html", cwd=folder)
        size = (Path(folder) / "page.html").stat().st_size / 1e6
        print(f"report, {len(some)} runs: {reported:.2f} s, a page of {size:.2f} MB")


if __name__ == "__main__":
    main()
