"""The queue from a transport to its owner: received messages and connection events, in order."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .message_budget import MessageBudget

EVENT_SLOTS = 64
SENDER_SHARE = 4  # one sender has at most a quarter of the messages and bytes
FindSender = Callable[[str], str]  # by the topic of a message


@dataclass(frozen=True)
class ReceivedMessage:
    """One message as it arrived, unchecked."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class ConnectionEvent:
    """A change of the connection, or a message the broker refused (``denied``), in words.

    ``nudge`` only wakes the owner: there is something to do outside the inbox. ``flood`` has the name
    of a sender that sent more than it may.
    """

    kind: Literal["connected", "lost", "refused", "denied", "nudge", "flood"]
    text: str


class Inbox(queue.Queue[ReceivedMessage | ConnectionEvent]):
    """A bounded queue that never blocks the network thread.

    A message that does not fit is dropped and counted. Blocking would stop the pings and so cost the
    connection; and the protocol asks again for whatever is lost. Events have slots of their own, so
    that a flood of messages cannot hide a lost connection. With ``find_sender``, one sender has a
    limited share, so that its burst does not displace the messages of others, and a budget: once it is
    exhausted, nothing of that sender is taken any more, and one event says so.
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
        """Add the item if it fits; callable from any thread."""
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
        """Return units of its budget to a sender, for messages that it was asked for."""
        with self.mutex:
            self.budget.give_back(sender, units)

    def _is_within_budget(self, item: ReceivedMessage | ConnectionEvent, size: int) -> bool:
        """Return whether the sender of a message may send it; say so once when it may not."""
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
        """Return whether the sender of a message would have more than its share."""
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
        """Count an item that is added or taken; senders without messages are forgotten."""
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
    return len(item.payload) if isinstance(item, ReceivedMessage) else 0
