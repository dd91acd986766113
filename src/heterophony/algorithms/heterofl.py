"""HeteroFL: Diao et al., Computation and communication efficient FL for heterogeneous clients, ICLR 2021.

The activations of a narrow net are divided by its width in training and in prediction. The authors'
code divides them in training only, which suits the whole net but not a client's own net. Static
BatchNorm and the loss without the classes that a client lacks, both in the authors' code, are left
out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core.algorithm import Algorithm, Net, Reply, Server, mean, setting
from ..core.tensors import Tensors


@dataclass(frozen=True)
class HeteroFL(Algorithm):
    """Average nets of several widths: each entry over the clients whose nets contain it."""

    paper = "Diao et al., ICLR 2021"
    needs_nets = "slices"
    scale: bool = setting(True, "divide the activations of a narrow net by its width")

    def build(self, net: Net) -> Net:
        if self.scale and net.width < 1:
            for part in (net.base, net.head):
                for name, layer in list(part.named_children()):
                    if isinstance(layer, nn.ReLU):
                        part.add_module(name, nn.Sequential(layer, Divide(net.width)))
        return net

    def send(self, server: Server, client: str) -> Tensors:
        return slice_tensors(server.model, server.shapes.get(client, {}))

    def merge(self, server: Server, replies: Sequence[Reply]) -> Server:
        """Average each entry over the replies that contain it; entries in no reply are unchanged."""
        model = server.model
        whole = [k for k, v in model.items() if all(r.tensors[k].shape == v.shape for r in replies)]
        new = mean(replies, *whole) if whole else Tensors()
        return server.update(
            new | {k: average_slices(model[k], k, replies) for k in model.keys() - whole}
        )


class Divide(nn.Module):
    """A layer that divides its input by the width of a narrow net."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by


def slice_tensors(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Slice each tensor to the shape that it has in a narrower net: the first entries along every axis."""
    if all(v.shape == shapes.get(k, v.shape) for k, v in tensors.items()):
        return tensors
    parts = {k: tuple(map(slice, shapes[k])) for k in tensors}
    return Tensors({k: v[parts[k]].clone() for k, v in tensors.items()})


def average_slices(before: Tensor, name: str, replies: Sequence[Reply]) -> Tensor:
    """Average each entry of a tensor over the replies whose slices contain it, with their weights."""
    total = torch.zeros_like(before, dtype=torch.float64)
    weight = torch.zeros_like(total)
    for reply in replies:
        sent = reply.tensors[name]
        part = tuple(map(slice, sent.shape))
        total[part] += reply.weight * sent.double()
        weight[part] += reply.weight
    return torch.where(weight > 0, total / weight, before.double()).to(before.dtype)
