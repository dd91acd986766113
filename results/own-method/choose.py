"""Compare the candidates on validation examples with seeds 100 and above, and record what was found.

Usage: python results/own-method/choose.py [SEED …]    (default: 100 101)

Two processes may run at once: each takes what is not yet in choice.json. No test example is read.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

import torch

import heterophony as hp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "candidates"))

from cached_head import CachedHead  # noqa: E402
from distilled_features import DistilledFeatures  # noqa: E402
from effective_prior import EffectivePrior  # noqa: E402
from masked_fedreg import MaskedFedReG  # noqa: E402
from one_pass_fedreg import OnePassFedReG  # noqa: E402

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


def record(path: Path, key: str, found: dict[str, float] | None) -> bool:
    """Claim a run (None) or write its numbers; tell whether the run was free."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads(path.read_text()) if path.exists() else {}
        if found is None and key in content:
            return False
        content[key] = found
        path.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n")
    return True


def main() -> None:
    torch.set_num_threads(1)
    seeds = [int(word) for word in sys.argv[1:]] or [100, 101]
    for seed in seeds:
        for data in DATA:
            for name in CANDIDATES:
                key = f"{data}, {name}, seed {seed}"
                if record(FOUND, key, None):
                    epochs = 1 if name in TWO_PASSES else 2
                    found = measure(CANDIDATES[name], epochs, data, seed)
                    record(FOUND, key, found)
                    print(key, found, flush=True)


if __name__ == "__main__":
    main()
