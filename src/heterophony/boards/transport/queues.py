"""Endpoints, and the bounded queues of messages from and to the network."""

from __future__ import annotations

import queue
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class BrokerEndpoint:
    """A broker's address, and the identity and credentials with which to connect to it."""

    address: str
    port: int
    identity: str
    tls: ssl.SSLContext | None = None
    password: str | None = None
    keepalive: int = 30  # seconds

    def __str__(self) -> str:
        return f"the broker at {self.address}:{self.port}"


@dataclass(frozen=True)
class Will:
    """MQTT's last will: a retained message that the broker publishes ``delay`` seconds after a lost connection.

    When the transport is closed in order, it publishes the will itself, without a delay.
    """

    topic: str
    payload: bytes
    delay: int = 15


BURST_UNITS = 4096  # units that a sender may use at once
UNITS_PER_SECOND = 64.0  # units that a sender regains per second
BYTES_PER_UNIT = 8192  # bytes per unit, rounded up to whole units
MAX_SENDERS = 4096  # names come from topics, which the broker grants to enrolled boards only


def compute_cost(size: int) -> int:
    """Return the units of a sender's budget that a message of this size costs."""
    return 1 + size // BYTES_PER_UNIT


class MessageBudget:
    """Limits the messages of each sender: a sender that spends more units than it has is barred."""

    def __init__(self) -> None:
        self.exhausted: set[str] = set()
        # sender -> units, and the time of that count
        self._units: dict[str, tuple[float, float]] = {}

    def try_spend(self, sender: str, size: int, now: float) -> bool:
        """Spend a sender's units on a message; return False if it is barred or has too few left."""
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
        """Give units back to a sender for a message that was requested."""
        if sender in self._units:
            left, since = self._units[sender]
            self._units[sender] = min(BURST_UNITS, left + units), since


EVENT_SLOTS = 64
SENDER_SHARE = 4  # one sender may use at most a quarter of the messages and bytes
FindSender = Callable[[str], str]  # finds the sender from the topic of a message


@dataclass(frozen=True)
class ReceivedMessage:
    """One message as it arrived, unchecked."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class ConnectionEvent:
    """A change of the connection, or a message that the broker refused (``denied``), as a sentence.

    ``nudge`` only wakes the reader of the inbox. The text of ``flood`` is the name of a sender that has
    exceeded its budget.
    """

    kind: Literal["connected", "lost", "refused", "denied", "nudge", "flood"]
    text: str


class Inbox(queue.Queue[ReceivedMessage | ConnectionEvent]):
    """A bounded queue of received messages and connection events; it never blocks the network thread.

    A message that does not fit is dropped and counted, and the protocol requests it again. Events have
    slots of their own, so that a flood of messages cannot hide a lost connection. With ``find_sender``,
    each sender has a limited share of the queue, and a budget: when that is exhausted, nothing more is
    accepted from the sender, and a ``flood`` event is added.
    """

    def __init__(
        self, *, max_messages: int, max_bytes: int, find_sender: FindSender | None = None
    ) -> None:
        super().__init__(max_messages + EVENT_SLOTS)
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.dropped = 0
        self.find_sender = find_sender
        self.budget = MessageBudget()
        self.messages_by_sender = Counter[str]()
        self.bytes_by_sender = Counter[str]()

    def offer(self, item: ReceivedMessage | ConnectionEvent) -> None:
        """Add a message or event to the inbox if there is room; any thread may call this."""
        with self.mutex:
            size = _count_payload_bytes(item)
            if not self._is_within_budget(item, size):
                self.dropped += 1
                return
            limit = self.max_messages if isinstance(item, ReceivedMessage) else self.maxsize
            full = self._qsize() >= limit or self.held_bytes + size > self.max_bytes
            if full or self._exceeds_share(item, size):
                self.dropped += 1
                return
            self._put(item)
            self.not_empty.notify()

    def give_back(self, sender: str, units: int) -> None:
        """Give a sender units of its budget back, for messages that were requested."""
        with self.mutex:
            self.budget.give_back(sender, units)

    def _is_within_budget(self, item: ReceivedMessage | ConnectionEvent, size: int) -> bool:
        """Return True if the sender has budget for a message; add a ``flood`` event when it is exhausted."""
        if self.find_sender is None or not isinstance(item, ReceivedMessage):
            return True
        sender, known = self.find_sender(item.topic), len(self.budget.exhausted)
        if not sender or self.budget.try_spend(sender, size, time.monotonic()):
            return True
        if len(self.budget.exhausted) > known and self._qsize() < self.maxsize:
            self._put(ConnectionEvent("flood", sender))
            self.not_empty.notify()
        return False

    def _exceeds_share(self, item: ReceivedMessage | ConnectionEvent, size: int) -> bool:
        """Return True if a message would exceed its sender's share of the inbox."""
        if self.find_sender is None or not isinstance(item, ReceivedMessage):
            return False
        sender = self.find_sender(item.topic)
        return (
            self.messages_by_sender[sender] >= self.max_messages // SENDER_SHARE
            or self.bytes_by_sender[sender] + size > self.max_bytes // SENDER_SHARE
        )

    def _put(self, item: ReceivedMessage | ConnectionEvent) -> None:
        super()._put(item)
        self._count(item, 1)

    def _get(self) -> ReceivedMessage | ConnectionEvent:
        item = super()._get()
        self._count(item, -1)
        return item

    def _count(self, item: ReceivedMessage | ConnectionEvent, sign: int) -> None:
        """Update the inbox's counts for an item that is added (1) or taken (-1)."""
        size = sign * _count_payload_bytes(item)
        self.held_bytes += size
        if self.find_sender is None or not isinstance(item, ReceivedMessage):
            return
        sender = self.find_sender(item.topic)
        self.messages_by_sender[sender] += sign
        self.bytes_by_sender[sender] += size
        if not self.messages_by_sender[sender]:
            del self.messages_by_sender[sender], self.bytes_by_sender[sender]


