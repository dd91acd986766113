"""Whose models a client receives: the best liked, or now and then a random one (ε-greedy)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def choose_downloads(liking: Tensor, known: Sequence[bool], count: int, chance: float) -> Tensor:
    """Choose up to ``count`` other clients for every client: their positions, then -1.

    Each is the best liked of those left, a random one of those if several are, or with the
    probability ``chance`` a random one of all that are left.
    """
    n, rows = len(liking), []
    explores, ranks = torch.rand(n, count) < chance, torch.rand(n, n)
    for i in range(n):
        left, row = [j for j in range(n) if known[j] and j != i], list[int]()
        for slot in range(min(count, len(left))):
            liked = torch.zeros(n) if explores[i, slot] else liking[i]
            best = max(left, key=lambda j: (float(liked[j]), float(ranks[i, j])))
            left.remove(best)
            row.append(best)
        rows.append(row + [-1] * (count - len(row)))
    return torch.tensor(rows, dtype=torch.int64).view(n, count)
