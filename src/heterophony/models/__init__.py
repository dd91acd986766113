"""The models, one file each: a function of input shape, classes and head depth, giving a ``Net``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..errors import ConfigError, suggestion
from ..net import Net

Shape = tuple[int, ...]
Builder = Callable[[Shape, int, int], Net]

BUILDERS = {  # name, and what it is
    "convnet": "two 5x5 convolutions and three linear layers (FedDyn's CIFAR network)",
    "digitsnet": "a small convolutional network for 8x8 images",
    "mlp": "one hidden layer of 100",
}


def builder(name: str) -> Builder:
    """The function behind a name."""
    if name not in BUILDERS:
        raise ConfigError(f"model.name: no '{name}' here{suggestion(name, BUILDERS)}")
    build: Builder = getattr(import_module(f".{name}", __name__), name)
    return build
