"""What one connection still has to send: a store of what waits, a window of what flies."""

from __future__ import annotations

import threading
from dataclasses import dataclass

PACKET_OVERHEAD = 32  # bytes of a packet beside topic and payload, at most
MAX_IN_FLIGHT_BYTES = (
    1 << 20
)  # bytes sent and not acknowledged; also what a ping may have to wait behind
MAX_WAITING_BYTES = 1 << 26  # bytes waiting: a window of chunks for each of thirty devices
MIN_COST = 4096  # what a message costs at least: this bounds their number


@dataclass(frozen=True)
class OutgoingPacket:
    """A message on its way out."""

    topic: str
    payload: bytes
    retain: bool = False

    @property
    def size(self) -> int:
        return PACKET_OVERHEAD + len(self.topic.encode()) + len(self.payload)


class Outbox:
    """Parcels in order, first waiting, then flying until they are acknowledged.

    The owner's thread puts, the network's thread does the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[OutgoingPacket, None] = {}  # in order
        self._in_flight: dict[int, OutgoingPacket] = {}
        self._waiting_bytes = 0  # costs of what waits
        self._in_flight_bytes = 0  # of what flies

    def put(self, parcel: OutgoingPacket, always: bool = False) -> bool:
        """Take the parcel, if there is room for it (alone, it always has).

        On a slow way out the same is asked for again while it still waits: it is sent once.
        """
        cost = _compute_cost(parcel)
        with self._lock:
            if parcel in self._waiting:
                return True
            if (
                not always
                and self._waiting_bytes
                and self._waiting_bytes + cost > MAX_WAITING_BYTES
            ):
                return False
            self._waiting_bytes += cost
            self._waiting[parcel] = None
        return True

    def take_next(self, most: int) -> OutgoingPacket | None:
        """The next to send, while fewer than ``most`` are flying and the window has room."""
        with self._lock:
            if not self._waiting or self.in_flight >= most:
                return None
            parcel = next(iter(self._waiting))
            cost = _compute_cost(parcel)
            if self._in_flight and self._in_flight_bytes + cost > MAX_IN_FLIGHT_BYTES:
                return None
            self._waiting_bytes -= cost
            del self._waiting[parcel]
        return parcel

    def record_sent(self, number: int, parcel: OutgoingPacket) -> None:
        self._in_flight[number] = parcel
        self._in_flight_bytes += _compute_cost(parcel)

    def record_acknowledged(self, number: int) -> OutgoingPacket | None:
        """The parcel of that number has arrived, or was refused; None for an unknown number."""
        parcel = self._in_flight.pop(number, None)
        if parcel:
            self._in_flight_bytes -= _compute_cost(parcel)
        return parcel

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._in_flight


def _compute_cost(parcel: OutgoingPacket) -> int:
    return max(parcel.size, MIN_COST)
