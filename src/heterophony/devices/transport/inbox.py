"""What a link hands to its owner, in order: messages, and what became of the connection."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Literal

EVENT_SLOTS = 64


@dataclass(frozen=True)
class ReceivedMessage:
    """One message as it came; nothing of it has been looked at."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class ConnectionEvent:
    """What became of the connection, or of one message (``denied``); the words are for people.

    ``nudge`` says only that the owner has something to look at besides.
    """

    kind: Literal["connected", "lost", "refused", "denied", "nudge"]
    text: str


class Inbox(queue.Queue[ReceivedMessage | ConnectionEvent]):
    """A queue that never blocks the network and never grows beyond its bounds.

    A message that finds it full is dropped and counted: blocking would stop the pings, and so cost
    the connection. The broker is a lossy pipe in any case: whoever misses something asks again.
    Events have places of their own, so that a flood of messages does not hide a lost connection.
    """

    def __init__(self, messages: int, memory: int) -> None:
        super().__init__(messages + EVENT_SLOTS)
        self.max_messages = messages
        self.max_bytes = memory
        self.held_bytes = 0
        self.dropped = 0

    def offer(self, item: ReceivedMessage | ConnectionEvent) -> None:
        """Take the item if there is room; any thread may offer."""
        with self.mutex:
            size = _payload_bytes(item)
            limit = self.max_messages if isinstance(item, ReceivedMessage) else self.maxsize
            if self._qsize() >= limit or self.held_bytes + size > self.max_bytes:
                self.dropped += 1
                return
            self._put(item)
            self.not_empty.notify()

    def _put(self, item: ReceivedMessage | ConnectionEvent) -> None:
        super()._put(item)
        self.held_bytes += _payload_bytes(item)

    def _get(self) -> ReceivedMessage | ConnectionEvent:
        item = super()._get()
        self.held_bytes -= _payload_bytes(item)
        return item


def _payload_bytes(item: ReceivedMessage | ConnectionEvent) -> int:
    return len(item.payload) if isinstance(item, ReceivedMessage) else 0
