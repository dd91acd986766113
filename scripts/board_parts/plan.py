"""The plan of the committed leaderboard: data sets, heterogeneity, seeds, and the searched settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterophony.algorithms import ALGORITHM_CLASSES

ALPHAS = ("0.1", "0.5")
TUNED_ALPHA = "0.1"  # the settings chosen at this one are used for both
SEEDS = (0, 1, 2, 3, 4)
TUNE_SEED = 100
TRIALS = 6
COMMON = ["data.clients=20", "training.epochs=1"]
TUNE_EVERY = "evaluation.every=5"  # in trials; final runs evaluate after every round

RATES = "training.lr=0.01,0.02,0.05,0.1,0.2,0.4"
FEWER_RATES = "training.lr=0.02,0.05,0.1"  # where a setting of the algorithm is searched beside it
# algorithms whose local steps have learning rates of their own, in place of training.lr
OWN_RATES = {
    "perfedavg": ["perfedavg.alpha=0.01,0.05", "perfedavg.beta=0.05,0.1,0.2"],
    "pfedme": ["pfedme.own_lr=0.02,0.05,0.1", "pfedme.local_lr=0.02,0.06"],
}
# algorithms that momentum may make diverge: it is searched beside the rate, in place of one of their
# own settings. APPLE's core models all move along gradients of the sum that they had when the round began.
SEARCHED_MOMENTUM = ("apple",)
MOMENTA = "training.momentum=0.0,0.9"
# the one setting of an algorithm that is searched beside the rate: two values each
OWN_SETTINGS = {
    "apfl": "alpha=0.25,0.75",
    "cfl": "eps1=0.4,1.5",
    "ditto": "lam=0.1,1.0",
    "fedadam": "server_lr=0.01,0.03",
    "fedala": "eta=0.1,1.0",
    "fedamp": "alpha=10000.0,50000.0",
    "fedavg2rep": "warmup_rounds={third},{half}",
    "fedavgm": "server_lr=0.1,0.3",
    "fedbabu": 'tune_part="head","full"',
    "fedcac": "beta={third},{half}",
    "fedcp": "lam=1.0,5.0",
    "feddbe": "kappa=1.0,50.0",
    "feddistill": "gamma=0.1,1.0",
    "feddyn": "alpha=0.01,0.1",
    "fedfomo": "downloads=5,10",
    "fedgen": "alpha=0.1,1.0",
    "fedpac": "lam=0.1,1.0",
    "fedproto": "lam=0.1,1.0",
    "fedprox": "mu=0.01,0.1",
    "fedyogi": "server_lr=0.01,0.03",
    "gpfl": "lam=0.001,0.01",
    "heurfedamp": "sigma=5.0,25.0",
    "ifca": "clusters=2,4",
    "moon": "mu=0.1,1.0",
    "pfakd": "beta=0.1,1.0",
    "pfedgate": "sparsity=0.5,0.9",
    "pfedsd": "lam=0.1,0.5",
}


@dataclass(frozen=True)
class DataPlan:
    """One data set: its title on the page, and the settings that all its runs share."""

    name: str
    title: str
    about: str
    rounds: int
    settings: Sequence[str]

    @property
    def overrides(self) -> list[str]:
        """The ``key=value`` pairs of all runs."""
        return [f"data.name={self.name}", *COMMON, *self.settings, f"rounds={self.rounds}"]


DATA = (
    DataPlan(
        "digits",
        "Digits",
        "Digits (1,797 images of 8×8)",
        30,
        ["model.name=digitsnet", "training.batch=20", "participation.rate=0.5"],
    ),
    DataPlan(
        "fmnist-small",
        "Fashion-MNIST",
        "Fashion-MNIST (`fmnist-small`: 1,000 images per class at 14×14)",
        20,
        ["model.name=convnet_small", "training.batch=50", "participation.rate=0.25"],
    ),
)
SETTINGS = [(data, alpha) for data in DATA for alpha in ALPHAS]  # in the order of the runs


def list_searches(data: DataPlan) -> dict[str, tuple[list[str], list[str]]]:
    """List the searches of a data set by folder: the algorithms, and the values that are searched.

    Each is a grid of ``TRIALS`` combinations.
    """
    apart = {*OWN_SETTINGS, *OWN_RATES, *SEARCHED_MOMENTUM}
    plain = [name for name in ALGORITHM_CLASSES if name not in apart]
    rounds = {"third": data.rounds // 3, "half": data.rounds // 2}
    own = [f"{name}.{values.format(**rounds)}" for name, values in OWN_SETTINGS.items()]
    own_rates = [pair for pairs in OWN_RATES.values() for pair in pairs]
    return {
        f"{data.name}-tune": (plain, [RATES]),
        f"{data.name}-tune-own": (list(OWN_SETTINGS), [FEWER_RATES, *own]),
        f"{data.name}-tune-momentum": (list(SEARCHED_MOMENTUM), [FEWER_RATES, MOMENTA]),
        f"{data.name}-tune-own-rates": (list(OWN_RATES), own_rates),
    }


def list_tune_overrides(data: DataPlan) -> list[str]:
    """List the ``key=value`` pairs of all trials."""
    return [*data.overrides, f"data.partition.alpha={TUNED_ALPHA}", TUNE_EVERY]


def list_final_overrides(alpha: str) -> list[str]:
    """List the overrides of a final run, which replace settings of its chosen configuration."""
    return [f"data.partition.alpha={alpha}", "evaluation.every=1"]
