"""The interface of partitions and skews; a partition is a function only of the data set and a seed.

A partition implements ``deal`` if labels are enough for it, or ``allot`` if it needs the data set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...core.randomness import make_generator
from ...core.settings import CheckedSettings, setting
from ..source import Source

Indices = NDArray[np.int64]
SplitMode = Literal["merged", "official"]


@dataclass(frozen=True)
class Share:
    """One client's rows of the data set: for training, for test and, if any, for validation."""

    train: Indices
    test: Indices
    name: str = ""  # the client's name; if empty, the client is numbered
    validation: Indices = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Terms:
    """The settings that every partition receives."""

    clients: int
    train_fraction: float = 0.75  # training share, unless the partition decides
    # "merged": partition training and test set as one; "official": the training set, and the test
    # set in the same proportions
    split: SplitMode = "merged"
    seed: int = 0


@runtime_checkable
class LabelPartition(Protocol):
    """A partition that needs only labels; each client's examples are split afterwards."""

    def deal(
        self, labels: Indices, classes: int, clients: int, draw: np.random.Generator
    ) -> list[Indices]:
        """Deal the examples to clients by label; return the positions of each client's examples."""


@runtime_checkable
class DatasetPartition(Protocol):
    """A partition that needs the data set, and splits training and test examples itself."""

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        """Allot the rows of the data set to clients, for training and test."""


Partition = LabelPartition | DatasetPartition


@dataclass(frozen=True, kw_only=True)
class SeededRule(CheckedSettings):
    """Base class of partitions and skews, whose seed can stay fixed while the run's seed varies."""

    seed: int | None = setting(None, "seed of this rule only; default: the run's seed", low=0)


def compute_shares(partition: Partition, source: Source, terms: Terms) -> list[Share]:
    """Compute each client's training and test rows with a partition of either kind."""
    if isinstance(partition, DatasetPartition):
        return partition.allot(source, terms)
    draw, classes = make_generator(terms.seed, "partition"), len(source.labels)
    if terms.split == "official":
        first = get_official_train_size(source, "data.split = 'official'")
        trains = partition.deal(source.y[:first], classes, terms.clients, draw)
        tests = partition_test_set(trains, source.y, first, make_generator(terms.seed, "test"))
        return [Share(*both) for both in zip(trains, tests, strict=True)]
    parts = partition.deal(source.y, classes, terms.clients, draw)
    for i, rows in enumerate(parts):
        if len(rows) < 2:
            raise DataError(
                f"client {i} got {len(rows)} example{'s' * (len(rows) != 1)}; it needs at least 2,"
                " one to train and one to test: lower data.clients or raise"
                " data.partition.min_size"
            )
    draws = ((rows, make_generator(terms.seed, "split", i)) for i, rows in enumerate(parts))
    return [Share(*split_train_test(rows, terms.train_fraction, own)) for rows, own in draws]


def get_official_train_size(source: Source, what: str) -> int:
    """Return the size of the official training set; raise DataError if the data set has no official split."""
    if source.official is None or not 0 < source.official < len(source.y):
        raise DataError(
            f"{what} needs a data set with an official test set; {source.name} has none"
        )
    return source.official


def partition_test_set(
    trains: list[Indices], labels: Indices, first: int, draw: np.random.Generator
) -> list[Indices]:
    """Partition the test set class by class, in proportion to the clients' training examples.

    Every test example whose class is in some client's training set goes to exactly one client.
    """
    classes = int(labels.max()) + 1
    held = np.stack([np.bincount(labels[rows], minlength=classes) for rows in trains], axis=1)
    test = labels[first:]
    cuts = np.zeros((classes, len(trains) + 1), np.int64)
    for c, n in enumerate(np.bincount(test, minlength=classes)):
        if held[c].sum():
            cuts[c, 1:] = divide_in_proportion(int(n), held[c]).cumsum()
    known = np.where(held.sum(axis=1)[test] > 0, test, -1)  # the other classes go to no client
    return [rows + first for rows in assign_class_pieces(known, cuts, draw)]


def divide_in_proportion(n: int, weights: Indices) -> Indices:
    """Divide ``n`` test examples among clients in proportion to integer weights, by largest remainder."""
    total = int(weights.sum())
    parts, rest = np.divmod(n * weights, total)
    order = np.argsort(-rest, kind="stable")
    parts[order[: n - int(parts.sum())]] += 1
    return np.asarray(parts, np.int64)


def assign_class_pieces(labels: Indices, cuts: Indices, draw: np.random.Generator) -> list[Indices]:
    """Shuffle the examples of each class, cut them at ``cuts``, and assign piece j to client j."""
    pieces: list[list[Indices]] = [[] for _ in range(cuts.shape[1] - 1)]
    for c, at in enumerate(cuts):
        mine = draw.permutation(np.flatnonzero(labels == c))
        for j, piece in enumerate(np.split(mine, at[1:-1])):
            pieces[j].append(piece)
    return [np.concatenate(p).astype(np.int64) for p in pieces]


def split_train_test(
    rows: Indices, fraction: float, draw: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split one client's rows at random, not stratified, so that neither part is empty."""
    rows = draw.permutation(rows)
    at = min(max(1, int(fraction * len(rows))), len(rows) - 1)
    return rows[:at], rows[at:]
