"""Label skew: each class is divided in Dirichlet proportions, with a cap on client sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import DataError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule, assign_class_pieces


@dataclass(frozen=True)
class Dirichlet(SeededRule):
    """Divide each class in Dirichlet proportions; a client that has its fair share gets no more."""

    alpha: float = setting(0.1, "small: very different labels; large: similar labels", above=0)
    min_size: int = setting(10, "fewest examples a client may have", low=1)
    max_retries: int = setting(2000, "how many partitions to draw before giving up", low=1)
    top_up: bool = setting(
        False, "take the first draw and move examples from the largest clients to too small ones"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        sizes = np.bincount(labels, minlength=classes)
        if self.top_up:
            return top_up_clients(
                assign_class_pieces(labels, self.draw_cuts(sizes, clients, draw), draw),
                self.min_size,
                draw,
            )
        best = 0
        for _ in range(self.max_retries):
            cuts = self.draw_cuts(sizes, clients, draw)
            smallest = int(np.diff(cuts, axis=1).sum(axis=0).min())
            if smallest >= self.min_size:
                return assign_class_pieces(labels, cuts, draw)
            best = max(best, smallest)
        raise DataError(
            f"no Dirichlet({self.alpha:g}) partition gave each of {clients} clients at least "
            f"{self.min_size} examples in {self.max_retries} tries (the best gave {best}); "
            "lower data.partition.min_size or data.clients, or raise data.partition.alpha, or set"
            " data.partition.top_up = true"
        )

    def draw_cuts(self, sizes: Indices, clients: int, draw: np.random.Generator) -> Indices:
        """Draw, for each class, where to cut its shuffled list: clients + 1 ascending positions."""
        fair, held = sizes.sum() / clients, np.zeros(clients, np.int64)
        out = np.zeros((len(sizes), clients + 1), np.int64)
        for c, n in enumerate(sizes):
            share = draw.dirichlet(np.full(clients, self.alpha)) * (held < fair)
            if not n:  # nothing to cut, and perhaps every client has its fair share
                continue
            if share.sum() <= 0:  # all shares are too small for a float
                share = (held < fair).astype(float)
            ends = np.cumsum(share)
            out[c, 1:] = np.floor(
                ends / ends[-1] * n
            )  # exactly n from the last client with a share on
            held += np.diff(out[c])
        return out


def top_up_clients(parts: list[Indices], least: int, draw: np.random.Generator) -> list[Indices]:
    """Move random examples from the largest client to clients with fewer than ``least``."""
    sizes = np.array([len(p) for p in parts])
    if sizes.sum() < least * len(parts):
        raise DataError(
            f"{sizes.sum()} examples do not give each of {len(parts)} clients {least};"
            " lower data.partition.min_size or data.clients"
        )
    held = [p.tolist() for p in parts]
    for small in np.flatnonzero(sizes < least):
        while sizes[small] < least:
            largest = int(sizes.argmax())
            held[small].append(held[largest].pop(int(draw.integers(sizes[largest]))))
            sizes[small] += 1
            sizes[largest] -= 1
    return [np.array(rows, np.int64) for rows in held]
