"""The plan of the committed leaderboard: settings, algorithms, seeds, and what the searches try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from heterophony.algorithms import ALGORITHM_CLASSES

SEEDS = (0, 1, 2, 3, 4)
TUNE_SEED = 100
PERSONAL_PILOTS = ("fedavg_ft", "ditto", "fedrod")  # the rule looks at FedAvg and these
BASELINES = ("centralized", "local")
# what the entries of these would repeat: without BatchNorm FedBN is FedAvg, with one net HeteroFL is;
# adapters need a pretrained net
LEFT_OUT = ("fedbn", "heterofl", "feddpa", "fedsa_lora", "ffa_lora", "flora", "linear_probe")
ALGORITHMS = tuple(name for name in ALGORITHM_CLASSES if name not in LEFT_OUT)
# on the larger nets: the methods of the five works, the baselines that they share, and the strongest
FEWER = (
    *BASELINES,
    *(
        "fedavg",
        "fedavg_ft",
        "fedprox",
        "feddyn",
        "scaffold",
        "ditto",
        "fedper",
        "fedrep",
        "fedbabu",
    ),
    *(
        "fedrod",
        "fedreg",
        "fedavg2rep",
        "pfakd",
        "feddecomp",
        "fedala",
        "fedpac",
        "fixhead",
        "gausshead",
    ),
)

# The search ---------------------------------------------------------------------------------

RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)  # one range for all
MOMENTA = (0.0, 0.9)
TRIALS = len(RATES) * len(MOMENTA)
STAGES = ((0.25, TRIALS), (0.75, 3))  # successive halving: share of the rounds, trials that go on
# the setting of an algorithm that decides most, with two values; numbers of rounds are shares of all
OWN_SETTINGS: dict[str, tuple[str, tuple[Any, Any]]] = {
    "apfl": ("alpha", (0.25, 0.75)),
    "cfl": ("eps1", (0.4, 1.5)),
    "ditto": ("lam", (0.1, 1.0)),
    "fedadam": ("server_lr", (0.01, 0.03)),
    "fedala": ("eta", (0.1, 1.0)),
    "fedamp": ("alpha", (1e4, 5e4)),
    "fedavg2rep": ("warmup_rounds", ("{third}", "{half}")),
    "fedavgm": ("server_lr", (0.3, 1.0)),
    "fedbabu": ("tune_part", ("head", "full")),
    "fedcac": ("beta", ("{third}", "{half}")),
    "fedcp": ("lam", (1.0, 5.0)),
    "feddbe": ("kappa", (1.0, 50.0)),
    "feddistill": ("gamma", (0.1, 1.0)),
    "feddyn": ("alpha", (0.01, 0.1)),
    "fedfomo": ("downloads", (5, 10)),
    "fedgen": ("alpha", (0.1, 1.0)),
    "fedpac": ("lam", (0.1, 1.0)),
    "fedproto": ("lam", (0.1, 1.0)),
    "fedprox": ("mu", (0.01, 0.1)),
    "fedyogi": ("server_lr", (0.01, 0.03)),
    "gpfl": ("lam", (0.001, 0.01)),
    "heurfedamp": ("sigma", (5.0, 25.0)),
    "ifca": ("clusters", (2, 4)),
    "moon": ("mu", (0.1, 1.0)),
    "pfakd": ("beta", (0.1, 1.0)),
    "pfedgate": ("sparsity", (0.5, 0.9)),
    "pfedsd": ("lam", (0.1, 0.5)),
}
# algorithms whose local steps have rates of their own in place of training.lr and momentum
OWN_RATES: dict[str, dict[str, Sequence[float]]] = {
    "perfedavg": {"alpha": (0.01, 0.03), "beta": RATES},
    "pfedme": {"own_lr": RATES, "local_lr": (0.02, 0.06)},
}

Combination = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One table of the page: data, partition, net and participation."""

    name: str  # of its folder of runs
    title: str
    block: str  # its data set: average ranks are over these
    data: Sequence[str]
    clients: Sequence[str]
    rounds: int
    searched_in: str  # the setting whose search chose the settings of this one
    algorithms: Sequence[str] = field(default=ALGORITHMS)
    train_fraction: float = 0.2
    every: int = 4  # rounds between evaluations

    def describe(self) -> str:
        """Describe the federation and the net in a sentence."""
        values = dict(pair.split("=") for pair in (*self.data, *self.clients))
        share = {"1.0": "all", "0.1": "a tenth"}[values["participation.rate"]]
        skew = (
            f"Dirichlet α = {values['data.partition.alpha']}"
            if "data.partition.alpha" in values
            else f"{values['data.partition.per_client']} classes per client"
        )
        return (
            f"`{values['data.name']}`, {values['data.clients']} clients, of which {share} train in a round, {skew},"
            f" {self.train_fraction:.0%} of each client's examples for training; `{values['model.name']}`, {self.rounds} rounds."
        )

    @property
    def shared(self) -> list[str]:
        """The ``key=value`` pairs of all runs."""
        common = ["training.epochs=5", "training.batch=10", f"rounds={self.rounds}"]
        return [*self.data, *self.clients, *common, f"evaluation.every={self.every}"]

    def list_final_overrides(self) -> list[str]:
        """List the ``key=value`` pairs of a final run; a tenth of the clients joins after training."""
        return [*self.shared, f"data.train_fraction={self.train_fraction}", "data.new_clients=0.1"]

    def list_search_overrides(self, share: float) -> list[str]:
        """List the ``key=value`` pairs of a trial that runs this share of the rounds.

        Clients train on as many examples as in final runs, and have more for validation than these.
        """
        data = [f"data.train_fraction={4 * self.train_fraction}", "data.validation_fraction=0.75"]
        rounds = round(share * self.rounds)
        return [*self.shared, *data, f"rounds={rounds}", f"evaluation.every={max(1, rounds // 5)}"]


