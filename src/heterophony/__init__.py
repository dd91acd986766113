"""Personalised federated learning: one common model, and for every client one of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .algorithm import Algorithm, Client, Reply, Server, as_agreed, equally, mean, setting
    from .availability import Availability, Diurnal, Trace
    from .client import Training
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
    from .devices import Devices
    from .engines import Cluster
    from .errors import HeterophonyError
    from .faults import Faults
    from .federating import federate
    from .library import run
    from .net import Net, split
    from .outcome import Result
    from .participation import Skewed, Uniform
    from .tensors import Tensors, mix, params, weights

PUBLIC = {  # name -> where it is defined; imported at first use, so that `--help` needs no torch
    "Algorithm": "algorithm",
    "Availability": "availability",
    "Classes": "data.partitions",
    "Client": "algorithm",
    "Cluster": "engines",
    "Devices": "devices",
    "Dirichlet": "data.partitions",
    "Diurnal": "availability",
    "Faults": "faults",
    "Federation": "data.federation",
    "FromFile": "data.partitions",
    "HeterophonyError": "errors",
    "IID": "data.partitions",
    "Natural": "data.partitions",
    "Net": "net",
    "Noise": "data.skew",
    "PerClientDirichlet": "data.partitions",
    "Quantity": "data.partitions",
    "Reply": "algorithm",
    "Result": "outcome",
    "Rotation": "data.skew",
    "Server": "algorithm",
    "Shards": "data.partitions",
    "Share": "data.partitions",
    "Skewed": "participation",
    "Tensors": "tensors",
    "Terms": "data.partitions",
    "Trace": "availability",
    "Training": "client",
    "Uniform": "participation",
    "as_agreed": "algorithm",
    "equally": "algorithm",
    "federate": "federating",
    "mean": "algorithm",
    "mix": "tensors",
    "params": "tensors",
    "run": "library",
    "setting": "algorithm",
    "split": "net",
    "weights": "tensors",
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


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'heterophony' has no attribute {name!r}")
    return getattr(import_module(f".{PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
