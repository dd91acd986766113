"""Label skew of FedDecomp: every client draws its own distribution over classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError
from ...core.fields import check_settings, setting
from ..source import Source
from .base import Indices, SeededRule, Share, Terms, get_official_train_size

ClassProportions = NDArray[np.float64]  # of one client, for every class


@dataclass(frozen=True)
class PerClientDirichlet(SeededRule):
    """Draw a distribution over classes for each client, and examples by it from the official sets.

    Clients draw independently, so they may hold the same examples. NumPy's legacy generator
    reproduces the authors' partitions exactly for the same seed.
    """

    alpha: float = setting(0.1, "small: few classes per client; large: similar labels", above=0)
    train: int = setting(500, "most training examples of a client", low=1)
    test: int = setting(100, "most test examples of a client", low=1)
    mode: Literal["exact_authors", "exact_size"] = setting(
        "exact_authors", "sizes as rounded, or filled up from the last class"
    )
    repeat_test: bool = setting(
        False, "let a client's test examples repeat, as the authors do for Tiny ImageNet"
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def allot(self, source: Source, terms: Terms) -> list[Share]:
        first = get_official_train_size(source, "data.partition.kind = 'per_client_dirichlet'")
        if terms.seed >= 2**32:
            raise ConfigError(f"seed: this partition needs one below 2**32, not {terms.seed}")
        draw, classes = np.random.RandomState(terms.seed), len(source.labels)
        mixes = draw.dirichlet(np.full(classes, self.alpha), size=terms.clients)
        sets = [np.arange(len(source.y)) < first, np.arange(len(source.y)) >= first]
        pools = [[np.flatnonzero(s & (source.y == c)) for s in sets] for c in range(classes)]
        return [self.draw_share(mix, pools, draw) for mix in mixes]

    def draw_share(
        self, mix: ClassProportions, pools: list[list[Indices]], draw: np.random.RandomState
    ) -> Share:
        """Draw one client's rows, class by class, for training and then for test."""
        train, test = [], []
        wanted = zip(
            self.count_per_class(mix, self.train), self.count_per_class(mix, self.test), strict=True
        )
        for c, (a, b) in enumerate(wanted):
            train.append(draw_examples("train", a, c, pools[c][0], draw))
            test.append(draw_examples("test", b, c, pools[c][1], draw, self.repeat_test))
        return Share(np.concatenate(train), np.concatenate(test))

    def count_per_class(self, mix: ClassProportions, size: int) -> list[int]:
        """Round the number of examples of each class; stop when the client has ``size``."""
        counts, left = [], size
        for share in mix:
            counts.append(min(int(size * share + 0.5), left))
            left -= counts[-1]
        if self.mode == "exact_size":
            counts[-1] += left
        return counts


def draw_examples(
    part: str, n: int, c: int, pool: Indices, draw: np.random.RandomState, repeat: bool = False
) -> Indices:
    """Draw ``n`` examples of class ``c`` from its pool."""
    if n > len(pool) and not (repeat and len(pool)):
        also = ", or set data.partition.repeat_test = true" if part == "test" else ""
        raise DataError(
            f"a client drew {n} examples of class {c} to {part}, but there are"
            f" {len(pool)}; lower data.partition.{part}{also}"
        )
    return np.asarray(draw.choice(pool, n, replace=repeat), np.int64)
