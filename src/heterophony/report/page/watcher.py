"""One thread that looks at a board for everybody who follows it, and tells them what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Condition, Thread
from time import monotonic

from .views import View, ViewLoader

POLL_SECONDS = 0.5  # seconds between two looks
REST_FACTOR = 5  # times as long as a look took: runs need the processor more than we do
HEARTBEAT_SECONDS = 15.0  # seconds without news after which a stream says that it is alive


class ViewWatcher:
    """Looks only at what somebody follows, and speaks only of what changed."""

    def __init__(self, board: ViewLoader, limit: int) -> None:
        self.view_loader, self.limit = board, limit
        self.subscribers: Counter[str] = Counter()
        self.messages: dict[str, tuple[bytes, ...]] = {}  # in parts
        self.changed = Condition()
        self.closed = False
        Thread(target=self._poll, name="watch", daemon=True).start()

    def subscribe(self, name: str, first: View) -> Iterator[bytes] | None:
        """Messages as they come, the present one first; None if too many follow already."""
        with self.changed:
            if self.subscribers.total() >= self.limit:
                return None
            self.subscribers[name] += 1
            self.messages[name] = first.message_parts
            self.changed.notify_all()
        return self._stream_messages(name)

    def unsubscribe(self, name: str) -> None:
        """One who followed is gone."""
        with self.changed:
            self.subscribers[name] -= 1
            if not self.subscribers[name]:
                del self.subscribers[name]
            self.changed.notify_all()

    def close(self) -> None:
        """The end, for all who follow."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _stream_messages(self, name: str) -> Iterator[bytes]:
        seen: tuple[bytes, ...] = ()
        while not self.closed:
            with self.changed:
                self._wait_for_change(name, seen)
                before, seen = seen, self.messages[name]
            yield b"".join(part for part in seen if part not in before) or b": alive\n\n"

    def _wait_for_change(self, name: str, seen: tuple[bytes, ...]) -> bool:
        return self.changed.wait_for(
            lambda: self.closed or self.messages[name] != seen, HEARTBEAT_SECONDS
        )

    def _poll(self) -> None:
        while not self.closed:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.subscribers)
                names = list(self.subscribers)
            began = monotonic()
            for name in names:
                if view := self.view_loader.load_view(name):
                    with self.changed:
                        self.messages[name] = view.message_parts
                        self.changed.notify_all()
            rest = max(POLL_SECONDS, REST_FACTOR * (monotonic() - began))
            with self.changed:
                self.changed.wait_for(lambda: self.closed, rest)
