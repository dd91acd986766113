"""The models, one file each: a function of input shape, classes and head depth, giving a ``Net``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature

from ..core.errors import find_name
from ..core.net import Net

InputShape = tuple[int, ...]
ModelBuilder = Callable[[InputShape, int, int], Net]

MODEL_DESCRIPTIONS = {  # name, and what it is
    "charlstm": "two LSTM layers of 256 that read characters as integers, and a linear layer",
    "convnet": "two 5x5 convolutions and three linear layers (FedDyn's CIFAR network)",
    "digitsnet": "a small convolutional network for 8x8 images",
    "mlp": "one hidden layer of 100",
    "pfakd_cnn": "three convolutions and two linear layers (PFAKD's for CIFAR-10)",
    "pfakd_fmnist": "two convolutions and two linear layers (PFAKD's for Fashion-MNIST)",
    "resnet10": "four residual stages and a linear layer (FedDecomp's for CIFAR-100)",
    "resnet18": "ResNet-18 with a stem for 32x32 images and BatchNorm (PFAKD's for CIFAR-100)",
    "resnet18_group": "the same with GroupNorm of two groups",
    "resnet8": "three residual stages and a linear layer (FedDecomp's for CIFAR-10)",
    "smallcnn": "three small convolutions and a linear layer, without normalisation (for audits)",
}


def get_model_builder(name: str) -> ModelBuilder:
    """The function behind a name."""
    name = find_model_name(name)
    build: ModelBuilder = getattr(import_module(f".{name}", __name__), name)
    return build


def find_model_name(name: str) -> str:
    """Return the name that is meant, in any case; raise if there is none."""
    return find_name(MODEL_DESCRIPTIONS, name, "model.name")


def get_default_head_depth(build: ModelBuilder) -> int:
    """How many layers the model's own paper calls the head."""
    depth: int = signature(build).parameters["head_depth"].default
    return depth
