"""Split clients in two so that the largest cosine between updates across is as small as can be."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from ...core.tensors import Tensors


def compute_cosines(updates: Sequence[Tensors]) -> Tensor:
    """Compute the cosine of every two updates; an update of zero is at right angles to all."""
    n, norms = len(updates), [float(u.square().double().sqrt()) for u in updates]
    cosines = torch.eye(n, dtype=torch.float64)
    for i, j in combinations(range(n), 2):
        whole = norms[i] * norms[j]
        cosines[i, j] = cosines[j, i] = float(updates[i].dot(updates[j])) / whole if whole else 0.0
    return cosines


def split_in_two(cosines: Tensor) -> tuple[list[int], float]:
    """Split two or more positions; return the part without the first one, and the largest cosine across.

    Parts are joined by falling cosine until two are left: the cosines across that remain are then
    as small as any split makes them.
    """
    n = len(cosines)
    part = list(range(n))
    pairs = sorted(combinations(range(n), 2), key=lambda ij: -float(cosines[ij]))
    for i, j in pairs:
        if len(set(part)) == 2:
            break
        joined, gone = sorted((part[i], part[j]))
        part = [joined if p == gone else p for p in part]
    across = max(float(cosines[i, j]) for i, j in pairs if part[i] != part[j])
    return [i for i in range(n) if part[i] != part[0]], min(1.0, max(-1.0, across))
