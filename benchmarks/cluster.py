"""The Ray engine measured: beside the pool, its memory, and rounds among many clients.

    python benchmarks/cluster.py pool      Ray at 2 workers beside the pool, one after the other, in turn
    python benchmarks/cluster.py memory    1,000 clients, 100 per round: peak memory of everything
    python benchmarks/cluster.py many      10,000 clients, 100 per round: seconds and memory by round

Each prints one JSON object. `--rounds` and `--workers` make it smaller or larger.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

import heterophony as hp


def share() -> int:
    """Bytes of this process and all below it; pages used by several are divided among them."""
    total, me = 0, psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += int(process.memory_full_info().pss)
        except psutil.Error:
            continue
    return total


class Watch:
    """The highest share while something goes on: driver, workers and object store."""

    def __enter__(self) -> Watch:
        self.peak, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.over.wait(0.5):
            self.peak = max(self.peak, share())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def paper(algorithm: str, engine: str, workers: int, rounds: int) -> list[float]:
    """Seconds of each round at the paper's setting."""
    federation = hp.federate("fmnist", clients=50, partition=hp.Dirichlet(0.1), seed=0)
    how = {"model": "convnet", "participation": 0.2, "training": hp.Training(epochs=5)}
    result = hp.run(algorithm, federation, engine=engine, workers=workers, rounds=rounds, **how)
    return [e["seconds"] for e in result.events if e["event"] == "round"]


def beside_the_pool(algorithm: str, workers: int, rounds: int) -> dict[str, Any]:
    """The first round, in which workers start, is left out; twice each, in turn."""
    seconds: dict[str, list[float]] = {"pool": [], "ray": []}
    for engine in ("pool", "ray", "ray", "pool"):
        seconds[engine] += paper(algorithm, engine, workers, rounds)[1:]
    each = {k: statistics.mean(v) for k, v in seconds.items()}
    return {"rounds": seconds, "seconds_per_round": each, "ratio": each["ray"] / each["pool"]}


def many(clients: int, examples: int) -> hp.Federation:
    """Small clients: images of 8 × 8, a few each."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, size=(clients * examples, 8, 8, 1), dtype=np.uint8)
    return hp.federate((x, np.arange(len(x)) % 10), clients=clients, partition=hp.IID())


def crowd(clients: int, workers: int, rounds: int, engine: str = "ray") -> dict[str, Any]:
    """Seconds and memory, round by round; everybody is measured at the end alone."""
    begun = time.perf_counter()
    federation = many(clients, 12)
    shares: list[int] = []
    first: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation" and not first:
            first.append(time.perf_counter() - begun)
        if event["event"] == "round":
            shares.append(share())

    how = {"model": "mlp", "participation": 100, "training": hp.Training(epochs=1, batch=8)}
    how |= {"evaluate_every": rounds + 1, "on_event": on_event}
    with Watch() as watch:
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
            "after_half": round(shares[half] / 1e6),
            "at_the_end": round(shares[-1] / 1e6),
            "peak": round(watch.peak / 1e6),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["pool", "memory", "many"])
    parser.add_argument("--algorithm", default="fedreg", help="of `pool`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--clients", type=int, default=0)
    asked = parser.parse_args()
    measured: dict[str, Callable[[], dict[str, Any]]] = {
        "pool": lambda: beside_the_pool(asked.algorithm, asked.workers, asked.rounds or 4),
        "memory": lambda: crowd(asked.clients or 1_000, asked.workers, asked.rounds or 20),
        "many": lambda: crowd(asked.clients or 10_000, asked.workers, asked.rounds or 40),
    }
    print(json.dumps(measured[asked.what](), indent=2))


if __name__ == "__main__":
    main()
