"""The registry of models: functions that build a ``Net`` from shape, class count and head depth."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature

from ..core.errors import ConfigError, find_name
from ..core.net import Net
from ..core.own_modules import is_library_name, suggest_module_and_class

InputShape = tuple[int, ...]
ModelBuilder = Callable[[InputShape, int, int], Net]

MODULES = ("convnets", "resnets", "sequences")  # a model is a function in one of these
MODEL_DESCRIPTIONS = {
    "charlstm": "two LSTM layers of 256 over characters (integers), and a linear layer",
    "convnet": "two 5x5 convolutions and three linear layers (FedDyn's CIFAR net)",
    "convnet_small": "convnet with a quarter of the channels, for images of half the height and width",
    "digitsnet": "a small convolutional net for 8x8 images",
    "mlp": "one hidden layer of 100",
    "pfakd_cnn": "three convolutions and two linear layers (PFAKD's for CIFAR-10)",
    "pfakd_fmnist": "two convolutions and two linear layers (PFAKD's for Fashion-MNIST)",
    "resnet10": "four residual stages and a linear layer (FedDecomp's for CIFAR-100)",
    "resnet10_small": "resnet10 with a quarter of the channels",
    "resnet18": "ResNet-18 with a stem for 32x32 images and BatchNorm (PFAKD's for CIFAR-100)",
    "resnet18_group": "resnet18 with GroupNorm of two groups instead of BatchNorm",
    "resnet18_imagenet": "ResNet-18 with ImageNet's 7x7 stem; model.init accepts torchvision's state dict",
    "resnet8": "three residual stages and a linear layer (FedDecomp's for CIFAR-10)",
    "resnet8_small": "resnet8 with a quarter of the channels",
    "smallcnn": "three small convolutions and a linear layer, without normalisation (for privacy audits)",
    "text_tiny": "a transformer of two layers over token numbers (integers; 0 is padding, and numbers from 1024 onwards share the embeddings of smaller ones)",
    "tokenlstm": "an LSTM layer of 128 and a linear layer, for a prediction at every token",
    "vit_tiny": "a vision transformer of four layers of 64, patches of 4x4",
}
TOKEN_MODELS = ("charlstm", "text_tiny", "tokenlstm")  # models whose examples are rows of tokens
NET_GROUPS = {  # lists of nets for clients with different nets: model.groups
    "cnn-3": ("smallcnn", "convnet_small", "digitsnet"),
    "cnn-5": ("smallcnn", "convnet_small", "digitsnet", "pfakd_fmnist", "convnet"),
    "mixed-5": ("smallcnn", "convnet_small", "convnet", "resnet8_small", "vit_tiny"),
    "resnet-3": ("resnet8_small", "resnet10_small", "resnet8"),
    "width-3": ("convnet", "convnet@0.5", "convnet@0.25"),
}


def get_model_builder(name: str) -> ModelBuilder:
    """Return the function that builds a named model; ``convnet@0.5`` has half the width."""
    full, _, width = find_model_name(name).partition("@")
    modules = (import_module(f".{module}", __name__) for module in MODULES)
    build: ModelBuilder = next(getattr(m, full) for m in modules if hasattr(m, full))
    if not width:
        return build
    from .widths import NarrowBuilder

    return NarrowBuilder(build, float(width), full)


def find_model_name(name: str, key: str = "model.name") -> str:
    """Return the registered model that a name matches, in any case; raise ConfigError if there is none."""
    if is_library_name(name):
        raise ConfigError(
            f"{key}: {name} can only be the net of all clients; for different nets, build it in"
            " Python and pass the modules: hp.run(model=[…])"
        )
    full, sign, width = name.partition("@")
    if hint := suggest_module_and_class(full, "function"):
        raise ConfigError(f"{key}: unknown name '{full}'; {hint}")
    found = find_name(MODEL_DESCRIPTIONS, full, key)
    if not sign:
        return found
    try:
        share = float(width)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"{key}: '{name}': the width must be above 0 and at most 1")
    return found if share == 1 else f"{found}@{share:g}"


def get_default_head_depth(build: ModelBuilder) -> int:
    """Return the number of layers in a model's head by default, as in its paper."""
    depth: int = signature(build).parameters["head_depth"].default
    return depth
