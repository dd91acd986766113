"""Measure the Ray engine: its speed compared with the pool, its memory, and rounds with many clients.

    python benchmarks/cluster.py pool      Ray and the pool with 2 workers each, alternating
    python benchmarks/cluster.py memory    1,000 clients, 100 per round: peak memory of all processes
    python benchmarks/cluster.py many      10,000 clients, 100 per round: seconds and memory by round
    python benchmarks/cluster.py tables    100,000 clients: memory per process, and time to select from them
    python benchmarks/cluster.py merging   time that the driver needs to merge the replies of a round

Each prints one JSON object. `--rounds`, `--clients` and `--workers` change its size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import heterophony as hp
from heterophony.core.algorithm import mean
from heterophony.core.codec import decode_groups, encode_groups
from heterophony.population.participation import select_from_reachable


def measure_memory() -> int:
    """Return the bytes of this process and its children; shared pages are divided among them."""
    return sum(measure_memory_by_role().values())


def measure_memory_by_role() -> dict[str, int]:
    """Return the same by role: the driver, all workers, and Ray's own processes."""
    me = psutil.Process()
    memory = Counter[str]()
    for process in [me, *me.children(recursive=True)]:
        try:
            is_worker = process.name() in ("ray::IDLE", "ray::run_batch")
            role = "driver" if process == me else "workers" if is_worker else "ray"
            memory[role] += int(process.memory_full_info().pss)
        except psutil.Error:
            continue
    return dict(memory)


class PeakMemory:
    """Measures the peak memory of driver, workers and object store while a context is open."""

    def __enter__(self) -> PeakMemory:
        self.peak, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.over.wait(0.5):
            self.peak = max(self.peak, measure_memory())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def measure_rounds(algorithm: str, engine: str, workers: int, rounds: int) -> list[float]:
    """Return the seconds of each round at the paper's setting."""
    federation = hp.federate("fmnist", clients=50, partition=hp.Dirichlet(0.1), seed=0)
    how = {"model": "convnet", "participation": 0.2, "training": hp.Training(epochs=5)}
    result = hp.run(algorithm, federation, engine=engine, workers=workers, rounds=rounds, **how)
    return [e["seconds"] for e in result.events if e["event"] == "round"]


def compare_with_pool(algorithm: str, workers: int, rounds: int) -> dict[str, Any]:
    """Measure pool and Ray twice each, without the first round, in which workers start."""
    seconds: dict[str, list[float]] = {"pool": [], "ray": []}
    for engine in ("pool", "ray", "ray", "pool"):
        seconds[engine] += measure_rounds(algorithm, engine, workers, rounds)[1:]
    each = {k: statistics.mean(v) for k, v in seconds.items()}
    return {"rounds": seconds, "seconds_per_round": each, "ratio": each["ray"] / each["pool"]}


def make_federation(clients: int, examples: int) -> hp.Federation:
    """Make a federation of small clients: a few images of 8 × 8 each."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, size=(clients * examples, 8, 8, 1), dtype=np.uint8)
    return hp.federate((x, np.arange(len(x)) % 10), clients=clients, partition=hp.IID())


def measure_many_clients(
    clients: int, workers: int, rounds: int, engine: str = "ray"
) -> dict[str, Any]:
    """Measure seconds and memory by round; all clients are evaluated only at start and end."""
    begun = time.perf_counter()
    federation = make_federation(clients, 12)
    held: list[dict[str, int]] = []
    first: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation" and not first:
            first.append(time.perf_counter() - begun)
        if event["event"] == "round":
            held.append(measure_memory_by_role())

    how = {"model": "mlp", "participation": 100, "training": hp.Training(epochs=1, batch=8)}
    how |= {"evaluate_every": rounds + 1, "on_event": on_event}
    with PeakMemory() as memory:
        result = hp.run("fedper", federation, engine=engine, workers=workers, rounds=rounds, **how)
    seconds = [e["seconds"] for e in result.events if e["event"] == "round"]
    half = len(seconds) // 2
    return {
        "clients": clients,
        "seconds_until_all_are_measured_once": round(first[0], 2),
        "seconds_per_round": {
            "first_half": statistics.median(seconds[1:half]),
            "second_half": statistics.median(seconds[half:]),
        },
        "megabytes": {
            "after_half": round(sum(held[half].values()) / 1e6),
            "at_the_end": round(sum(held[-1].values()) / 1e6),
            "of_that": {role: round(n / 1e6) for role, n in held[-1].items()},
            "peak": round(memory.peak / 1e6),
        },
    }


def measure_federation(clients: int) -> dict[str, Any]:
    """Measure how a worker opens a federation of ``clients`` clients, and selects 100 of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        begun = time.perf_counter()
        make_federation(clients, 2).save(path)
        saved = time.perf_counter() - begun
        size = sum(f.stat().st_size for f in path.iterdir())
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            opened = fresh.submit(measure_opening, path).result()
    return {
        "clients": clients,
        "seconds_to_deal_and_save": round(saved, 2),
        "bytes_on_disk_per_client": round(size / clients),
        **opened,
    }


def measure_opening(path: Path) -> dict[str, Any]:
    """Open the federation and select clients in a new process, whose memory holds nothing else."""
    before, begun = psutil.Process().memory_full_info().uss, time.perf_counter()
    federation = hp.Federation.open(path)
    everybody = federation.clients
    federation.sizes()
    seconds = time.perf_counter() - begun
    held = psutil.Process().memory_full_info().uss - before
    begun = time.perf_counter()
    for t in range(10):
        select_from_reachable(hp.Uniform(count=100), t, everybody, everybody, seed=0)
    return {
        "seconds_to_open": round(seconds, 2),
        "bytes_held_per_client": round(held / len(everybody)),
        "milliseconds_to_draw_100": round(100 * (time.perf_counter() - begun), 2),
    }


def measure_merging(replies: int, megabytes: float) -> dict[str, Any]:
    """Decode and average replies of ``megabytes`` each, as the driver does after every round."""
    model = hp.Tensors({"w": torch.randn(int(megabytes * 250_000))})
    blob = encode_groups({"up": model})
    begun = time.perf_counter()
    received = [
        hp.Reply(str(i), "train", decode_groups(blob, finite=False)[0]["up"], 10, 10.0)
        for i in range(replies)
    ]
    decoded = time.perf_counter() - begun
    begun = time.perf_counter()
    mean(received)
    averaged = time.perf_counter() - begun
    return {
        "replies": replies,
        "megabytes_each": megabytes,
        "seconds_to_decode": round(decoded, 3),
        "seconds_to_average": round(averaged, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["pool", "memory", "many", "tables", "merging"])
    parser.add_argument("--algorithm", default="fedreg", help="for `pool`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=3.0, help="of a reply, for `merging`")
    options = parser.parse_args()
    clients, rounds, workers = options.clients, options.rounds, options.workers
    benchmarks: dict[str, Callable[[], dict[str, Any]]] = {
        "pool": lambda: compare_with_pool(options.algorithm, workers, rounds or 4),
        "memory": lambda: measure_many_clients(clients or 1_000, workers, rounds or 20),
        "many": lambda: measure_many_clients(clients or 10_000, workers, rounds or 40),
        "tables": lambda: measure_federation(clients or 100_000),
        "merging": lambda: measure_merging(clients or 100, options.megabytes),
    }
    torch.set_num_threads(1)  # as in every engine
    print(json.dumps(benchmarks[options.what](), indent=2))


if __name__ == "__main__":
    main()
