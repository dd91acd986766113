"""The algorithms, one file each. A new one needs its file and its line here."""

from __future__ import annotations

from importlib import import_module

from ..algorithm import Algorithm
from ..errors import ConfigError, suggestion

CLASSES = {  # file name, which is the name users write, and its class
    "fedavg": "FedAvg",
    "fedper": "FedPer",
    "fedprox": "FedProx",
    "fedreg": "FedReG",
    "fedrod": "FedRoD",
    "local": "Local",
}


def algorithm(name: str) -> type[Algorithm]:
    """The class behind a name."""
    if name not in CLASSES:
        raise ConfigError(f"algorithm.name: no '{name}' here{suggestion(name, CLASSES)}")
    cls: type[Algorithm] = getattr(import_module(f".{name}", __name__), CLASSES[name])
    return cls
