"""Label skew: every client holds a fixed number of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import ConfigError, DataError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule, assign_class_pieces


@dataclass(frozen=True)
class Classes(SeededRule):
    """Give every client examples of ``per_client`` classes."""

    per_client: int = setting(2, "classes that a client holds", low=1)
    balanced: bool = setting(True, "divide a class equally among its clients, or at random")
    min_size: int = setting(10, "with random shares: fewest examples a client may have", low=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        if self.per_client > classes:
            raise ConfigError(
                f"data.partition.per_client: {self.per_client} classes each, but there are {classes}"
            )
        sizes, budget = np.bincount(labels, minlength=classes), np.full(clients, self.per_client)
        holders = -(-clients * self.per_client // classes)
        shares = np.zeros((classes, clients), np.int64)
        for c, n in enumerate(sizes):
            takers = np.flatnonzero(budget)[:holders]
            if not len(takers) and n:
                raise DataError(
                    f"{clients} clients with {self.per_client} of {classes} classes each give"
                    f" class {c} to nobody; raise data.partition.per_client or data.clients so"
                    f" that clients x per_client is a multiple of {classes}"
                )
            if len(takers):
                shares[c, takers] = self.divide_class(int(n), len(takers), classes, draw)
                budget[takers] -= 1
        cuts = np.concatenate([np.zeros((classes, 1), np.int64), shares.cumsum(axis=1)], axis=1)
        return assign_class_pieces(labels, cuts, draw)

    def divide_class(
        self, n: int, holders: int, classes: int, draw: np.random.Generator
    ) -> Indices:
        """Divide the examples of a class among the clients that hold it."""
        fair = n // holders
        first = np.full(holders - 1, fair)
        if not self.balanced:
            low = min(int(max(fair / 10, self.min_size / classes)), max(fair - 1, 0))
            first = draw.integers(low, max(fair, low + 1), holders - 1)
        return np.append(first, n - first.sum())
