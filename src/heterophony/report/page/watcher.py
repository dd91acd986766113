"""One thread that polls the folder for all open pages and sends them what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Condition, Thread
from time import monotonic

from .views import View, ViewLoader

POLL_SECONDS = 0.5  # between two reads of the folder
REST_FACTOR = 5  # pause at least this many times as long as a read took: runs need the processor
HEARTBEAT_SECONDS = 15.0  # without a change, after which a stream sends a sign of life


class ViewWatcher:
    """Polls only views that a page subscribed to, and sends only the parts that changed."""

    def __init__(self, view_loader: ViewLoader, limit: int) -> None:
        self.view_loader, self.limit = view_loader, limit
        self.subscribers: Counter[tuple[str, ...]] = Counter()
        self.messages: dict[
            tuple[str, ...], tuple[bytes, ...]
        ] = {}  # the parts of each view's message
        self.changed = Condition()
        self.closed = False
        Thread(target=self._poll, name="watch", daemon=True).start()

    def subscribe(self, names: tuple[str, ...], first: View) -> Iterator[bytes] | None:
        """Stream messages, the current one first; None if there are too many subscribers."""
        with self.changed:
            if self.subscribers.total() >= self.limit:
                return None
            self.subscribers[names] += 1
            self.messages[names] = first.message_parts
            self.changed.notify_all()
        return self._stream_messages(names)

    def unsubscribe(self, names: tuple[str, ...]) -> None:
        """Remove one subscriber."""
        with self.changed:
            self.subscribers[names] -= 1
            if not self.subscribers[names]:
                del self.subscribers[names]
            self.changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _stream_messages(self, names: tuple[str, ...]) -> Iterator[bytes]:
        sent: tuple[bytes, ...] = ()
        while not self.closed:
            with self.changed:
                self._wait_for_change(names, sent)
                before, sent = sent, self.messages[names]
            yield b"".join(part for part in sent if part not in before) or b": alive\n\n"

    def _wait_for_change(self, names: tuple[str, ...], sent: tuple[bytes, ...]) -> bool:
        return self.changed.wait_for(
            lambda: self.closed or self.messages[names] != sent, HEARTBEAT_SECONDS
        )

    def _poll(self) -> None:
        while not self.closed:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.subscribers)
                views = list(self.subscribers)
            started = monotonic()
            for names in views:
                if view := self.view_loader.load_view(*names):
                    with self.changed:
                        self.messages[names] = view.message_parts
                        self.changed.notify_all()
            rest = max(POLL_SECONDS, REST_FACTOR * (monotonic() - started))
            with self.changed:
                self.changed.wait_for(lambda: self.closed, rest)
