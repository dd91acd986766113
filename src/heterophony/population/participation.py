"""Client selection: seed and round determine the clients of each round, for every algorithm alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, describe_failure
from ..core.randomness import make_generator
from ..core.settings import check_settings, setting


class Participation(Protocol):
    """A selection rule: it selects the clients of each round."""

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        """Return the clients of round ``t``, in client order; a client listed twice trains twice."""


@dataclass(frozen=True)
class RandomParticipation:
    """Selects a fixed number of clients at random in every round."""

    rate: float | None = setting(None, "fraction of the clients in every round", above=0, high=1)
    count: int | None = setting(None, "number of clients in every round", low=1)

    def __post_init__(self) -> None:
        check_settings(self)
        if (self.rate is None) == (self.count is None):
            raise ConfigError("rate: set either rate or count")

    def compute_sample_size(self, clients: int) -> int:
        """Return how many clients are selected; a rate is rounded down, but at least one is selected."""
        if self.count is None:
            return max(1, int((self.rate or 0.0) * clients + 1e-9))
        if self.count > clients:
            raise ConfigError(
                f"participation.count: {self.count} clients are selected per round,"
                f" but there are only {clients}"
            )
        return self.count

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        return self.select_among(t, clients, clients, seed)

    def compute_probabilities(self, clients: int, seed: int) -> NDArray[np.float64]:
        """Compute the probability with which each client is selected in one draw; they add up to 1."""
        return np.full(clients, 1 / clients)

    def select_among(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], seed: int
    ) -> list[str]:
        """Select the usual number of clients from the reachable ones, or all of these if they are fewer."""
        size = min(self.compute_sample_size(len(clients)), len(reachable))
        positions = self.draw_positions(t, clients, reachable, size, seed)
        return [reachable[i] for i in sorted(positions)]

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        """Draw the clients of round ``t``: ``size`` positions in the list of reachable ones."""
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(RandomParticipation):
    """Selects a fixed number of clients in every round, all with the same probability."""

    replacement: bool = setting(False, "whether a client may be drawn twice in a round")

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        draw = make_generator(seed, "participation", t)
        return draw.choice(len(reachable), size, replace=self.replacement)


@dataclass(frozen=True)
class Skewed(RandomParticipation):
    """Selects clients with unequal probabilities, drawn once per run from a Dirichlet(gamma)."""

    gamma: float = setting(
        0.1, "evenness: with smaller values, fewer clients are selected most of the time", above=0
    )
    replacement: bool = setting(True, "whether a client may be drawn twice in a round")

    def draw_positions(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], size: int, seed: int
    ) -> NDArray[np.int64]:
        log_p = dict(zip(clients, self.draw_log_probabilities(len(clients), seed), strict=True))
        scores = np.array([log_p[c] for c in reachable])
        draw = make_generator(seed, "participation", t)
        if self.replacement:  # Gumbel-max: the highest of log p + noise is a draw from p
            draws = scores + draw.gumbel(size=(size, len(scores)))
            return np.asarray(draws.argmax(1))
        return np.argsort(-(scores + draw.gumbel(size=len(scores))), kind="stable")[:size]

    def compute_probabilities(self, clients: int, seed: int) -> NDArray[np.float64]:
        log_p = self.draw_log_probabilities(clients, seed)
        p = np.exp(log_p - log_p.max())
        return np.asarray(p / p.sum())

    def draw_log_probabilities(self, clients: int, seed: int) -> NDArray[np.float64]:
        """Draw the log-probabilities of all clients, up to a constant; a probability may be too small for a float."""
        draw = make_generator(seed, "skew")
        # Gamma(γ) is Gamma(γ + 1) times U^(1/γ); 1 - U is never 0
        whole, part = draw.gamma(self.gamma + 1, size=clients), 1 - draw.random(clients)
        return np.asarray(np.log(whole) + np.log(part) / self.gamma)


@dataclass(frozen=True)
class Poisson(RandomParticipation):
    """Selects every client independently with the same probability, so the number of clients varies.

    Only this sampling amplifies differential privacy as the privacy accounting assumes.
    """

    def compute_rate(self, clients: int) -> float:
        """Return the probability with which each client is selected; a count is the expected number of clients."""
        rate = self.rate if self.count is None else self.compute_sample_size(clients) / clients
        return float(rate or 0.0)

    def select_among(
        self, t: int, clients: Sequence[str], reachable: Sequence[str], seed: int
    ) -> list[str]:
        draws = make_generator(seed, "participation", t).random(len(clients))
        chosen = {
            c for c, u in zip(clients, draws, strict=True) if u < self.compute_rate(len(clients))
        }
        return [c for c in reachable if c in chosen]


Selection = Callable[[int, Sequence[str], int], Sequence[str | int] | NDArray[Any]]


class FunctionParticipation:
    """Selects clients by a user's function: ``select(t, clients, seed)``."""

    def __init__(self, select: Selection) -> None:
        self.select = select

    def chosen(self, t: int, clients: Sequence[str], seed: int) -> list[str]:
        try:
            found = self.select(t, clients, seed)
        except Exception as error:  # a user's function can raise anything
            raise ConfigError(
                f"participation: the function fails in round {t} ({describe_failure(error)}); it must be"
                " a function of (t, clients, seed)"
            ) from error
        names = list_returned_clients(found)
        places = {client: i for i, client in enumerate(clients)}
        for client in names:
            if not isinstance(client, str) or client not in places:
                raise ConfigError(
                    f"participation: the function returned {client!r}, which is not among the clients"
                    f" of round {t}"
                )
        return sorted(names, key=places.__getitem__)


def list_returned_clients(found: Any) -> list[Any]:
    """List the clients that a user's function returned: a list or an array; numbers become names."""
    plain = found.tolist() if hasattr(found, "tolist") else found
    if isinstance(plain, str) or not isinstance(plain, Sequence):
        raise ConfigError(
            f"participation: the function returned {found!r}; it must return a list of clients"
        )
    return [str(c) if isinstance(c, Integral) and not isinstance(c, bool) else c for c in plain]


def select_from_reachable(
    rule: Participation, t: int, clients: Sequence[str], reachable: Sequence[str], seed: int
) -> list[str]:
    """Select a round's clients from the reachable ones; a user's own rule sees only reachable clients."""
    if not reachable:
        return []
    if isinstance(rule, RandomParticipation):
        return rule.select_among(t, clients, reachable, seed)
    return rule.chosen(t, reachable, seed)
