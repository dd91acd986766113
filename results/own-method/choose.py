"""Compare the candidates on validation examples with seeds 100 and above, and record their accuracies.

Usage: python results/own-method/choose.py

All candidates are run with two seeds. Those that are then within a point of the best are run with three
more seeds, as two cannot tell them apart. Two processes may run at once: each takes what is not yet in choice.json. Test
examples choose nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from candidates.cached_head import CachedHead
from candidates.distilled_features import DistilledFeatures
from candidates.effective_prior import EffectivePrior
from candidates.fedrows import FedRows
from candidates.masked_fedreg import MaskedFedReG
from candidates.one_pass_fedreg import OnePassFedReG

import heterophony as hp

HERE = Path(__file__).parent
FOUND = HERE / "choice.json"
ROUNDS, EVERY, LAST = 50, 5, 4  # the mean over the last four evaluations counts
ALPHA, CLIENTS, RATE = 0.1, 20, 0.5
DATA = {"Fashion-MNIST": "fmnist-small", "CIFAR-10": "cifar10-small"}
SEEDS, MORE_SEEDS, CLOSE = (100, 101), (102, 103, 104), 1.0  # points of G + P
TWO_PASSES = ("FedReG", "masked FedReG")  # they go through all examples twice in an epoch
CANDIDATES: dict[str, hp.Algorithm] = {
    "FedReG": hp.FedReG(),
    "FedRoD": hp.FedRoD(),
    "class rows and other classes": FedRows(),
    "other classes": FedRows(rows="mean"),
    "class rows": FedRows(beta=0.0),
    "class rows and features": DistilledFeatures(),
    "class rows by effective numbers": EffectivePrior(beta=0.0),
    "masked FedReG": MaskedFedReG(),
    "FedReG in one pass": OnePassFedReG(),
    "FedRoD with a cached head": CachedHead(),
    "fixed head": hp.FixHead(),
    "fixed head, features as they are": hp.FixHead(length=0.0),
    "learned head, scaled features": hp.FixHead(directions="learned"),
}


def run_method(
    algorithm: hp.Algorithm,
    epochs: int,
    clients: hp.Federation,
    seed: int,
    lr: float,
    rounds: int,
    every: int,
    head_depth: int = 1,
) -> hp.Result:
    """Run an algorithm at the setting of the choice, and evaluate it every ``every`` rounds."""
    return hp.run(
        algorithm,
        clients,
        model="convnet_small",
        head_depth=head_depth,
        rounds=rounds,
        participation=RATE,
        training=hp.Training(epochs=epochs, batch=20, lr=lr, momentum=0.9),
        evaluate_every=every,
        seed=seed,
        progress=False,
    )


def measure(
    algorithm: hp.Algorithm,
    epochs: int,
    data: str,
    seed: int,
    lr: float = 0.03,
    head_depth: int = 1,
) -> dict[str, float]:
    """Run an algorithm; G and P are percentages of validation examples."""
    clients = hp.federate(
        DATA[data],
        clients=CLIENTS,
        partition=hp.Dirichlet(ALPHA),
        validation_fraction=0.2,
        seed=seed,
    )
    result = run_method(algorithm, epochs, clients, seed, lr, ROUNDS, EVERY, head_depth)
    held_out = sum(next(e["validation"] for e in result.events if e["event"] == "start"))
    found: dict[str, float] = {"examples_per_round": result.summary.examples_per_round}
    for m in ("G", "P"):  # P is not measured in every evaluation if fine-tuning comes before it
        counts = [e[f"{m}_valid"] for e in result.events if e["event"] == "evaluation"]
        last = [sum(c) for c in counts[-LAST:] if c]
        found[m] = round(100 * sum(last) / (len(last) * held_out), 3)
    return found


def reserve(path: Path, key: str) -> bool:
    """Reserve a run for this process; return False if it is already made or being made."""
    with open_locked(path) as content:
        before = content.get(key)
        if before and ("pid" not in before or is_running(before["pid"])):
            return False
        content[key] = {"pid": os.getpid()}
    return True


def record(path: Path, key: str, found: dict[str, float]) -> None:
    """Write the numbers of a run."""
    with open_locked(path) as content:
        content[key] = found


@contextmanager
def open_locked(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of numbers, and write it after the block; one process at a time."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads(path.read_text()) if path.exists() else {}
        yield content
        path.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n")


def is_running(pid: int) -> bool:
    """Return True if a process of this machine is running; Linux only."""
    return Path(f"/proc/{pid}").exists()


def average_sum(name: str, seeds: Sequence[int]) -> float:
    """Average G + P of a candidate over data sets and seeds."""
    content = json.loads(FOUND.read_text())
    runs = [content[f"{data}, {name}, seed {seed}"] for data in DATA for seed in seeds]
    return fmean(found["G"] + found["P"] for found in runs)


def list_close() -> list[str]:
    """List the candidates that two seeds cannot tell from the best one."""
    sums = {name: average_sum(name, SEEDS) for name in CANDIDATES}
    return [name for name in sums if sums[name] > max(sums.values()) - CLOSE]


def run_candidates(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Make the runs that no process has made or is making."""
    for seed in seeds:
        for data in DATA:
            for name in names:
                key = f"{data}, {name}, seed {seed}"
                if reserve(FOUND, key):
                    epochs = 1 if name in TWO_PASSES else 2
                    found = measure(CANDIDATES[name], epochs, data, seed)
                    record(FOUND, key, found)
                    print(key, found, flush=True)


def main() -> None:
    torch.set_num_threads(1)
    run_candidates(list(CANDIDATES), SEEDS)
    run_candidates(list_close(), MORE_SEEDS)


if __name__ == "__main__":
    main()
