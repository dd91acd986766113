"""Partitions by label: IID and quantity skew, classes per client, shards, Dirichlet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...core.errors import ConfigError, DataError
from ...core.settings import setting
from .base import Indices, SeededRule, assign_class_pieces


@dataclass(frozen=True)
class IID(SeededRule):
    """Shuffle the examples and divide them equally."""

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        return [
            np.asarray(p, np.int64) for p in np.array_split(draw.permutation(len(labels)), clients)
        ]


@dataclass(frozen=True)
class Quantity(SeededRule):
    """Shuffle the examples; give each client ``min_size`` of them, and a Dirichlet share of the rest."""

    alpha: float = setting(0.5, "small: very unequal sizes; large: equal ones", above=0)
    min_size: int = setting(10, "fewest examples a client may have", low=1)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        rest = len(labels) - clients * self.min_size
        if rest < 0:
            raise DataError(
                f"{len(labels)} examples are too few for {self.min_size} per client with {clients} clients;"
                " lower data.partition.min_size or data.clients"
            )
        ends = np.cumsum(draw.dirichlet(np.full(clients, self.alpha)))
        extra = np.floor(ends[:-1] / ends[-1] * rest).astype(np.int64)
        at = extra + self.min_size * np.arange(1, clients)
        return [np.asarray(p, np.int64) for p in np.split(draw.permutation(len(labels)), at)]


def check_per_client(per_client: int, classes: int) -> None:
    """Raise ConfigError if clients are to hold more classes than exist."""
    if per_client > classes:
        raise ConfigError(
            f"data.partition.per_client: must be at most the number of classes ({classes}), not"
            f" {per_client}"
        )


@dataclass(frozen=True)
class Classes(SeededRule):
    """Give each client examples of ``per_client`` classes."""

    per_client: int = setting(2, "classes that a client holds", low=1)
    balanced: bool = setting(
        True, "divide each class equally among its clients, instead of at random"
    )
    min_size: int = setting(10, "with random shares: fewest examples a client may have", low=1)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        check_per_client(self.per_client, classes)
        sizes, budget = np.bincount(labels, minlength=classes), np.full(clients, self.per_client)
        holders = -(-clients * self.per_client // classes)
        shares = np.zeros((classes, clients), np.int64)
        for c, n in enumerate(sizes):
            takers = np.flatnonzero(budget)[:holders]
            if not len(takers) and n:
                raise DataError(
                    f"{clients} clients with {self.per_client} of {classes} classes each give"
                    f" class {c} to no client; raise data.partition.per_client or data.clients so"
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


@dataclass(frozen=True)
class Shards(SeededRule):
    """Give each client equally large shards of ``per_client`` random classes."""

    per_client: int = setting(5, "classes that a client holds", low=1)
    mode: Literal["disjoint", "overlapping"] = setting(
        "disjoint",
        "disjoint: each example goes to one client; overlapping: as in FedAvg2Rep's code",
    )

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        check_per_client(self.per_client, classes)
        if self.mode == "overlapping":
            return self.partition_overlapping(labels, classes, clients, draw)
        return self.partition_disjoint(labels, classes, clients, draw)

    def partition_disjoint(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """Deal disjoint shards: in each pass, every class goes to one of the next clients."""
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
        """Give each client the first examples of its classes, as the published experiments do.

        Their code marks positions as taken but looks them up by shuffled numbers. Examples thus
        remain available after they are taken, and with many classes all clients hold mostly the
        first examples.
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


@dataclass(frozen=True)
class Dirichlet(SeededRule):
    """Divide each class in Dirichlet proportions; clients that have their fair share receive no more."""

    alpha: float = setting(0.1, "small: very different labels; large: similar labels", above=0)
    min_size: int = setting(10, "fewest examples a client may have", low=1)
    max_retries: int = setting(2000, "number of partitions to draw before giving up", low=1)
    top_up: bool = setting(
        False,
        "keep the first draw, and move examples from the largest clients to those with too few",
    )

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
        """Draw where to cut each class into the clients' pieces, as clients + 1 ascending positions."""
        fair, held = sizes.sum() / clients, np.zeros(clients, np.int64)
        out = np.zeros((len(sizes), clients + 1), np.int64)
        for c, n in enumerate(sizes):
            share = draw.dirichlet(np.full(clients, self.alpha)) * (held < fair)
            if not n:  # nothing to divide, and all clients may already have their fair share
                continue
            if share.sum() <= 0:  # all shares are too small for a float
                share = (held < fair).astype(float)
            ends = np.cumsum(share)
            # the last client with a share and all later ones end at exactly n
            out[c, 1:] = np.floor(ends / ends[-1] * n)
            held += np.diff(out[c])
        return out


def top_up_clients(parts: list[Indices], least: int, draw: np.random.Generator) -> list[Indices]:
    """Move random examples from the largest client to clients with fewer than ``least``."""
    sizes = np.array([len(p) for p in parts])
    if sizes.sum() < least * len(parts):
        raise DataError(
            f"{sizes.sum()} examples are too few for {least} per client with {len(parts)} clients;"
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
