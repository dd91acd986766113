"""How a data set is dealt to clients: every example to exactly one, by a rule and a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, suggestion
from ..settings import check, construct, setting

Indices = NDArray[np.int64]


class Partition(Protocol):
    """Anything that deals examples to clients by their labels."""

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """The positions each client gets."""


@dataclass(frozen=True)
class IID:
    """Shuffled and cut into equal parts."""

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        return [
            np.asarray(p, np.int64) for p in np.array_split(draw.permutation(len(labels)), clients)
        ]


@dataclass(frozen=True)
class Dirichlet:
    """Class by class, cut in Dirichlet proportions; whoever has its fair share gets no more."""

    alpha: float = setting(0.1, "small: skewed; large: alike", above=0)
    min_size: int = setting(10, "fewest examples a client may have", low=1)
    max_retries: int = setting(2000, "fresh draws before giving up", low=1)

    def __post_init__(self) -> None:
        check(self)

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        sizes = np.bincount(labels, minlength=classes)
        best = 0
        for _ in range(self.max_retries):
            cuts = self.cuts(sizes, clients, draw)
            smallest = int(np.diff(cuts, axis=1).sum(axis=0).min())
            if smallest >= self.min_size:
                return cut(labels, cuts, draw)
            best = max(best, smallest)
        raise DataError(
            f"no Dirichlet({self.alpha:g}) partition gave each of {clients} clients at least "
            f"{self.min_size} examples in {self.max_retries} tries (the best gave {best}); "
            "lower data.partition.min_size or data.clients, or raise data.partition.alpha"
        )

    def cuts(self, sizes: Indices, clients: int, draw: np.random.Generator) -> Indices:
        """Per class, where its shuffled list is cut: clients + 1 ascending positions."""
        fair, held = sizes.sum() / clients, np.zeros(clients, np.int64)
        out = np.zeros((len(sizes), clients + 1), np.int64)
        for c, n in enumerate(sizes):
            share = draw.dirichlet(np.full(clients, self.alpha)) * (held < fair)
            if not n:  # nothing to cut, and perhaps nobody open any more
                continue
            if share.sum() <= 0:  # every open client drew a share too small for a float
                share = (held < fair).astype(float)
            ends = np.cumsum(share)
            out[c, 1:] = np.floor(ends / ends[-1] * n)  # exactly n from the last open client on
            held += np.diff(out[c])
        return out


@dataclass(frozen=True)
class Classes:
    """Every client holds examples of so many classes."""

    per_client: int = setting(2, "classes that a client holds", low=1)
    balanced: bool = setting(True, "equal shares of a class, or random ones")
    min_size: int = setting(10, "fewest examples a client may have, when shares are random", low=1)

    def __post_init__(self) -> None:
        check(self)

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
                shares[c, open_] = self.shares(int(n), len(open_), classes, draw)
                budget[open_] -= 1
        cuts = np.concatenate([np.zeros((classes, 1), np.int64), shares.cumsum(axis=1)], axis=1)
        return cut(labels, cuts, draw)

    def shares(self, n: int, holders: int, classes: int, draw: np.random.Generator) -> Indices:
        fair = n // holders
        first = np.full(holders - 1, fair)
        if not self.balanced:
            low = min(int(max(fair / 10, self.min_size / classes)), max(fair - 1, 0))
            first = draw.integers(low, max(fair, low + 1), holders - 1)
        return np.append(first, n - first.sum())


PARTITIONS: dict[str, type[Partition]] = {"classes": Classes, "dirichlet": Dirichlet, "iid": IID}


def partition(values: Mapping[str, Any]) -> Partition:
    """A partition from what a user wrote: ``{kind = "dirichlet", alpha = 0.1}``."""
    rest = dict(values)
    kind = str(rest.pop("kind", "dirichlet"))
    if kind not in PARTITIONS:
        raise ConfigError(f"data.partition.kind: no '{kind}' here{suggestion(kind, PARTITIONS)}")
    return construct(PARTITIONS[kind], rest, "data.partition")


def cut(labels: Indices, cuts: Indices, draw: np.random.Generator) -> list[Indices]:
    """Shuffle each class, cut it, and give piece j to client j."""
    pieces: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for c, at in enumerate(cuts):
        mine = draw.permutation(np.flatnonzero(labels == c))
        for j, piece in enumerate(np.split(mine, at[1:-1])):
            pieces[j].append(piece)
    return [np.concatenate(p).astype(np.int64) for p in pieces]


def halves(rows: Indices, fraction: float, draw: np.random.Generator) -> tuple[Indices, Indices]:
    """Train and test part of one client's examples: random, not stratified, neither empty."""
    rows = draw.permutation(rows)
    at = min(max(1, int(fraction * len(rows))), len(rows) - 1)
    return rows[:at], rows[at:]
