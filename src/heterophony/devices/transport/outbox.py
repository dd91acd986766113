"""What one connection still has to send: a store of what waits, a window of what flies."""

from __future__ import annotations

import threading
from dataclasses import dataclass

AROUND = 32  # bytes of a packet beside topic and payload, at most
WINDOW = 1 << 20  # bytes sent and not acknowledged; also what a ping may have to wait behind
ROOM = 1 << 26  # bytes waiting: a window of chunks for each of thirty devices
SMALLEST = 4096  # what a message costs at least: this bounds their number


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
        self._waiting: dict[Parcel, None] = {}  # in order
        self._flying: dict[int, Parcel] = {}
        self._stored = 0  # costs of what waits
        self._window = 0  # of what flies

    def put(self, parcel: Parcel, always: bool = False) -> bool:
        """Take the parcel, if there is room for it (alone, it always has).

        On a slow way out the same is asked for again while it still waits: it is sent once.
        """
        cost = _cost(parcel)
        with self._lock:
            if parcel in self._waiting:
                return True
            if not always and self._stored and self._stored + cost > ROOM:
                return False
            self._stored += cost
            self._waiting[parcel] = None
        return True

    def take(self, most: int) -> Parcel | None:
        """The next to send, while fewer than ``most`` are flying and the window has room."""
        with self._lock:
            if not self._waiting or self.flying >= most:
                return None
            parcel = next(iter(self._waiting))
            cost = _cost(parcel)
            if self._flying and self._window + cost > WINDOW:
                return None
            self._stored -= cost
            del self._waiting[parcel]
        return parcel

    def sent(self, number: int, parcel: Parcel) -> None:
        self._flying[number] = parcel
        self._window += _cost(parcel)

    def acknowledged(self, number: int) -> Parcel | None:
        """The parcel of that number has arrived, or was refused; None for an unknown number."""
        parcel = self._flying.pop(number, None)
        if parcel:
            self._window -= _cost(parcel)
        return parcel

    @property
    def flying(self) -> int:
        return len(self._flying)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._flying


def _cost(parcel: Parcel) -> int:
    return max(parcel.size, SMALLEST)
