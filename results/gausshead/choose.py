"""Choose the variant of GaussHead, then rate and momentum of every method, on validation examples.

Usage: python results/gausshead/choose.py [PATH OF CIFAR-10]

Writes ``choice.json``; what is in it is not run again. Test examples choose nothing. The rules are in
docs/explanation/gausshead.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

import torch

import heterophony as hp
from heterophony.core.errors import DivergedError

FOUND = Path(__file__).with_name("choice.json")
CIFAR = sys.argv[1] if len(sys.argv) > 1 else None
SEEDS, EVERY, LAST = (100, 101, 102), 4, 3
TRIALS = [(0.9, r) for r in (0.003, 0.01, 0.03, 0.1)] + [(0.0, r) for r in (0.03, 0.1, 0.3, 1.0)]
# data set, clients, participation, rounds; all Dirichlet 0.1
RARE = {
    "Fashion-MNIST, rare": ("fmnist-small", 50, 0.1, 40),
    "CIFAR-10, rare": ("cifar10-small", 50, 0.1, 40),
}
FEDERATIONS = {**RARE, "Fashion-MNIST, often": ("fmnist-small", 20, 0.5, 40)}
VARIANTS = {
    f"{method}, share {share}, learned {learned}": hp.GaussHead(
        method=method, share=share, learned=learned
    )
    for method in ("fixhead", "fedrod")
    for share in ("covariance", "means", "nothing")
    for learned in (0.0, 0.5)
} | {"fedreg, share covariance, learned 0.0": hp.GaussHead(method="fedreg")}
TWO_PASSES = ("Ditto", "FedReG", "fedreg, share covariance, learned 0.0")
BASELINES: dict[str, hp.Algorithm] = {
    "Local": hp.Local(),
    "FedAvg": hp.FedAvg(),
    "FedAvg-FT": hp.FedAvgFT(tune_epochs=2, tune_every=4),
    "FedPer": hp.FedPer(),
    "Ditto": hp.Ditto(),
    "FedRoD": hp.FedRoD(),
    "FedReG": hp.FedReG(),
    "FedBABU": hp.FedBABU(),
    "FedPAC": hp.FedPAC(),
    "pFedFDA": hp.PFedFDA(),
    "FedETF": hp.FedETF(),
    "kNN-Per": hp.KNNPer(),
    "FixHead": hp.FixHead(),
}


def name_run(federation: str, name: str, seed: int, trial: tuple[float, float]) -> str:
    momentum, lr = trial
    return f"{federation}; {name}; lr {lr}{'' if momentum else ', momentum 0'}; seed {seed}"


def measure(
    name: str,
    algorithm: hp.Algorithm,
    federation: str,
    seed: int,
    trial: tuple[float, float] = (0.9, 0.03),
) -> None:
    """Run a method once and record G and P on validation examples, in percent."""
    key = name_run(federation, name, seed, trial)
    content = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    if key in content:
        return
    data, clients, participation, rounds = FEDERATIONS[federation]
    path = Path(CIFAR) if CIFAR and data.startswith("cifar") else None
    clients_data = hp.federate(
        data,
        path=path,
        clients=clients,
        partition=hp.Dirichlet(0.1, min_size=5),
        validation_fraction=0.2,
        seed=seed,
    )
    try:
        result = hp.run(
            algorithm,
            clients_data,
            model="convnet_small",
            head_depth=2 if name == "FedReG" else 1,
            rounds=rounds,
            participation=participation,
            training=hp.Training(
                epochs=1 if name in TWO_PASSES else 2,
                batch=20,
                lr=trial[1],
                momentum=trial[0],
            ),
            evaluate_every=EVERY,
            seed=seed,
            progress=False,
        )
    except DivergedError:
        content[key] = None
    else:
        held_out = sum(next(e["validation"] for e in result.events if e["event"] == "start"))
        content[key] = {}
        for m in ("G", "P"):
            counts = [e.get(f"{m}_valid") for e in result.events if e["event"] == "evaluation"]
            last = [sum(c) for c in counts if c][-LAST:]
            if last:
                content[key][m] = round(100 * sum(last) / (len(last) * held_out), 3)
    FOUND.write_text(json.dumps(dict(sorted(content.items())), indent=1) + "\n")
    print(key, content[key], flush=True)


def score(
    name: str,
    federation: str,
    seeds: tuple[int, ...] = SEEDS,
    trial: tuple[float, float] = (0.9, 0.03),
) -> float:
    """Return G + P, or P where there is no G; a method that diverged is last."""
    content = json.loads(FOUND.read_text())
    found = [content[name_run(federation, name, s, trial)] for s in seeds]
    return fmean(sum(f.values()) if f else 0.0 for f in found)


def main() -> None:
    torch.set_num_threads(1)
    for seed in SEEDS:
        for federation in RARE:
            for name, algorithm in VARIANTS.items():
                measure(name, algorithm, federation, seed)
    ranked = sorted(VARIANTS, key=lambda v: -fmean(score(v, f) for f in RARE))
    for name in ranked:
        print(name, [round(score(name, f), 2) for f in RARE])
    for name, algorithm in {**BASELINES, "GaussHead": VARIANTS[ranked[0]]}.items():
        for federation in FEDERATIONS:
            for trial in TRIALS:
                measure(name, algorithm, federation, SEEDS[0], trial)
            best = max(TRIALS, key=lambda t: score(name, federation, SEEDS[:1], t))
            print(name, federation, best)


if __name__ == "__main__":
    main()
