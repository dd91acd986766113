"""Measure how long ten rounds of every method take on an idle machine, and record it in seconds.json.

Usage: python results/own-method/seconds.py

One core. Each method is run three times, in turn with the others; the fastest counts.
"""

from __future__ import annotations

import json
import time

import torch
from choose import ALPHA, CLIENTS, DATA, HERE, run_method
from tune import METHODS

import heterophony as hp

ROUNDS, TIMES, LR = 10, 3, 0.03


def main() -> None:
    torch.set_num_threads(1)
    clients = hp.federate(
        DATA["Fashion-MNIST"], clients=CLIENTS, partition=hp.Dirichlet(ALPHA), seed=0
    )
    taken: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(TIMES):
        for name, (algorithm, epochs) in METHODS.items():
            begun = time.perf_counter()
            run_method(algorithm, epochs, clients, 0, LR, ROUNDS, ROUNDS)
            taken[name].append(time.perf_counter() - begun)
    found = {name: round(min(seconds), 2) for name, seconds in taken.items()}
    (HERE / "seconds.json").write_text(json.dumps(found, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main()
