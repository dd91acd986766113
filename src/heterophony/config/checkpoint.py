"""A warm start: weights trained before, from a checkpoint, in the place of random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..core.codec import BLOB_LIMIT, from_safetensors, to_safetensors
from ..core.errors import CodecError, ConfigError
from ..core.files import write_atomically
from ..core.net import Net
from ..core.tensors import Tensors, load_into_net


def begin_with_checkpoint(build: Callable[[], Net], path: str | None) -> Callable[[], Net]:
    """The same nets, begun with the checkpoint's weights; one that does not fit is said here."""
    if path is None:
        return build
    begun = partial(build_from_checkpoint, build, read_checkpoint(Path(path).expanduser()), path)
    begun()
    return begun


def build_from_checkpoint(build: Callable[[], Net], checkpoint: Tensors, path: str) -> Net:
    """Every tensor is the checkpoint's, but for the head's layers of another shape: they stay new."""
    net = build()
    own = Tensors(net.state_dict())
    for name in sorted(own.keys() ^ checkpoint.keys()):
        has = "has no" if name in own else "has a"
        raise ConfigError(
            f"model.init: {path} {has} tensor '{name}', unlike this model; it must come from the"
            " same model.name and model.head_depth"
        )
    other = [k for k, v in own.items() if v.shape != checkpoint[k].shape]
    for name in other:
        if not name.startswith("head."):
            sizes = [tuple(t[name].shape) for t in (checkpoint, own)]
            raise ConfigError(
                f"model.init: tensor '{name}' of {path} has the shape {sizes[0]}, here it is"
                f" {sizes[1]}; only the head may differ"
            )
    new = {name.rpartition(".")[0] for name in other}
    load_into_net(
        net, Tensors({k: v for k, v in checkpoint.items() if k.rpartition(".")[0] not in new})
    )
    return net


def read_checkpoint(path: Path) -> Tensors:
    """The tensors of a safetensors file; nothing is ever unpickled."""
    try:
        if path.stat().st_size > BLOB_LIMIT:
            raise ConfigError(f"model.init: {path} is larger than {BLOB_LIMIT} bytes")
        return from_safetensors(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"model.init: cannot read {path}: {error.strerror}") from None
    except CodecError as error:
        raise ConfigError(f"model.init: {path}: {error}") from None


def save_checkpoint(path: Path, net: Tensors) -> None:
    """A checkpoint: all tensors of a net, as plain safetensors."""
    write_atomically(path, to_safetensors(net))
