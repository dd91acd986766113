"""Label skew: every client holds so many classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import ConfigError, DataError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule, assign_class_pieces


@dataclass(frozen=True)
class Classes(SeededRule):
    """Every client holds examples of so many classes."""

    per_client: int = setting(2, "classes that a client holds", low=1)
    balanced: bool = setting(True, "equal shares of a class, or random ones")
    min_size: int = setting(10, "fewest examples a client may have, when shares are random", low=1)

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
            open_ = np.flatnonzero(budget)[:holders]
            if not len(open_) and n:
                raise DataError(
                    f"{clients} clients with {self.per_client} of {classes} classes each leave"
                    f" class {c} to nobody; raise data.partition.per_client or data.clients so"
                    f" that clients x per_client is a multiple of {classes}"
                )
            if len(open_):
                shares[c, open_] = self.divide_class(int(n), len(open_), classes, draw)
                budget[open_] -= 1
        cuts = np.concatenate([np.zeros((classes, 1), np.int64), shares.cumsum(axis=1)], axis=1)
        return assign_class_pieces(labels, cuts, draw)

    def divide_class(
        self, n: int, holders: int, classes: int, draw: np.random.Generator
    ) -> Indices:
        fair = n // holders
        first = np.full(holders - 1, fair)
        if not self.balanced:
            low = min(int(max(fair / 10, self.min_size / classes)), max(fair - 1, 0))
            first = draw.integers(low, max(fair, low + 1), holders - 1)
        return np.append(first, n - first.sum())
