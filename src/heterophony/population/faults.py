"""What goes wrong in a round, and what then: who cannot be reached, who vanishes, who is late.

All of it is a function of the seed, the round, the client and the simulated clock: no algorithm
and no engine has a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from ..core.errors import ConfigError
from ..core.fields import check_settings, setting
from .availability import Availability, RandomAvailability, draw_uniform
from .device_speeds import Devices
from .participation import Participation, RandomParticipation


@dataclass(frozen=True)
class RoundEnd:
    """How a round ended: after so many simulated seconds, with the replies at these positions."""

    seconds: float
    merged: tuple[int, ...]
    late: tuple[int, ...]


@dataclass(frozen=True)
class Faults:
    """As written, nothing goes wrong."""

    availability: float | Availability | None = setting(
        None, "share of the rounds in which a client can be reached, or a rule", above=0, high=1
    )
    dropout: float = setting(0.0, "how likely a client vanishes in a round", low=0, high=1)
    deadline: float | None = setting(None, "simulated seconds after which a round closes", above=0)
    quorum: int | float | None = setting(
        None, "replies (a number, or a share of the asked) that a round needs", above=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if isinstance(self.quorum, float) and self.quorum > 1:
            raise ConfigError(
                f"quorum: must be a share of at most 1 or a whole number, not {self.quorum}"
            )

    def get_availability_rule(self) -> Availability | None:
        """The rule that says who can be reached; None for everybody, always."""
        given = self.availability
        return RandomAvailability(given) if isinstance(given, int | float) else given

    def list_reachable(self, t: int, clients: Sequence[str], now: float, seed: int) -> list[str]:
        """Who can be asked in round ``t``."""
        rule = self.get_availability_rule()
        return [c for c in clients if rule is None or rule.reachable(c, t, now, seed)]

    def compute_idle_seconds(self, clients: Sequence[str], now: float, seed: int) -> float:
        """How long a round lasts in which nobody can be reached: until somebody can."""
        rule = self.get_availability_rule()
        waits = [rule.wait(c, now, seed) for c in clients] if rule else []
        soonest = min(waits, default=0.0)
        return soonest if soonest < inf else 0.0

    def has_dropped_out(self, t: int, client: str, seed: int) -> bool:
        """Does the client, asked in round ``t``, fall silent?"""
        return draw_uniform(seed, "dropout", t, client) < self.dropout

    def count_needed_replies(self, asked: int) -> int:
        """How many replies make a round, of so many asked; without a quorum one is enough."""
        if isinstance(self.quorum, float):
            return max(1, ceil(self.quorum * asked - 1e-9))
        return self.quorum or 1

    def determine_round_end(self, arrivals: Sequence[float | None]) -> RoundEnd:
        """Who is merged, given when each reply arrives (None: never).

        A round ends when all have come. The deadline ends it earlier, or, where a quorum is
        missing, the reply that completes it. If that never comes, nobody is merged.
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
        if void and self.quorum is not None:  # waited for it in vain
            seconds = max(last, self.deadline or 0.0)
        else:
            seconds = last if everyone or end == inf else end
        return RoundEnd(seconds, () if void else tuple(arrived), late)


def check_participation(
    faults: Faults, devices: Devices, participation: Participation, clients: Sequence[str]
) -> None:
    """Refuse, before a run, settings that contradict each other or the clients."""
    size = (
        participation.compute_sample_size(len(clients))
        if isinstance(participation, RandomParticipation)
        else len(clients)
    )
    if faults.deadline is not None and not devices.simulates_time:
        raise ConfigError(
            "participation.deadline: time does not pass;"
            " set devices.sample_seconds or devices.bytes_per_second"
        )
    if faults.count_needed_replies(size) > size:
        raise ConfigError(
            f"participation.quorum: {faults.quorum} replies are needed, but only {size} are asked"
        )
    rule = faults.get_availability_rule()
    if getattr(rule, "unit", "rounds") == "seconds" and not devices.simulates_time:
        raise ConfigError(
            "participation.availability.unit: seconds do not pass;"
            " set devices.sample_seconds or devices.bytes_per_second"
        )
    if rule is not None:
        rule.know(clients)
    devices.check_clients(clients)
