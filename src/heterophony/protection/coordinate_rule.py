"""Rules that combine the replies coordinate by coordinate, in place of their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.settings import setting
from ..core.tensors import Tensors, apply_moves, compute_moves
from .base import Gathered, Gathering, MergeKind, Protection


@dataclass(frozen=True, repr=False)
class CoordinateRule(Protection):
    """Give every reply the same moves: those that the rule finds. Then any mean of them is these.

    What clients send beside the model, such as counts that become weights, is combined too.
    """

    f: int = setting(1, "bad clients that are tolerated; 0 changes nothing", low=0)

    @property
    def merge_kind(self) -> MergeKind:
        return "symmetric"

    @property
    def is_identity(self) -> bool:
        return self.f == 0

    def check_replies(self, replies: int) -> str:
        least = 2 * self.f + 1
        return f"needs at least 2f + 1 = {least} replies" if replies < least else ""

    def gather(self, replies: Sequence[Reply], gathering: Gathering) -> Gathered:
        if self.check_replies(len(replies)):
            return Gathered([])
        moves = [compute_moves(r.tensors, gathering.received[r.client]) for r in replies]
        found = self.combine_all(moves)
        others = [r.tensors.without(*m) for r, m in zip(replies, moves, strict=True)]
        beside = self.combine_all(others)
        out = []
        for reply, own in zip(replies, moves, strict=True):
            received = gathering.received[reply.client]
            kept = Tensors({k: v for k, v in beside.items() if k in reply.tensors})
            moved = apply_moves(reply.tensors, received, Tensors({k: found[k] for k in own}))
            out.append(replace(reply, tensors=moved | kept))
        return Gathered(out)

    def combine_all(self, items: Sequence[Tensors]) -> Tensors:
        """Combine the tensors of every name over the replies that have it."""
        names = sorted({k for item in items for k in item})
        return Tensors({k: self.combine_tensors([i[k] for i in items if k in i]) for k in names})

    def combine_tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        """Combine tensors of one name; of whole numbers, take the lower median."""
        first = tensors[0]
        values = torch.stack([v.double() for v in tensors])
        if first.is_floating_point() and len(tensors) > 2 * self.f:
            return self.combine(values).to(first.dtype)
        return torch.sort(values, dim=0).values[(len(values) - 1) // 2].to(first.dtype)

    def combine(self, values: Tensor) -> Tensor:
        """Combine values over the first dimension, one row per reply."""
        raise NotImplementedError
