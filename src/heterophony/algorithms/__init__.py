"""The algorithms, one file each. A new one needs its file and its line here."""

from __future__ import annotations

from importlib import import_module

from ..core.algorithm import Algorithm
from ..core.errors import ConfigError, suggest_or_list

ALGORITHM_CLASSES = {  # file name, which is the name users write, and its class
    "apfl": "APFL",
    "centralized": "Centralized",
    "ditto": "Ditto",
    "fedadam": "FedAdam",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "fedavg": "FedAvg",
    "fedavg2rep": "FedAvg2Rep",
    "fedavgm": "FedAvgM",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedcac": "FedCAC",
    "feddecomp": "FedDecomp",
    "feddyn": "FedDyn",
    "fednova": "FedNova",
    "fedpac": "FedPAC",
    "fedpara": "FedPara",
    "fedper": "FedPer",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedreg": "FedReG",
    "fedrep": "FedRep",
    "fedrep_full": "FedRepFull",
    "fedrod": "FedRoD",
    "fedyogi": "FedYogi",
    "gpfl": "GPFL",
    "heurfedamp": "HeurFedAMP",
    "lgfedavg": "LGFedAvg",
    "local": "Local",
    "moon": "MOON",
    "perfedavg": "PerFedAvg",
    "pfakd": "PFAKD",
    "pfedgate": "PFedGate",
    "pfedme": "PFedMe",
    "pfedpara": "PFedPara",
    "pfedsd": "PFedSD",
    "scaffold": "Scaffold",
}


def get_algorithm_class(name: str) -> type[Algorithm]:
    """The class behind a name."""
    if name not in ALGORITHM_CLASSES:
        raise ConfigError(
            f"algorithm.name: no '{name}' here{suggest_or_list(name, ALGORITHM_CLASSES)}"
        )
    cls: type[Algorithm] = getattr(import_module(f".{name}", __name__), ALGORITHM_CLASSES[name])
    return cls
