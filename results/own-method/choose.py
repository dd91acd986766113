"""Compare the candidates on validation examples with seeds 100 and above, and record what was found.

Usage: python results/own-method/choose.py [SEED …]    (default: 100 101)

Two processes may run at once: each takes what is not yet in choice.json. Test
examples choose nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from candidates.cached_head import CachedHead
from candidates.distilled_features import DistilledFeatures
from candidates.effective_prior import EffectivePrior
from candidates.masked_fedreg import MaskedFedReG
from candidates.one_pass_fedreg import OnePassFedReG

import heterophony as hp

HERE = Path(__file__).parent
FOUND = HERE / "choice.json"
ROUNDS, EVERY, LAST = 50, 5, 4  # the mean over the last four evaluations counts
ALPHA, CLIENTS, RATE = 0.1, 20, 0.5
DATA = {"Fashion-MNIST": "fmnist-small", "CIFAR-10": "cifar10-small"}
TWO_PASSES = ("FedReG", "masked FedReG")  # they go through all examples twice in an epoch
CANDIDATES: dict[str, hp.Algorithm] = {
    "FedReG": hp.FedReG(),
    "FedRoD": hp.FedRoD(),
    "class rows and other classes": hp.FedRows(),
    "other classes": hp.FedRows(rows="mean"),
    "class rows": hp.FedRows(beta=0.0),
    "class rows and features": DistilledFeatures(),
    "class rows by effective numbers": EffectivePrior(beta=0.0),
    "masked FedReG": MaskedFedReG(),
    "FedReG in one pass": OnePassFedReG(),
    "FedRoD with a cached head": CachedHead(),
}


def measure(
    algorithm: hp.Algorithm, epochs: int, data: str, seed: int, lr: float = 0.03
) -> dict[str, float]:
    """Run an algorithm; G and P are percentages of validation examples."""
    clients = hp.federate(
        DATA[data],
        clients=CLIENTS,
        partition=hp.Dirichlet(ALPHA),
        validation_fraction=0.2,
        seed=seed,
    )
    result = hp.run(
        algorithm,
        clients,
        model="convnet_small",
        head_depth=1,
        rounds=ROUNDS,
        participation=RATE,
        training=hp.Training(epochs=epochs, batch=20, lr=lr, momentum=0.9),
        evaluate_every=EVERY,
        seed=seed,
        progress=False,
    )
    held_out = sum(next(e["validation"] for e in result.events if e["event"] == "start"))
    found: dict[str, float] = {"examples_per_round": result.summary.examples_per_round}
    for m in ("G", "P"):  # P is not measured in every evaluation if fine-tuning comes before it
        counts = [e[f"{m}_valid"] for e in result.events if e["event"] == "evaluation"]
        last = [sum(c) for c in counts[-LAST:] if c]
        found[m] = round(100 * sum(last) / (len(last) * held_out), 3)
    return found


def claim(path: Path, key: str) -> bool:
    """Write that this process makes a run; tell whether nobody has made it or is making it."""
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
    return Path(f"/proc/{pid}").exists()


def main() -> None:
    torch.set_num_threads(1)
    seeds = [int(word) for word in sys.argv[1:]] or [100, 101]
    for seed in seeds:
        for data in DATA:
            for name in CANDIDATES:
                key = f"{data}, {name}, seed {seed}"
                if claim(FOUND, key):
                    epochs = 1 if name in TWO_PASSES else 2
                    found = measure(CANDIDATES[name], epochs, data, seed)
                    record(FOUND, key, found)
                    print(key, found, flush=True)


if __name__ == "__main__":
    main()
