"""Krum and Multi-Krum: Blanchard et al., Byzantine tolerant gradient descent, NeurIPS 2017."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.algorithm import Reply
from ..core.errors import ConfigError
from ..core.settings import setting
from ..core.tensors import compute_moves
from .base import Gathered, Gathering, Protection


@dataclass(frozen=True, repr=False)
class Krum(Protection):
    """Merge only the m replies that are nearest to the others; m = 1 is Krum, more Multi-Krum."""

    f: int = setting(1, "bad clients that are tolerated; 0 changes nothing", low=0)
    m: int | None = setting(
        None, "replies to merge; default: all but f, the most of Multi-Krum", low=1
    )

    @property
    def is_identity(self) -> bool:
        return self.f == 0

    def check_replies(self, replies: int) -> str:
        least = 2 * self.f + 3
        if replies < least:
            return f"needs at least 2f + 3 = {least} replies"
        if self.m is not None and self.m > replies - self.f:
            return f"m = {self.m} is more than all but f replies, {replies - self.f}"
        return ""

    def gather(self, replies: Sequence[Reply], gathering: Gathering) -> Gathered:
        if self.check_replies(len(replies)):
            return Gathered([])
        moves = [compute_moves(r.tensors, gathering.received[r.client]) for r in replies]
        names = [k for k in moves[0] if all(k in m for m in moves)]
        if not names:
            raise ConfigError(
                "protection.krum: the replies have no tensor in common that clients received, so"
                " there are no distances; choose another protection"
            )
        rows = torch.stack([torch.cat([m[k].flatten() for k in names]) for m in moves])
        scores = score_rows(rows, len(replies) - self.f - 2)
        # equal scores: by content, so that the order of the replies does not matter
        order = sorted(range(len(replies)), key=lambda i: (scores[i], replies[i].tensors.digest()))
        chosen = set(order[: self.m or len(replies) - self.f])
        kept = [r for i, r in enumerate(replies) if i in chosen]
        left = tuple(r.client for i, r in enumerate(replies) if i not in chosen)
        return Gathered(kept, left)


def score_rows(rows: torch.Tensor, nearest: int) -> list[float]:
    """Add up the squared distances of every row to its nearest others."""
    squares = torch.stack([(rows - row).square().sum(1) for row in rows])
    squares = torch.minimum(squares, squares.T)  # both are the same but for rounding
    return [float(torch.sort(row).values[1 : nearest + 1].sum()) for row in squares]
