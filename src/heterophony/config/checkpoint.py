"""Changes to a new net: load the checkpoint ``model.init``, apply ``model.norm`` and ``model.adapter``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..core.adapters import Adapter, build_adapter
from ..core.codec import BLOB_LIMIT, from_safetensors, to_safetensors
from ..core.errors import CodecError, ConfigError
from ..core.files import read_regular_file, write_atomically
from ..core.net import Net
from ..core.tensors import Tensors, load_into_net


def load_checkpoint_into(build: Callable[[], Net], path: str | None) -> Callable[[], Net]:
    """Return a builder of the same net, with the weights of a checkpoint.

    Raise ConfigError if the weights do not match the net.
    """
    if path is None:
        return build
    checkpoint = read_checkpoint(path)
    build_with_weights = partial(build_from_checkpoint, build, checkpoint, path)
    build_with_weights()  # so that a mistake is reported here, not by a worker
    return build_with_weights


NORM_GROUPS = 2  # as in ``resnet18_group``


def use_group_norm(build: Callable[[], Net]) -> Callable[[], Net]:
    """Return a builder of the same net with GroupNorm; raise ConfigError if it has no BatchNorm."""
    if not any(isinstance(m, nn.BatchNorm2d) for m in build().modules()):
        raise ConfigError("model.norm: the model has no BatchNorm to replace; leave it out")
    return partial(build_with_group_norm, build)


def build_with_group_norm(build: Callable[[], Net]) -> Net:
    """Build a net and replace each BatchNorm with GroupNorm, without drawing random numbers."""
    net = build()
    for path, layer in list(net.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            net.set_submodule(path, nn.GroupNorm(NORM_GROUPS, layer.num_features))
    return net


def add_adapter(build: Callable[[], Net], table: Mapping[str, Any] | None) -> Callable[[], Net]:
    """Return a builder of the same net with ``model.adapter``; raise ConfigError if no layer matches it."""
    if table is None:
        return build
    build_adapted = partial(build_with_adapter, build, build_adapter(table))
    build_adapted()  # so that a mistake is reported here, not by a worker
    return build_adapted


def build_with_adapter(build: Callable[[], Net], adapter: Adapter) -> Net:
    """Build a net and add an adapter."""
    return adapter.apply(build())


def build_from_checkpoint(build: Callable[[], Net], checkpoint: Tensors, path: str) -> Net:
    """Build a net and load a checkpoint; head layers whose shapes differ keep their new weights."""
    net = build()
    own = Tensors(net.state_dict())
    checkpoint = name_by_part(checkpoint, own)
    for name in sorted(own.keys() ^ checkpoint.keys()):
        has = "has no" if name in own else "has a"
        raise ConfigError(
            f"model.init: {path} {has} tensor '{name}', unlike this model; it must come from the"
            " same model.name and model.head_depth"
        )
    reshaped = [k for k, v in own.items() if v.shape != checkpoint[k].shape]
    for name in reshaped:
        if not name.startswith("head."):
            shapes = [tuple(t[name].shape) for t in (checkpoint, own)]
            raise ConfigError(
                f"model.init: tensor '{name}' of {path} has the shape {shapes[0]}, but this model"
                f" needs {shapes[1]}; only the head may differ"
            )
    new_layers = {name.rpartition(".")[0] for name in reshaped}
    load_into_net(
        net,
        Tensors({k: v for k, v in checkpoint.items() if k.rpartition(".")[0] not in new_layers}),
    )
    return net


def name_by_part(checkpoint: Tensors, own: Tensors) -> Tensors:
    """Add the prefixes ``base.`` and ``head.`` to the names in a checkpoint that lacks them.

    Torchvision's checkpoints have ``conv1.weight`` where the net has ``base.conv1.weight``.
    """
    whole = {name.partition(".")[2]: name for name in own}
    if len(whole) < len(own) or checkpoint.keys() != whole.keys():
        return checkpoint
    return Tensors({whole[k]: v for k, v in checkpoint.items()})


def read_checkpoint(path: str) -> Tensors:
    """Read the tensors of a checkpoint, a safetensors file."""
    try:
        return from_safetensors(read_checkpoint_bytes(path))
    except CodecError as error:
        raise ConfigError(f"model.init: {path}: {error}") from None


def read_checkpoint_bytes(path: str) -> bytes:
    """Read the bytes of the checkpoint that ``model.init`` names."""
    try:
        return read_regular_file(Path(path).expanduser(), BLOB_LIMIT)
    except OSError as error:
        raise ConfigError(f"model.init: cannot read {path}: {error.strerror}") from None


def save_checkpoint(path: Path, net: Tensors) -> None:
    """Write a net's tensors as a checkpoint, a safetensors file."""
    write_atomically(path, to_safetensors(net))
