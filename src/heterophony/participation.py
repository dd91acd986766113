"""Who takes part in a round: a function of the seed and the round, the same for every algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import ConfigError
from .randomness import generator
from .settings import check, setting


class Participation(Protocol):
    """Anything that picks the clients of a round."""

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        """The clients of round ``t``, in client order."""


@dataclass(frozen=True)
class Uniform:
    """So many clients in every round, drawn without replacement."""

    rate: float | None = setting(None, "share of the clients in every round", above=0, high=1)
    count: int | None = setting(None, "number of clients in every round", low=1)

    def __post_init__(self) -> None:
        check(self)
        if (self.rate is None) == (self.count is None):
            raise ConfigError("rate: give either rate or count")

    def size(self, clients: int) -> int:
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
        draw = generator(seed, "participation", t)
        picked = draw.choice(len(clients), self.size(len(clients)), replace=False)
        return [clients[i] for i in sorted(picked)]
