"""When clients can be reached: at random, at certain times of day, or as a file says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Literal

from ..core.errors import ConfigError, DataError
from ..core.fields import check_settings, setting
from ..core.randomness import derive_seed
from .per_client_file import RowsByClient, read_per_client_file

TimeUnit = Literal["rounds", "seconds"]


class Availability:
    """Decides whether a client can be reached in round ``t``, at ``now`` of the simulated time."""

    def __repr__(self) -> str:
        return type(self).__name__

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        raise NotImplementedError

    def wait(self, client: str, now: float, seed: int) -> float:
        """Return the simulated seconds until the client can be reached; 0 if time does not matter."""
        return 0.0

    def know(self, clients: Iterable[str]) -> None:
        """Check, before a run, that the rule fits its clients; raise DataError if not."""


@dataclass(frozen=True)
class RandomAvailability(Availability):
    """Each client can be reached with the same probability in every round."""

    share: float

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        return draw_uniform(seed, "availability", t, client) < self.share


@dataclass(frozen=True)
class Diurnal(Availability):
    """Each client can be reached during a part of every day; its day begins at a random time."""

    period: float = setting(24.0, "length of a day, in rounds or simulated seconds", above=0)
    share: float = setting(0.5, "part of the day in which a client can be reached", above=0, high=1)
    unit: TimeUnit = setting("rounds", "rounds | seconds: what the day is counted in")

    def __post_init__(self) -> None:
        check_settings(self)

    def compute_time_of_day(self, client: str, when: float, seed: int) -> float:
        """Compute how much of the client's day has passed, from 0 to 1."""
        return (when / self.period + draw_uniform(seed, "day", client)) % 1

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        return (
            self.compute_time_of_day(client, t if self.unit == "rounds" else now, seed) < self.share
        )

    def wait(self, client: str, now: float, seed: int) -> float:
        return (
            0.0
            if self.unit == "rounds"
            else (1 - self.compute_time_of_day(client, now, seed)) * self.period
        )


@dataclass(frozen=True)
class Trace(Availability):
    """Clients can be reached from ``start`` to before ``end``, as a file says; others always."""

    file: str = setting("", "CSV (client, start, end) or JSON (client: [[start, end], …])")
    unit: TimeUnit = setting("rounds", "rounds | seconds: what the file counts in")

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.file:
            raise ConfigError("file: missing; give a CSV or JSON file")

    @cached_property
    def intervals(self) -> RowsByClient:
        return read_per_client_file(self.file, ("start", "end"))

    def know(self, clients: Iterable[str]) -> None:
        unknown = self.intervals.keys() - set(clients)
        if unknown:
            raise DataError(f"{self.file}: there is no client '{min(unknown)}'")
        for client, intervals in self.intervals.items():
            if any(start == inf or start > end for start, end in intervals):
                raise DataError(f"{self.file}: client {client} has an interval that ends before"
                                " it starts, or never starts")  # fmt: skip

    def reachable(self, client: str, t: int, now: float, seed: int) -> bool:
        when = t if self.unit == "rounds" else now
        intervals = self.intervals.get(client)
        return intervals is None or any(start <= when < end for start, end in intervals)

    def wait(self, client: str, now: float, seed: int) -> float:
        if self.unit == "rounds":
            return 0.0
        return min((s - now for s, end in self.intervals.get(client, []) if now < s < end),
                   default=inf)  # fmt: skip


def draw_uniform(*key: object) -> float:
    """Draw a number from 0 to below 1 that depends only on the key."""
    return (derive_seed(*key) >> 10) / 2**53
