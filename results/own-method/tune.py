"""Choose the learning rate of every method on validation examples with seed 100, and record all trials.

Usage: python results/own-method/tune.py

Every method has the same three trials per data set. The rate with the highest G + P counts; for
FedPer, which has no common head, the one with the highest P. Two processes may run at once.
"""

from __future__ import annotations

import torch
from choose import DATA, HERE, measure, record, reserve

import heterophony as hp
from heterophony.core.errors import DivergedError

FOUND = HERE / "rates.json"
RATES, SEED = (0.01, 0.03, 0.06), 100
METHODS: dict[str, tuple[hp.Algorithm, int]] = {
    # with their epochs: all go through as many examples
    "FixHead": (hp.FixHead(), 2),
    "FedRoD": (hp.FedRoD(), 2),
    "FedReG": (hp.FedReG(), 1),
    "FedReG with two layers": (hp.FedReG(), 1),
    "FedAvg": (hp.FedAvg(), 2),
    "FedPer": (hp.FedPer(), 2),
    "FedBABU": (hp.FedBABU(), 2),
    "Ditto": (hp.Ditto(), 1),
    "FedProx": (hp.FedProx(), 2),
    "FedAvg-FT": (hp.FedAvgFT(tune_epochs=2, tune_every=10), 2),
}
HEAD_DEPTHS = {"FedReG with two layers": 2}  # of all others 1


def main() -> None:
    torch.set_num_threads(1)
    for data in DATA:
        for name, (algorithm, epochs) in METHODS.items():
            for rate in RATES:
                key = f"{data}, {name}, lr {rate}"
                if not reserve(FOUND, key):
                    continue
                try:
                    depth = HEAD_DEPTHS.get(name, 1)
                    found = measure(algorithm, epochs, data, SEED, rate, depth)
                except DivergedError:
                    found = {"diverged": True}
                record(FOUND, key, found)
                print(key, found, flush=True)


if __name__ == "__main__":
    main()
