"""What a rule for dealing is: who gets which examples, decided by the data and a seed alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.fields import setting
from ...core.randomness import make_generator
from ..source import Source

Indices = NDArray[np.int64]
SplitMode = Literal["merged", "official"]


@dataclass(frozen=True)
class Share:
    """One client's examples: rows to train, rows to test, and rows to validate, if any."""

    train: Indices
    test: Indices
    name: str = ""  # of a user or a site, for people; clients are numbered all the same
    validation: Indices = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Terms:
    """On which terms a data set is dealt."""

    clients: int
    train_fraction: float = 0.75  # of each client's examples, where the rule does not say itself
    split: SplitMode = "merged"  # deal training and test set as one, or the one like the other
    seed: int = 0


@runtime_checkable
class LabelPartition(Protocol):
    """A rule that needs labels only; every client's examples are split afterwards."""

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """The positions each client gets."""


@runtime_checkable
class DatasetPartition(Protocol):
    """A rule that sees the whole data set and says itself what trains and what tests."""

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        """Each client's share."""


Partition = LabelPartition | DatasetPartition


@dataclass(frozen=True, kw_only=True)
class SeededRule:
    """A rule whose seed can be held while the run's varies."""

    seed: int | None = setting(None, "decides who holds what; default: the run's seed", low=0)


def compute_shares(partition: Partition, source: Source, terms: Terms) -> list[Share]:
    """What each client gets, whichever kind of rule it is."""
    if isinstance(partition, DatasetPartition):
        return partition.allot(source, terms)
    draw, classes = make_generator(terms.seed, "partition"), len(source.labels)
    if terms.split == "official":
        first = get_official_train_size(source, "data.split = 'official'")
        trains = partition.deal(source.y[:first], classes, terms.clients, draw)
        tests = partition_test_set(trains, source.y, first, make_generator(terms.seed, "test"))
        return [Share(*both) for both in zip(trains, tests, strict=True)]
    dealt = partition.deal(source.y, classes, terms.clients, draw)
    for i, rows in enumerate(dealt):
        if len(rows) < 2:
            raise DataError(
                f"client {i} got {len(rows)} example{'s' * (len(rows) != 1)}; it needs at least 2,"
                " one to train and one to test: lower data.clients or raise"
                " data.partition.min_size"
            )
    each = ((rows, make_generator(terms.seed, "split", i)) for i, rows in enumerate(dealt))
    return [Share(*split_train_test(rows, terms.train_fraction, own)) for rows, own in each]


def get_official_train_size(source: Source, what: str) -> int:
    """How many examples, the first, are the official training set; there must be one."""
    if source.official is None or not 0 < source.official < len(source.y):
        raise DataError(
            f"{what} needs a data set with an official test set; {source.name} has none"
        )
    return source.official


def partition_test_set(
    trains: list[Indices], labels: Indices, first: int, draw: np.random.Generator
) -> list[Indices]:
    """The test set dealt like the training set: class by class, in proportion to what is held.

    Every test example of a class that somebody trains on goes to exactly one client.
    """
    classes = int(labels.max()) + 1
    held = np.stack([np.bincount(labels[rows], minlength=classes) for rows in trains], axis=1)
    test = labels[first:]
    cuts = np.zeros((classes, len(trains) + 1), np.int64)
    for c, n in enumerate(np.bincount(test, minlength=classes)):
        if held[c].sum():
            cuts[c, 1:] = apportion(int(n), held[c]).cumsum()
    known = np.where(held.sum(axis=1)[test] > 0, test, -1)  # of the others nobody gets any
    return [rows + first for rows in assign_class_pieces(known, cuts, draw)]


def apportion(n: int, weights: Indices) -> Indices:
    """``n`` things in proportion to whole weights, by largest remainder; ties to the first."""
    total = int(weights.sum())
    parts, rest = np.divmod(n * weights, total)
    order = np.argsort(-rest, kind="stable")
    parts[order[: n - int(parts.sum())]] += 1
    return np.asarray(parts, np.int64)


def assign_class_pieces(labels: Indices, cuts: Indices, draw: np.random.Generator) -> list[Indices]:
    """Shuffle each class, cut it, and give piece j to client j."""
    pieces: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for c, at in enumerate(cuts):
        mine = draw.permutation(np.flatnonzero(labels == c))
        for j, piece in enumerate(np.split(mine, at[1:-1])):
            pieces[j].append(piece)
    return [np.concatenate(p).astype(np.int64) for p in pieces]


def split_train_test(
    rows: Indices, fraction: float, draw: np.random.Generator
) -> tuple[Indices, Indices]:
    """Train and test part of one client's examples: random, not stratified, neither empty."""
    rows = draw.permutation(rows)
    at = min(max(1, int(fraction * len(rows))), len(rows) - 1)
    return rows[:at], rows[at:]
