"""The tensors of a net by name, and which of them an algorithm keeps on the client."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Literal, NamedTuple

from torch import nn

from ..algorithms import construct_algorithm, get_algorithm_class
from ..core.algorithm import Algorithm, build_parts, list_kinds
from ..core.errors import ConfigError
from ..core.module_copies import find_aliases
from ..core.net import Net
from ..core.split import split
from ..core.tensors import Kind
from ..models import find_model_name, get_default_head_depth, get_model_builder

IMAGE_SHAPE, SEQUENCE_SHAPE = (3, 32, 32), (80,)  # of an example; names do not depend on it
TOKEN_MODELS = ("charlstm", "tokenlstm")  # of which an example is a row of tokens


class NamedTensor(NamedTuple):
    """A tensor of a net. ``kind`` says whether clients and server exchange it.

    A given tensor is frozen when the run begins: everybody has it, nobody trains or sends it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind | Literal["buffer"]


def list_tensors(
    model: str | nn.Module | Callable[[], nn.Module],
    algorithm: str | Algorithm | type[Algorithm] = "fedavg",
    *,
    shape: tuple[int, ...] | None = None,
    classes: int = 10,
) -> list[NamedTensor]:
    """List the tensors of a model with what the algorithm adds to it: what patterns can match.

    ``model`` is a name, a module or a function that builds one. ``shape`` is that of one example.
    Buffers, such as BatchNorm's running statistics, are personal or averaged as ``buffers`` of a run
    says.
    """
    chosen = choose_instance(algorithm)
    net = build_net(model, chosen, shape, classes)
    net = build_parts(chosen, net)
    kinds, aliases = list_kinds(chosen, net, 0), find_aliases(net)
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    return [
        NamedTensor(
            name,
            tuple(tensor.shape),
            "buffer" if name in buffers else kinds[aliases.get(name, name)],
        )
        for name, tensor in net.state_dict().items()
    ]


def choose_instance(algorithm: str | Algorithm | type[Algorithm]) -> Algorithm:
    """Return the algorithm; of a name or a class, one with its default settings."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    cls = get_algorithm_class(algorithm, trust=True) if isinstance(algorithm, str) else algorithm
    return construct_algorithm(cls, {})


def build_net(
    model: str | nn.Module | Callable[[], nn.Module],
    algorithm: Algorithm,
    shape: tuple[int, ...] | None,
    classes: int,
) -> Net:
    """Build the net as a run would, for data of any kind that it takes."""
    if isinstance(model, str):
        name = find_model_name(model)
        shape = shape or (SEQUENCE_SHAPE if name in TOKEN_MODELS else IMAGE_SHAPE)
        build = get_model_builder(name)
        net = build(shape, classes, algorithm.head_depth or get_default_head_depth(build))
    else:
        module = model if isinstance(model, nn.Module) else model()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model: must be a name, an nn.Module or a function that makes one, not {model!r}"
            )
        net = deepcopy(module) if isinstance(module, Net) else split(module)
    net.shape, net.classes = shape or (), classes
    return net
