"""Label skew: every client draws its classes and gets equally much of each, apart or overlapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.errors import ConfigError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule


@dataclass(frozen=True)
class Shards(SeededRule):
    """Every client gets shards of so many classes drawn at random; equal sizes."""

    per_client: int = setting(5, "classes that a client holds", low=1)
    mode: Literal["disjoint", "overlapping"] = setting(
        "disjoint", "every example once; or as the experiments of FedAvg2Rep were dealt"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        if self.per_client > classes:
            raise ConfigError(
                f"data.partition.per_client: {self.per_client} classes each, but there are {classes}"
            )
        if self.mode == "overlapping":
            return self.partition_overlapping(labels, classes, clients, draw)
        return self.partition_disjoint(labels, classes, clients, draw)

    def partition_disjoint(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """In each pass a permutation of all classes goes to the next clients."""
        passes, uneven = divmod(clients * self.per_client, classes)
        if uneven or classes % self.per_client:
            raise ConfigError(
                f"data.partition.per_client: {clients} clients with {self.per_client} of {classes}"
                " classes each cannot be dealt in equal shards: the number of classes must be a"
                " multiple of per_client, and clients x per_client one of it; or choose"
                " mode = 'overlapping'"
            )
        pieces = [
            np.array_split(draw.permutation(np.flatnonzero(labels == c)), passes)
            for c in range(classes)
        ]
        parts: list[Indices] = []
        for p in range(passes):
            order = draw.permutation(classes).reshape(-1, self.per_client)
            parts += [np.concatenate([pieces[c][p] for c in mine]) for mine in order]
        return parts

    def partition_overlapping(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """The first positions that fit, unless *another* number at that position was taken.

        The published experiments compare positions with shuffled numbers: what is taken stays
        free for others, and with many classes each all clients crowd on the first examples.
        """
        shuffled, taken = draw.permutation(len(labels)), np.zeros(len(labels), bool)
        parts: list[Indices] = []
        for _ in range(clients):
            mine = np.zeros(classes, bool)
            mine[draw.choice(classes, self.per_client, replace=False)] = True
            free = np.flatnonzero(mine[labels] & ~taken[shuffled])
            parts.append(free[: len(labels) // clients])
            taken[parts[-1]] = True
        return parts
