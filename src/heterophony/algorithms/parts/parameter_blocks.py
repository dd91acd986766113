"""Blocks of parameters for pFedGate: some are kept and scaled, the others dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...core.tensors import Tensors, answer, is_given, match_memory_format


@dataclass(frozen=True)
class ParameterBlocks:
    """A parameter tensor cut into pieces of equal size, the last one shorter."""

    name: str
    sizes: tuple[int, ...]
    in_linear_layer: bool


Blocks = Sequence[ParameterBlocks]


def split_into_blocks(net: nn.Module, pieces: int) -> Blocks:
    """Split every parameter that is learned, but the gate's own, into blocks, in the network's order."""
    linear = {id(p) for m in net.modules() if isinstance(m, nn.Linear) for p in m.parameters()}
    cut = []
    for name, p in net.named_parameters():
        if name.startswith("gate.") or is_given(p):
            continue
        size = -(-p.numel() // min(pieces, p.numel()))
        whole, rest = divmod(p.numel(), size)
        sizes = (size,) * whole + ((rest,) if rest else ())
        cut.append(ParameterBlocks(name, sizes, id(p) in linear))
    if not cut:
        raise ConfigError(
            "pfedgate: all parameters of the model are frozen, so there is no block to gate; unfreeze"
            " a part of it, or choose another algorithm"
        )
    return cut


def select_blocks(cut: Blocks, importance: Tensor, budget: float) -> tuple[Tensor, float]:
    """Select the blocks to keep: the first of every tensor, and the most important that fit.

    ``budget`` is the fraction of all but the first blocks, for linear layers and for other layers
    separately. Returns also the fraction of the model that is kept.
    """
    flat = [(b.in_linear_layer, i > 0, n) for b in cut for i, n in enumerate(b.sizes)]
    keep = [not later for _, later, _ in flat]
    order = importance.argsort(descending=True, stable=True).tolist()
    for group in (True, False):
        others = [i for i in order if flat[i][0] == group and flat[i][1]]
        left = round(budget * sum(flat[i][2] for i in others))
        for i in others:
            if flat[i][2] <= left:
                keep[i] = True
                left -= flat[i][2]
    sizes = torch.tensor([n for _, _, n in flat])
    share = float(sizes[torch.tensor(keep)].sum() / sizes.sum())
    return importance.new_tensor(keep, dtype=torch.bool), share


def forward_gated(net: nn.Module, cut: Blocks, gates: Tensor, w: Tensors, x: Tensor) -> Tensor:
    """Return the net's output with every block of ``w`` scaled by its gate."""
    scaled, at = dict(w), 0
    for b in cut:
        sizes = gates.new_tensor(b.sizes, dtype=torch.int64)
        factor = gates[at : at + len(b.sizes)].repeat_interleave(sizes)
        scaled[b.name] = match_memory_format(w[b.name] * factor.view(w[b.name].shape), w[b.name])
        at += len(b.sizes)
    return answer(net, scaled, x)
