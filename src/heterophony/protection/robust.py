"""Robust aggregation: coordinate-wise median and trimmed mean, norm bounds, Krum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import torch
from torch import Tensor

from ..core.algorithm import Reply
from ..core.errors import ConfigError
from ..core.settings import setting
from ..core.tensors import Tensors, apply_moves, compute_moves, compute_norm
from .base import Gathered, Gathering, MergeKind, Protection


@dataclass(frozen=True, repr=False)
class CoordinateRule(Protection):
    """Base of rules that combine the replies entry by entry and then give every reply the combined change.

    Other values that clients send, such as counts that become weights, are combined in the same way.
    """

    f: int = setting(1, "malicious clients that are tolerated; 0 changes nothing", low=0)

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
        """Combine the replies' tensors name by name, over the replies that have the name."""
        names = sorted({k for item in items for k in item})
        return Tensors({k: self.combine_tensors([i[k] for i in items if k in i]) for k in names})

    def combine_tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        """Combine the replies' tensors that have one name; for integers, take the lower median."""
        first = tensors[0]
        values = torch.stack([v.double() for v in tensors])
        if first.is_floating_point() and len(tensors) > 2 * self.f:
            return self.combine(values).to(first.dtype)
        return torch.sort(values, dim=0).values[(len(values) - 1) // 2].to(first.dtype)

    def combine(self, values: Tensor) -> Tensor:
        """Combine the replies' values of one tensor, given one row per reply."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Median(CoordinateRule):
    """Merge the median of every coordinate; fewer than half of the clients may be malicious."""

    def combine(self, values: Tensor) -> Tensor:
        rows = torch.sort(values, dim=0).values
        return (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2


@dataclass(frozen=True, repr=False)
class TrimmedMean(CoordinateRule):
    """Merge the mean of every coordinate, leaving out the f largest and f smallest values."""

    def combine(self, values: Tensor) -> Tensor:
        rows = torch.sort(values, dim=0).values  # a sum in sorted order always has the same bits
        return rows[self.f : len(rows) - self.f].mean(0)


@dataclass(frozen=True, repr=False)
class NormBound(Protection):
    """Limit the norm of every reply's change before it is merged."""

    bound: float | None = setting(
        None,
        "largest norm of a change; default: the median norm of the round; inf changes nothing",
        above=0,
        infinite=True,
    )

    @property
    def is_identity(self) -> bool:
        return self.bound == inf

    @property
    def preserves_sensitivity(self) -> bool:
        return self.bound is not None

    def gather(self, replies: Sequence[Reply], gathering: Gathering) -> Gathered:
        moves = [compute_moves(r.tensors, gathering.received[r.client]) for r in replies]
        norms = [compute_norm(m) for m in moves]
        bound = self.bound if self.bound is not None else median(norms or [0.0])
        out, shortened = [], []
        for reply, own, norm in zip(replies, moves, norms, strict=True):
            if norm > bound:
                received = gathering.received[reply.client]
                tensors = apply_moves(reply.tensors, received, own * (bound / norm))
                shortened.append(reply.client)
                reply = replace(reply, tensors=tensors)
            out.append(reply)
        return Gathered(out, tuple(shortened))


@dataclass(frozen=True, repr=False)
class Krum(Protection):
    """Merge only the m replies that are nearest to the others; m = 1 is Krum, larger m is Multi-Krum."""

    f: int = setting(1, "malicious clients that are tolerated; 0 changes nothing", low=0)
    m: int | None = setting(
        None, "replies to merge; default: all but f, the maximum of Multi-Krum", low=1
    )

    @property
    def is_identity(self) -> bool:
        return self.f == 0

    def check_replies(self, replies: int) -> str:
        least = 2 * self.f + 3
        if replies < least:
            return f"needs at least 2f + 3 = {least} replies"
        if self.m is not None and self.m > replies - self.f:
            return f"m = {self.m} exceeds the {replies - self.f} replies left after removing f"
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
        scores = compute_krum_scores(rows, len(replies) - self.f - 2)
        # rank equal scores by content, so that the order of the replies does not matter
        order = sorted(range(len(replies)), key=lambda i: (scores[i], replies[i].tensors.digest()))
        chosen = set(order[: self.m or len(replies) - self.f])
        kept = [r for i, r in enumerate(replies) if i in chosen]
        left = tuple(r.client for i, r in enumerate(replies) if i not in chosen)
        return Gathered(kept, left)


def compute_krum_scores(rows: torch.Tensor, nearest: int) -> list[float]:
    """Return each reply's Krum score: the sum of squared distances to the nearest other replies."""
    squares = torch.stack([(rows - row).square().sum(1) for row in rows])
    squares = torch.minimum(squares, squares.T)  # both are the same except for rounding
    return [float(torch.sort(row).values[1 : nearest + 1].sum()) for row in squares]
