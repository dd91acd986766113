"""Norm bound: Sun et al., Can you really backdoor federated learning?, 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

from ..core.algorithm import Reply
from ..core.settings import setting
from ..core.tensors import apply_moves, compute_moves, compute_norm
from .base import Gathered, Gathering, Protection


@dataclass(frozen=True, repr=False)
class NormBound(Protection):
    """Shorten every reply's move to a largest norm before it is merged."""

    bound: float | None = setting(
        None,
        "largest norm of a move; default: the median norm of the round; inf changes nothing",
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
