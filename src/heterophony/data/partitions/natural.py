"""The natural partition: every client is one user, writer or role of the data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.errors import DataError
from ...core.fields import check_settings, setting
from ...core.randomness import make_generator
from ..source import Source
from .base import Indices, SeededRule, Share, Terms, get_official_train_size, split_train_test


@dataclass(frozen=True)
class Natural(SeededRule):
    """Make users of the data set clients; if there are more, choose among those with enough examples."""

    min_size: int = setting(2, "fewest examples a user must have", low=2)
    min_train: int = setting(1, "fewest training examples a user must have", low=1)
    min_test: int = setting(1, "fewest test examples a user must have", low=1)
    in_order: bool = setting(
        False, "train on the first examples, test on the last, instead of at random"
    )
    gap: int = setting(0, "with in_order: examples to drop between training and test", low=0)
    train_windows: int | None = setting(
        None, "keep so many consecutive training examples, from a random start", low=1
    )
    test_windows: int | None = setting(None, "the same for test examples", low=1)
    iid: bool = setting(False, "pool the examples of all users, and divide them equally")

    def __post_init__(self) -> None:
        check_settings(self)

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        users = self.list_users(source, terms)
        shares = [s for s in self.split_users(users, source, terms) if self.has_enough(s)]
        if len(shares) < terms.clients:
            enough = {s.name for s in shares}
            lacking = [name for name, _ in users if name not in enough]
            raise DataError(
                f"{terms.clients} clients, but {len(shares)} of {len(users)} users of"
                f" {source.name} have enough examples"
                + (f", '{lacking[0]}' has not" if lacking else "")
                + "; lower data.clients, or what data.partition asks of a user"
            )
        order = make_generator(terms.seed, "partition").permutation(len(shares))[: terms.clients]
        return [self.draw_windows(shares[user], terms.seed, i) for i, user in enumerate(order)]

    def list_users(self, source: Source, terms: Terms) -> list[tuple[str, Indices]]:
        """List the name and rows of every user, in the order of the data set."""
        if self.iid:
            pool = make_generator(terms.seed, "pool").permutation(len(source.y))
            return [("", rows) for rows in np.array_split(pool, terms.clients)]
        if source.users is None:
            raise DataError(
                f"{source.name} has no users: data.partition.kind = 'natural' needs a data set"
                " that says whose each example is"
            )
        count = max(int(source.users.max()) + 1, len(source.user_names))
        names = [*source.user_names, *map(str, range(len(source.user_names), count))]
        ends = np.bincount(source.users, minlength=count).cumsum()
        rows = np.split(np.argsort(source.users, kind="stable"), ends[:-1])
        return list(zip(names, rows, strict=True))

    def split_users(
        self, users: list[tuple[str, Indices]], source: Source, terms: Terms
    ) -> list[Share]:
        """Split each user's rows into training and test; leave out users with too few."""
        large = [(i, u, rows) for i, (u, rows) in enumerate(users) if len(rows) >= self.min_size]
        if terms.split == "official":
            first = get_official_train_size(source, "data.split = 'official'")
            return [Share(rows[rows < first], rows[rows >= first], u) for _, u, rows in large]
        if not self.in_order:
            draws = (make_generator(terms.seed, "split", i) for i, _, _ in large)
            return [
                Share(*split_train_test(rows, terms.train_fraction, draw), u)
                for draw, (_, u, rows) in zip(draws, large, strict=True)
            ]
        ends = [int(terms.train_fraction * len(rows)) for _, _, rows in large]
        return [
            Share(rows[:at], rows[at + self.gap :], u)
            for at, (_, u, rows) in zip(ends, large, strict=True)
        ]

    def has_enough(self, share: Share) -> bool:
        return len(share.train) >= max(self.min_train, self.train_windows or 1) and len(
            share.test
        ) >= max(self.min_test, self.test_windows or 1)

    def draw_windows(self, share: Share, seed: int, client: int) -> Share:
        """Keep ``train_windows`` and ``test_windows`` consecutive rows from random starts."""
        draw = make_generator(seed, "windows", client)
        train = draw_consecutive(share.train, self.train_windows, draw)
        return Share(train, draw_consecutive(share.test, self.test_windows, draw), share.name)


def draw_consecutive(rows: Indices, n: int | None, draw: np.random.Generator) -> Indices:
    if n is None:
        return rows
    start = int(draw.integers(len(rows) - n + 1))
    return rows[start : start + n]
