"""How many messages each sender may still send. No I/O; the caller passes the time.

A flood must be recognised before its messages are parsed or queued, so all that counts is how many
arrive and how large they are. What the server asked for is given back afterwards.
"""

from __future__ import annotations

BURST_UNITS = 4096  # that a sender may use at once
UNITS_PER_SECOND = 64.0  # at which they come back
BYTES_PER_UNIT = 8192  # a message costs one unit for each of these that it begins
MAX_SENDERS = 4096  # names come from topics, which the broker grants to enrolled devices only


def compute_cost(size: int) -> int:
    """Return the units that a message of this size costs."""
    return 1 + size // BYTES_PER_UNIT


class MessageBudget:
    """The units of every sender, and who has used more than it had."""

    def __init__(self) -> None:
        self.exhausted: set[str] = set()
        self._units: dict[str, tuple[float, float]] = {}  # by sender: units, and when they counted

    def try_spend(self, sender: str, size: int, now: float) -> bool:
        """Return whether the sender may send this; one that has sent too much never may again."""
        if sender in self.exhausted:
            return False
        if sender not in self._units and len(self._units) >= MAX_SENDERS:
            self._units.clear()
        units, since = self._units.get(sender, (float(BURST_UNITS), now))
        units = min(BURST_UNITS, units + (now - since) * UNITS_PER_SECOND) - compute_cost(size)
        self._units[sender] = units, now
        if units < 0:
            self.exhausted.add(sender)
        return units >= 0

    def give_back(self, sender: str, units: int) -> None:
        """Return units to a sender, for a message that it was asked for."""
        if sender in self._units:
            left, since = self._units[sender]
            self._units[sender] = min(BURST_UNITS, left + units), since
