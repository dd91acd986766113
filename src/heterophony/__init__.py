"""Personalised federated learning: one common model, and for every client one of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .algorithm import Algorithm, Client, Reply, Server, as_agreed, equally, mean, setting
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
    from .errors import HeterophonyError
    from .library import Result, federate, run
    from .net import Net, split
    from .participation import Uniform
    from .tensors import Tensors, mix, params, weights

PUBLIC = {  # name -> where it is defined; imported at first use, so that `--help` needs no torch
    "Algorithm": "algorithm",
    "Classes": "data.partitions",
    "Client": "algorithm",
    "Dirichlet": "data.partitions",
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
    "Result": "library",
    "Rotation": "data.skew",
    "Server": "algorithm",
    "Shards": "data.partitions",
    "Share": "data.partitions",
    "Tensors": "tensors",
    "Terms": "data.partitions",
    "Training": "client",
    "Uniform": "participation",
    "as_agreed": "algorithm",
    "equally": "algorithm",
    "federate": "library",
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
    "Classes",
    "Client",
    "Dirichlet",
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
    "Tensors",
    "Terms",
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
