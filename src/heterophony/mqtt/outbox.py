"""What one connection still has to send, within a window."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

AROUND = 32  # bytes of a packet beside topic and payload, at most
WINDOW = 1 << 20  # bytes handed over and not acknowledged; also what a ping may have to wait behind
SMALLEST = 4096  # what a message costs of the window at least: this bounds their number


@dataclass(frozen=True)
class Parcel:
    """A message on its way out."""

    topic: str
    payload: bytes
    retain: bool = False

    @property
    def size(self) -> int:
        return AROUND + len(self.topic.encode()) + len(self.payload)


class Outbox:
    """Parcels in order, first waiting, then flying until they are acknowledged.

    The owner's thread puts, the network's thread does the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Parcel] = deque()
        self._flying: dict[int, Parcel] = {}
        self._cost = 0

    def put(self, parcel: Parcel, always: bool = False) -> bool:
        """Take the parcel, if the window has room for it (alone, it always has)."""
        cost = _cost(parcel)
        with self._lock:
            if not always and self._cost and self._cost + cost > WINDOW:
                return False
            self._cost += cost
            self._waiting.append(parcel)
        return True

    def take(self, most: int) -> Parcel | None:
        """The next to send, while fewer than ``most`` are flying."""
        return self._waiting.popleft() if self._waiting and self.flying < most else None

    def sent(self, number: int, parcel: Parcel) -> None:
        self._flying[number] = parcel

    def done(self, parcel: Parcel) -> None:
        """Nothing more is to be done for this one: its part of the window is free."""
        with self._lock:
            self._cost -= _cost(parcel)

    def acknowledged(self, number: int) -> Parcel | None:
        """The parcel of that number has arrived, or was refused; None for an unknown number."""
        parcel = self._flying.pop(number, None)
        if parcel:
            self.done(parcel)
        return parcel

    @property
    def flying(self) -> int:
        return len(self._flying)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._flying


def _cost(parcel: Parcel) -> int:
    return max(parcel.size, SMALLEST)