def _count_payload_bytes(item: ReceivedMessage | ConnectionEvent) -> int:
    """Return the bytes of a message in the inbox; events have none."""
    return len(item.payload) if isinstance(item, ReceivedMessage) else 0


PACKET_OVERHEAD = 32  # bytes of a packet besides topic and payload, at most
MAX_IN_FLIGHT_BYTES = 1 << 20  # sent but not acknowledged; a ping may have to wait behind them
MAX_WAITING_BYTES = 1 << 26  # a window of chunks for each of thirty boards
MIN_COST = 4096  # bytes that the smallest packet counts for, to bound the number of packets


@dataclass(frozen=True)
class OutgoingPacket:
    """A message to publish."""

    topic: str
    payload: bytes
    retain: bool = False

    @property
    def size(self) -> int:
        """The size of the MQTT packet in bytes, at most."""
        return PACKET_OVERHEAD + len(self.topic.encode()) + len(self.payload)


class Outbox:
    """A transport's outgoing packets in order: first waiting, then in flight until acknowledged.

    The owner's thread calls ``put``, and the network thread all other methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[OutgoingPacket, None] = {}  # an ordered set
        self._in_flight: dict[int, OutgoingPacket] = {}
        self._waiting_bytes = 0
        self._in_flight_bytes = 0

    def put(self, packet: OutgoingPacket, always: bool = False) -> bool:
        """Queue a packet if there is room; an empty outbox always has room.

        A chunk that is requested again while it still waits is sent once.
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
        """Record that a packet was sent under this number."""
        self._in_flight[number] = packet
        self._in_flight_bytes += _compute_cost(packet)

    def record_acknowledged(self, number: int) -> OutgoingPacket | None:
        """Remove and return the packet in flight with this number; None if there is none."""
        packet = self._in_flight.pop(number, None)
        if packet:
            self._in_flight_bytes -= _compute_cost(packet)
        return packet

    @property
    def in_flight(self) -> int:
        """The number of packets that were sent and not acknowledged."""
        return len(self._in_flight)

    @property
    def empty(self) -> bool:
        """Whether all packets were sent and acknowledged."""
        return not self._waiting and not self._in_flight


def _compute_cost(packet: OutgoingPacket) -> int:
    """Return the number of bytes that a packet counts for in the outbox."""
    return max(packet.size, MIN_COST)
