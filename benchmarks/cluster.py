"""The Ray engine measured: beside the pool, its memory, and rounds among many clients.

    python benchmarks/cluster.py pool      Ray at 2 workers beside the pool, one after the other, in turn
    python benchmarks/cluster.py memory    1,000 clients, 100 per round: peak memory of everything
    python benchmarks/cluster.py many      10,000 clients, 100 per round: seconds and memory by round
    python benchmarks/cluster.py tables    what a process holds of 100,000 clients, and how long they take to draw from
    python benchmarks/cluster.py merging   what the driver does with the replies of a round

Each prints one JSON object. `--rounds` and `--workers` make it smaller or larger.
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


def share() -> int:
    """Bytes of this process and all below it; pages used by several are divided among them."""
    return sum(shares().values())


def shares() -> dict[str, int]:
    """The same by who it is: the driver, the workers together, and Ray's own processes."""
    me = psutil.Process()
    found = Counter[str]()
    for process in [me, *me.children(recursive=True)]:
        try:
            works = process.name() in ("ray::IDLE", "ray::perform")
            who = "driver" if process == me else "workers" if works else "ray"
            found[who] += int(process.memory_full_info().pss)
        except psutil.Error:
            continue
    return dict(found)


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
    held: list[dict[str, int]] = []
    first: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "evaluation" and not first:
            first.append(time.perf_counter() - begun)
        if event["event"] == "round":
            held.append(shares())

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
            "after_half": round(sum(held[half].values()) / 1e6),
            "at_the_end": round(sum(held[-1].values()) / 1e6),
            "of_that": {who: round(n / 1e6) for who, n in held[-1].items()},
            "peak": round(watch.peak / 1e6),
        },
    }


def tables(clients: int) -> dict[str, Any]:
    """A federation of so many as a worker opens it: bytes and seconds; and drawing 100 of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        begun = time.perf_counter()
        many(clients, 2).save(path)
        dealt = time.perf_counter() - begun
        size = sum(f.stat().st_size for f in path.iterdir())
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            found = fresh.submit(opened, path).result()
    return {
        "clients": clients,
        "seconds_to_deal_and_save": round(dealt, 2),
        "bytes_on_disk_per_client": round(size / clients),
        **found,
    }


def opened(path: Path) -> dict[str, Any]:
    """In a process of its own, whose memory nobody has used before."""
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


def merging(replies: int, megabytes: float) -> dict[str, Any]:
    """Decoding and averaging replies of that size, as the driver does after every round."""
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
    parser.add_argument("--algorithm", default="fedreg", help="of `pool`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=3.0, help="of a reply, for `merging`")
    given = parser.parse_args()
    clients, rounds, workers = given.clients, given.rounds, given.workers
    measured: dict[str, Callable[[], dict[str, Any]]] = {
        "pool": lambda: beside_the_pool(given.algorithm, workers, rounds or 4),
        "memory": lambda: crowd(clients or 1_000, workers, rounds or 20),
        "many": lambda: crowd(clients or 10_000, workers, rounds or 40),
        "tables": lambda: tables(clients or 100_000),
        "merging": lambda: merging(clients or 100, given.megabytes),
    }
    torch.set_num_threads(1)  # as everywhere
    print(json.dumps(measured[given.what](), indent=2))


if __name__ == "__main__":
    main()
