"""What a link hands to its owner, in order: messages, and what became of the connection."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Literal

KEPT_FOR_EVENTS = 64


@dataclass(frozen=True)
class Message:
    """One message as it came; nothing of it has been looked at."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Event:
    """What became of the connection, or of one message (``denied``); the words are for people.

    ``nudge`` says only that the owner has something to look at besides.
    """

    kind: Literal["connected", "lost", "refused", "denied", "nudge"]
    words: str


class Inbox(queue.Queue[Message | Event]):
    """A queue that never blocks the network and never grows beyond its bounds.

    A message that finds it full is dropped and counted: blocking would stop the pings, and so cost
    the connection. The broker is a lossy pipe in any case: whoever misses something asks again.
    Events have places of their own, so that a flood of messages does not hide a lost connection.
    """

    def __init__(self, messages: int, memory: int) -> None:
        super().__init__(messages + KEPT_FOR_EVENTS)
        self.messages = messages
        self.memory = memory
        self.held = 0
        self.dropped = 0

    def offer(self, item: Message | Event) -> None:
        """Take the item if there is room; any thread may offer."""
        with self.mutex:
            size = _size(item)
            limit = self.messages if isinstance(item, Message) else self.maxsize
            if self._qsize() >= limit or self.held + size > self.memory:
                self.dropped += 1
                return
            self._put(item)
            self.not_empty.notify()

    def _put(self, item: Message | Event) -> None:
        super()._put(item)
        self.held += _size(item)

    def _get(self) -> Message | Event:
        item = super()._get()
        self.held -= _size(item)
        return item


def _size(item: Message | Event) -> int:
    return len(item.payload) if isinstance(item, Message) else 0
