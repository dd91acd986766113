"""Personalised federated learning: one common model, and for every client one of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .algorithm import Algorithm, Client, Reply, Server, as_agreed, equally, mean, setting
    from .client import Training
    from .data.federation import Federation
    from .data.partition import IID, Classes, Dirichlet
    from .errors import HeterophonyError
    from .library import Result, federate, run
    from .net import Net, split
    from .participation import Uniform
    from .tensors import Tensors, mix, params, weights

PUBLIC = {  # name -> where it is defined; imported at first use, so that `--help` needs no torch
    "Algorithm": "algorithm",
    "Classes": "data.partition",
    "Client": "algorithm",
    "Dirichlet": "data.partition",
    "Federation": "data.federation",
    "HeterophonyError": "errors",
    "IID": "data.partition",
    "Net": "net",
    "Reply": "algorithm",
    "Result": "library",
    "Server": "algorithm",
    "Tensors": "tensors",
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
    "HeterophonyError",
    "IID",
    "Net",
    "Reply",
    "Result",
    "Server",
    "Tensors",
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
