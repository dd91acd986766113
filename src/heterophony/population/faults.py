"""Simulated faults: clients that cannot be reached, drop out or reply late, and how rounds end.

All faults are functions of the seed, the round, the client and the simulated time. They do not
depend on the algorithm or the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from ..core.errors import ConfigError
from ..core.settings import check_settings, setting
from .availability import Availability, Devices, RandomAvailability, draw_uniform
from .participation import Participation, RandomParticipation


@dataclass(frozen=True)
class RoundEnd:
    """How a round ended: its simulated seconds, and the positions of merged and late replies."""

    seconds: float
    merged: tuple[int, ...]
    late: tuple[int, ...]


@dataclass(frozen=True)
class Faults:
    """Settings of simulated faults. With the defaults, nothing fails."""

    availability: float | Availability | None = setting(
        None, "fraction of the rounds in which a client can be reached, or a rule", above=0, high=1
    )
    dropout: float = setting(
        0.0, "probability that a selected client sends no reply", low=0, high=1
    )
    deadline: float | None = setting(None, "simulated seconds after which a round ends", above=0)
    quorum: int | float | None = setting(
        None, "replies that a round needs: a number, or a fraction of the selected clients", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if isinstance(self.quorum, float) and self.quorum > 1:
            raise ConfigError(
                f"quorum: must be a fraction of at most 1 or a whole number, not {self.quorum}"
            )

    def get_availability_rule(self) -> Availability | None:
        """Return the rule that decides who can be reached; None if everybody always can."""
        given = self.availability
        return RandomAvailability(given) if isinstance(given, int | float) else given

    def list_reachable(self, t: int, clients: Sequence[str], now: float, seed: int) -> list[str]:
        """List the clients that can be reached in round ``t``."""
        rule = self.get_availability_rule()
        return [c for c in clients if rule is None or rule.reachable(c, t, now, seed)]

    def compute_idle_seconds(self, clients: Sequence[str], now: float, seed: int) -> float:
        """Compute the length of a round without reachable clients: it ends when one can be reached."""
        rule = self.get_availability_rule()
        waits = [rule.wait(c, now, seed) for c in clients] if rule else []
        soonest = min(waits, default=0.0)
        return soonest if soonest < inf else 0.0

    def has_dropped_out(self, t: int, client: str, seed: int) -> bool:
        """Return True if the client, selected in round ``t``, sends no reply."""
        return draw_uniform(seed, "dropout", t, client) < self.dropout

    def count_needed_replies(self, asked: int) -> int:
        """Count the replies that a round of ``asked`` clients needs; one without a quorum."""
        if isinstance(self.quorum, float):
            return max(1, ceil(self.quorum * asked - 1e-9))
        return self.quorum or 1

    def determine_round_end(self, arrivals: Sequence[float | None]) -> RoundEnd:
        """Decide which replies are merged, given when each arrives (None: never).

        A round ends when all replies have arrived, or at the deadline. If the quorum is missing at
        the deadline, it ends with the reply that completes the quorum; if that never arrives, no
        reply is merged.
        """
        times = sorted(a for a in arrivals if a is not None)
        needed, last = self.count_needed_replies(len(arrivals)), times[-1] if times else 0.0
        end = inf if self.deadline is None else self.deadline
        if self.quorum is not None and len(times) >= needed:
            end = max(end, times[needed - 1])
        arrived = [i for i, a in enumerate(arrivals) if a is not None and a <= end]
        late = tuple(i for i, a in enumerate(arrivals) if a is not None and a > end)
        everyone = len(arrived) == len(arrivals)
        void = len(arrived) < needed
        if void and self.quorum is not None:  # the server waited for the quorum in vain
            seconds = max(last, self.deadline or 0.0)
        else:
            seconds = last if everyone or end == inf else end
        return RoundEnd(seconds, () if void else tuple(arrived), late)


def check_participation(
    faults: Faults, devices: Devices, participation: Participation, clients: Sequence[str]
) -> None:
    """Check, before a run, that settings fit each other and the clients; raise an error if not."""
    size = (
        participation.compute_sample_size(len(clients))
        if isinstance(participation, RandomParticipation)
        else len(clients)
    )
    if faults.deadline is not None and not devices.simulates_time:
        raise ConfigError(
            "participation.deadline: no time is simulated;"
            " set devices.sample_seconds or devices.bytes_per_second"
        )
    if faults.count_needed_replies(size) > size:
        raise ConfigError(
            f"participation.quorum: {faults.quorum} replies are needed, but only {size} clients are"
            " selected"
        )
    rule = faults.get_availability_rule()
    if getattr(rule, "unit", "rounds") == "seconds" and not devices.simulates_time:
        raise ConfigError(
            "participation.availability.unit: no time is simulated;"
            " set devices.sample_seconds or devices.bytes_per_second"
        )
    if rule is not None:
        rule.know(clients)
    devices.check_clients(clients)
