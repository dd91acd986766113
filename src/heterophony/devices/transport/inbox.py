"""The queue from a transport to its owner: received messages and connection events, in order."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Literal

EVENT_SLOTS = 64


@dataclass(frozen=True)
class ReceivedMessage:
    """One message as it arrived, unchecked."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class ConnectionEvent:
    """A change of the connection, or a message the broker refused (``denied``), in words.

    ``nudge`` only wakes the owner: there is something to do outside the inbox.
    """

    kind: Literal["connected", "lost", "refused", "denied", "nudge"]
    text: str


class Inbox(queue.Queue[ReceivedMessage | ConnectionEvent]):
    """A bounded queue that never blocks the network thread.

    A message that does not fit is dropped and counted. Blocking would stop the pings and so cost the
    connection; and the protocol asks again for whatever is lost. Events have slots of their own, so
    that a flood of messages cannot hide a lost connection.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        super().__init__(max_messages + EVENT_SLOTS)
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.dropped = 0

    def offer(self, item: ReceivedMessage | ConnectionEvent) -> None:
        """Add the item if it fits; callable from any thread."""
        with self.mutex:
            size = _count_payload_bytes(item)
            limit = self.max_messages if isinstance(item, ReceivedMessage) else self.maxsize
            if self._qsize() >= limit or self.held_bytes + size > self.max_bytes:
                self.dropped += 1
                return
            self._put(item)
            self.not_empty.notify()

    def _put(self, item: ReceivedMessage | ConnectionEvent) -> None:
        super()._put(item)
        self.held_bytes += _count_payload_bytes(item)

    def _get(self) -> ReceivedMessage | ConnectionEvent:
        item = super()._get()
        self.held_bytes -= _count_payload_bytes(item)
        return item


def _count_payload_bytes(item: ReceivedMessage | ConnectionEvent) -> int:
    return len(item.payload) if isinstance(item, ReceivedMessage) else 0
