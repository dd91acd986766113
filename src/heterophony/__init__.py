"""Personalised federated learning: one common model, and for every client one of its own."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .core.algorithm import Algorithm, Client, Reply, Server, as_agreed, equally, mean, setting
    from .core.client import Training
    from .core.errors import HeterophonyError
    from .core.net import Net, split
    from .core.tensors import Tensors, mix, params, weights
    from .data.federation import Federation
    from .data.partitions import (
        IID,
        Classes,
        Dirichlet,
        FromFile,
        Natural,
        PerClientDirichlet,
        Quantity,
        Shards,
        Share,
        Terms,
    )
    from .data.skew import Noise, Rotation
    from .engines.base import Cluster
    from .experiments.federate import federate
    from .experiments.run import run
    from .population.availability import Availability, Diurnal, Trace
    from .population.device_speeds import Devices
    from .population.faults import Faults
    from .population.participation import Skewed, Uniform
    from .run.result import Result

PUBLIC = {  # name -> where it is defined; imported at first use, so that `--help` needs no torch
    "Algorithm": "core.algorithm",
    "Availability": "population.availability",
    "Classes": "data.partitions",
    "Client": "core.algorithm",
    "Cluster": "engines.base",
    "Devices": "population.device_speeds",
    "Dirichlet": "data.partitions",
    "Diurnal": "population.availability",
    "Faults": "population.faults",
    "Federation": "data.federation",
    "FromFile": "data.partitions",
    "HeterophonyError": "core.errors",
    "IID": "data.partitions",
    "Natural": "data.partitions",
    "Net": "core.net",
    "Noise": "data.skew",
    "PerClientDirichlet": "data.partitions",
    "Quantity": "data.partitions",
    "Reply": "core.algorithm",
    "Result": "run.result",
    "Rotation": "data.skew",
    "Server": "core.algorithm",
    "Shards": "data.partitions",
    "Share": "data.partitions",
    "Skewed": "population.participation",
    "Tensors": "core.tensors",
    "Terms": "data.partitions",
    "Trace": "population.availability",
    "Training": "core.client",
    "Uniform": "population.participation",
    "as_agreed": "core.algorithm",
    "equally": "core.algorithm",
    "federate": "experiments.federate",
    "mean": "core.algorithm",
    "mix": "core.tensors",
    "params": "core.tensors",
    "run": "experiments.run",
    "setting": "core.algorithm",
    "split": "core.net",
    "weights": "core.tensors",
}

__all__ = [  # noqa: RUF022  # sorted as PUBLIC; a test compares the two
    "Algorithm",
    "Availability",
    "Classes",
    "Client",
    "Cluster",
    "Devices",
    "Dirichlet",
    "Diurnal",
    "Faults",
    "Federation",
    "FromFile",
    "HeterophonyError",
    "IID",
    "Natural",
    "Net",
    "Noise",
    "PerClientDirichlet",
    "Quantity",
    "Reply",
    "Result",
    "Rotation",
    "Server",
    "Shards",
    "Share",
    "Skewed",
    "Tensors",
    "Terms",
    "Trace",
    "Training",
    "Uniform",
    "as_agreed",
    "equally",
    "federate",
    "mean",
    "mix",
    "params",
    "run",
    "setting",
    "split",
    "weights",
]


class PublicModule(ModuleType):
    """A module whose public names are not hidden by packages of the same name, as ``run`` would be."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = PublicModule


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'heterophony' has no attribute {name!r}")
    return getattr(import_module(f".{PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
