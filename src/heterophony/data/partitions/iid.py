"""Partitions without label skew: equal sizes (``iid``), or different sizes (``quantity``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import DataError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule


@dataclass(frozen=True)
class IID(SeededRule):
    """Shuffle the examples and divide them equally."""

    def __post_init__(self) -> None:
        check_settings(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        return [
            np.asarray(p, np.int64) for p in np.array_split(draw.permutation(len(labels)), clients)
        ]


@dataclass(frozen=True)
class Quantity(SeededRule):
    """Shuffle the examples; give each client ``min_size``, and a Dirichlet share of the rest."""

    alpha: float = setting(0.5, "small: very unequal sizes; large: equal ones", above=0)
    min_size: int = setting(10, "fewest examples a client may have", low=1)

    def __post_init__(self) -> None:
        check_settings(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        rest = len(labels) - clients * self.min_size
        if rest < 0:
            raise DataError(
                f"{len(labels)} examples do not give each of {clients} clients {self.min_size};"
                " lower data.partition.min_size or data.clients"
            )
        ends = np.cumsum(draw.dirichlet(np.full(clients, self.alpha)))
        extra = np.floor(ends[:-1] / ends[-1] * rest).astype(np.int64)
        at = extra + self.min_size * np.arange(1, clients)
        return [np.asarray(p, np.int64) for p in np.split(draw.permutation(len(labels)), at)]
