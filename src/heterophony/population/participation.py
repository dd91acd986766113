"""Who is asked in a round: a function of the seed and the round, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError
from ..core.fields import check_settings, setting
from ..core.randomness import make_generator


class Participation(Protocol):
    """Anything that picks the clients of a round."""

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        """The clients of round ``t``, in client order; one that is named twice trains twice."""


@dataclass(frozen=True)
class RandomParticipation:
    """So many clients in every round, drawn at random."""

    rate: float | None = setting(None, "share of the clients in every round", above=0, high=1)
    count: int | None = setting(None, "number of clients in every round", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if (self.rate is None) == (self.count is None):
            raise ConfigError("rate: give either rate or count")

    def compute_sample_size(self, clients: int) -> int:
        """How many of so many clients; a rate is rounded down, but never to nobody."""
        if self.count is None:
            return max(1, int((self.rate or 0.0) * clients + 1e-9))
        if self.count > clients:
            raise ConfigError(
                f"participation.count: {self.count} clients are to take part in a round,"
                f" but there are only {clients}"
            )
        return self.count

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        return self.select_among(t, clients, clients, seed)

    def select_among(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], seed: int
    ) -> list[str]:
        """As many as of all clients, but of those who can be reached; fewer if they are fewer."""
        size = min(self.compute_sample_size(len(clients)), len(reachable))
        picked = self.draw_positions(t, clients, reachable, size, seed)
        return [reachable[i] for i in sorted(picked)]

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        """Positions among the reachable."""
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(RandomParticipation):
    """So many clients in every round, each as likely as any other."""

    replacement: bool = setting(False, "may a client be drawn twice in a round?")

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        draw = make_generator(seed, "participation", t)
        return draw.choice(len(reachable), size, replace=self.replacement)


@dataclass(frozen=True)
class Skewed(RandomParticipation):
    """So many draws in every round from probabilities that are drawn once: p ~ Dirichlet(gamma)."""

    gamma: float = setting(0.1, "evenness: the smaller, the fewer clients do most", above=0)
    replacement: bool = setting(True, "may a client be drawn twice in a round?")

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        likely = dict(zip(clients, self.draw_log_probabilities(len(clients), seed), strict=True))
        scores = np.array([likely[c] for c in reachable])
        draw = make_generator(seed, "participation", t)
        if self.replacement:  # the highest of scores plus Gumbel noise is a draw from p
            draws = scores + draw.gumbel(size=(size, len(scores)))
            return np.asarray(draws.argmax(1))
        return np.argsort(-(scores + draw.gumbel(size=len(scores))), kind="stable")[:size]

    def draw_log_probabilities(self, clients: int, seed: int) -> NDArray[np.float64]:
        """The logarithms of p, but for a constant: p itself may be too small for a number."""
        draw = make_generator(seed, "skew")
        # Gamma(γ) is Gamma(γ + 1) times U^(1/γ); 1 - U is never 0
        whole, part = draw.gamma(self.gamma + 1, size=clients), 1 - draw.random(clients)
        return np.asarray(np.log(whole) + np.log(part) / self.gamma)


def select_from_reachable(
    rule: Participation, t: int, clients: Sequence[str], reachable: Sequence[str], seed: int
) -> list[str]:
    """Who is asked, where only some can be; a rule of the user's own sees those alone."""
    if not reachable:
        return []
    if isinstance(rule, RandomParticipation):
        return rule.select_among(t, clients, reachable, seed)
    return rule.chosen(t, reachable, seed)