SKEW = "data.partition.alpha={}"
TWENTY = ("data.clients=20", "participation.rate=1.0")
HUNDRED = ("data.clients=100", "participation.rate=0.1")
THREE_CLASSES = ("data.partition.kind=classes", "data.partition.per_client=3")
DIGITS, FASHION, CIFAR = (
    ("digits", ("data.name=digits", "model.name=mlp")),
    ("fmnist-small", ("data.name=fmnist-small", "model.name=mlp")),
    ("cifar10-small", ("data.name=cifar10-small", "model.name=mlp")),
)
FASHION_NET = ("data.name=fmnist-small", "model.name=convnet_small")
SETTINGS = (
    Setting("digits", "Digits", *DIGITS, (*TWENTY, SKEW.format(0.5)), 60, "digits"),
    Setting("fmnist", "Fashion-MNIST", *FASHION, (*HUNDRED, SKEW.format(0.5)), 100, "fmnist"),
    Setting(
        *("fmnist-0.1", "Fashion-MNIST, α = 0.1", *FASHION),
        *((*HUNDRED, SKEW.format(0.1), "data.partition.min_size=5"), 100, "fmnist"),
    ),
    Setting(
        *("cifar10", "CIFAR-10, 3 classes per client", *CIFAR),
        *((*TWENTY, *THREE_CLASSES), 60, "cifar10", FEWER, 0.1),
    ),
    Setting(
        *("fmnist-conv", "Fashion-MNIST, convolutions", "fmnist-small", FASHION_NET),
        *((*HUNDRED, SKEW.format(0.5)), 100, "fmnist-conv", FEWER),
    ),
)


def list_combinations(name: str, rounds: int) -> list[Combination]:
    """List the trials of an algorithm: as many for all, and one range of rates.

    With a setting of its own, rates, momenta and its two values are crossed so that each pair of them
    is tried as often as any other: half of all combinations.
    """
    if name in OWN_RATES:
        keys = [f"algorithm.{key}" for key in OWN_RATES[name]]
        return [
            dict(zip(keys, values, strict=True)) for values in product(*OWN_RATES[name].values())
        ]
    if name not in OWN_SETTINGS:
        return [make_combination(lr, m) for lr in RATES for m in MOMENTA]
    key, values = OWN_SETTINGS[name]
    own = [scale_to_rounds(value, rounds) for value in values]
    return [
        {**make_combination(lr, m), f"algorithm.{key}": own[k]}
        for (i, lr), (j, m), k in iterate_indices()
        if (i + j + k) % 2 == 0
    ]


def iterate_indices() -> Iterator[tuple[tuple[int, float], tuple[int, float], int]]:
    """Iterate over rates, momenta and the two values of an own setting, with their indices."""
    return product(enumerate(RATES, 1), enumerate(MOMENTA), (0, 1))


def make_combination(lr: float, momentum: float) -> Combination:
    return {"training.lr": lr, "training.momentum": momentum}


def scale_to_rounds(value: Any, rounds: int) -> Any:
    """Replace a number of rounds that is written as a share of them."""
    return {"{third}": rounds // 3, "{half}": rounds // 2}.get(value, value)
