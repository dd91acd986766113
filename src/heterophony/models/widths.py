"""Nets with narrower hidden layers, as in ``convnet@0.5``; their tensors are slices of the whole net's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from torch import nn

from ..core.errors import ConfigError
from ..core.net import Net

KEPT = (nn.ReLU, nn.MaxPool2d, nn.Flatten)  # layers without parameters


@dataclass(frozen=True)
class NarrowBuilder:
    """Builds a model's net with narrower hidden layers, as ``convnet@0.5`` does."""

    # its signature has the default depth of the head
    __wrapped__: Callable[[tuple[int, ...], int, int], Net]
    width: float
    name: str

    def __call__(self, shape: tuple[int, ...], classes: int, head_depth: int) -> Net:
        return narrow_net(self.__wrapped__(shape, classes, head_depth), self.width, self.name)


def narrow_net(net: Net, width: float, name: str) -> Net:
    """Return a copy of a net whose hidden layers keep only the first ``width`` of their units, a fraction."""
    layers = [*net.base.children(), *net.head.children()]
    if not all(isinstance(m, (nn.Conv2d, nn.Linear, *KEPT)) for m in layers):
        raise ConfigError(f"model.name: {name} has only one width; choose convnet, smallcnn or mlp")
    parts = [nn.Sequential(), nn.Sequential()]
    last = [m for m in layers if isinstance(m, nn.Conv2d | nn.Linear)][-1]
    kept = whole = 1  # units of the layer before; network inputs count as one each
    for part, narrow in zip((net.base, net.head), parts, strict=True):
        for layer in part.children():
            made = layer
            if isinstance(layer, nn.Conv2d | nn.Linear):
                out, into = layer.weight.shape[:2]
                units = out if layer is last else ceil(width * out)
                made = slice_layer(layer, units, into * kept // whole)
                kept, whole = units, out
            narrow.append(made)
    narrowed = Net(*parts)
    narrowed.width = width
    return narrowed


def slice_layer(layer: nn.Conv2d | nn.Linear, out: int, into: int) -> nn.Module:
    """Return a copy of a layer with only its first ``out`` units and ``into`` inputs."""
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        made: nn.Conv2d | nn.Linear = nn.Linear(into, out, bias)
    else:
        sizes = (layer.kernel_size, layer.stride, layer.padding)
        made = nn.Conv2d(into, out, *sizes, bias=bias)  # type: ignore[arg-type]
    made.weight.data.copy_(layer.weight.data[:out, :into])
    if layer.bias is not None and made.bias is not None:
        made.bias.data.copy_(layer.bias.data[:out])
    return made
