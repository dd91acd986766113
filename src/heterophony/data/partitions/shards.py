"""Label skew: every client gets equal shards of randomly chosen classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.errors import ConfigError
from ...core.fields import check_settings, setting
from .base import Indices, SeededRule


@dataclass(frozen=True)
class Shards(SeededRule):
    """Give every client equally large shards of ``per_client`` random classes."""

    per_client: int = setting(5, "classes that a client holds", low=1)
    mode: Literal["disjoint", "overlapping"] = setting(
        "disjoint", "each example goes to one client; or clients overlap, as in FedAvg2Rep's code"
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
        """In each pass, give a random permutation of all classes to the next clients."""
        passes, uneven = divmod(clients * self.per_client, classes)
        if uneven or classes % self.per_client:
            raise ConfigError(
                f"data.partition.per_client: {clients} clients with {self.per_client} of {classes}"
                " classes each cannot have equal shards: the number of classes must be a multiple of"
                " per_client, and clients x per_client a multiple of the classes; or choose"
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
        """Take the first examples of the client's classes, as the published experiments do.

        Their code marks positions as taken but looks them up by shuffled numbers. Taken examples
        thus stay available, and with many classes all clients hold mostly the first examples.
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
