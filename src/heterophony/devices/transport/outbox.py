"""Packets that one connection still has to send: first waiting, then in flight."""

from __future__ import annotations

import threading
from dataclasses import dataclass

PACKET_OVERHEAD = 32  # bytes of a packet besides topic and payload, at most
MAX_IN_FLIGHT_BYTES = 1 << 20  # sent and not acknowledged; a ping may have to wait behind so many
MAX_WAITING_BYTES = 1 << 26  # a window of chunks for each of thirty devices
MIN_COST = 4096  # bytes that a packet counts for at least: this bounds the number of packets


@dataclass(frozen=True)
class OutgoingPacket:
    """A message to publish."""

    topic: str
    payload: bytes
    retain: bool = False

    @property
    def size(self) -> int:
        return PACKET_OVERHEAD + len(self.topic.encode()) + len(self.payload)


class Outbox:
    """Packets in order: waiting until the window has room, then in flight until acknowledged.

    The owner's thread calls ``put``; the network thread calls everything else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[OutgoingPacket, None] = {}  # an ordered set
        self._in_flight: dict[int, OutgoingPacket] = {}
        self._waiting_bytes = 0
        self._in_flight_bytes = 0

    def put(self, packet: OutgoingPacket, always: bool = False) -> bool:
        """Queue a packet if there is room; an empty queue always has room.

        On a slow connection the same chunk is requested again while it still waits: it is sent once.
        """
        cost = _compute_cost(packet)
        with self._lock:
            if packet in self._waiting:
                return True
            full = self._waiting_bytes and self._waiting_bytes + cost > MAX_WAITING_BYTES
            if full and not always:
                return False
            self._waiting_bytes += cost
            self._waiting[packet] = None
        return True

    def take_next(self, max_in_flight: int) -> OutgoingPacket | None:
        """Return the next packet to send; None while too many packets or bytes are in flight."""
        with self._lock:
            if not self._waiting or self.in_flight >= max_in_flight:
                return None
            packet = next(iter(self._waiting))
            cost = _compute_cost(packet)
            if self._in_flight and self._in_flight_bytes + cost > MAX_IN_FLIGHT_BYTES:
                return None
            self._waiting_bytes -= cost
            del self._waiting[packet]
        return packet

    def record_sent(self, number: int, packet: OutgoingPacket) -> None:
        self._in_flight[number] = packet
        self._in_flight_bytes += _compute_cost(packet)

    def record_acknowledged(self, number: int) -> OutgoingPacket | None:
        """Return the packet of that number, which arrived or was refused; None if unknown."""
        packet = self._in_flight.pop(number, None)
        if packet:
            self._in_flight_bytes -= _compute_cost(packet)
        return packet

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._in_flight


def _compute_cost(packet: OutgoingPacket) -> int:
    return max(packet.size, MIN_COST)
