"""Label skew as FedDecomp deals it: every client draws its own distribution over classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError, DataError
from ...core.fields import check_settings, setting
from ..source import Source
from .base import Indices, SeededRule, Share, Terms, get_official_train_size

ClassProportions = NDArray[np.float64]  # a share for every class


@dataclass(frozen=True)
class PerClientDirichlet(SeededRule):
    """Every client draws its own mix of classes and takes it from the official sets; clients share.

    Nothing that one client takes is missing for another. NumPy's frozen legacy stream gives the
    authors' partitions, number by number, for the same seed.
    """

    alpha: float = setting(0.1, "small: few classes each; large: all alike", above=0)
    train: int = setting(500, "training examples of a client, at most", low=1)
    test: int = setting(100, "test examples of a client, at most", low=1)
    mode: Literal["exact_authors", "exact_size"] = setting(
        "exact_authors", "sizes as rounding leaves them, or the last class takes what is missing"
    )
    repeat_test: bool = setting(
        False, "a client's test examples may repeat, as the authors' of Tiny ImageNet do"
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
        """One client's draws: class by class, for training and then for test."""
        train, test = [], []
        wanted = zip(
            self.count_per_class(mix, self.train), self.count_per_class(mix, self.test), strict=True
        )
        for c, (a, b) in enumerate(wanted):
            train.append(draw_examples("train", a, c, pools[c][0], draw))
            test.append(draw_examples("test", b, c, pools[c][1], draw, self.repeat_test))
        return Share(np.concatenate(train), np.concatenate(test))

    def count_per_class(self, mix: ClassProportions, size: int) -> list[int]:
        """Examples per class: rounded one by one, cut where they would be too many."""
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
    """So many examples of a class, drawn from its pool."""
    if n > len(pool) and not (repeat and len(pool)):
        also = ", or let tests repeat (data.partition.repeat_test)" if part == "test" else ""
        raise DataError(
            f"a client's mix asks for {n} examples of class {c} to {part}, but there are"
            f" {len(pool)}; lower data.partition.{part}{also}"
        )
    return np.asarray(draw.choice(pool, n, replace=repeat), np.int64)
