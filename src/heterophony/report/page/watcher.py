"""One thread that looks at a board for everybody who follows it, and tells them what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from threading import Condition, Thread
from time import monotonic

from .views import Board, View

EVERY = 0.5  # seconds between two looks
RESTING = 5  # times as long as a look took: runs need the processor more than we do
HEARTBEAT = 15.0  # seconds without news after which a stream says that it is alive


class Watch:
    """Looks only at what somebody follows, and speaks only of what changed."""

    def __init__(self, board: Board, limit: int) -> None:
        self.board, self.limit = board, limit
        self.followed: Counter[str] = Counter()
        self.messages: dict[str, tuple[bytes, ...]] = {}  # in parts
        self.news = Condition()
        self.over = False
        Thread(target=self._work, name="watch", daemon=True).start()

    def follow(self, name: str, first: View) -> Iterator[bytes] | None:
        """Messages as they come, the present one first; None if too many follow already."""
        with self.news:
            if self.followed.total() >= self.limit:
                return None
            self.followed[name] += 1
            self.messages[name] = first.parts
            self.news.notify_all()
        return self._messages(name)

    def leave(self, name: str) -> None:
        """One who followed is gone."""
        with self.news:
            self.followed[name] -= 1
            if not self.followed[name]:
                del self.followed[name]
            self.news.notify_all()

    def close(self) -> None:
        """The end, for all who follow."""
        with self.news:
            self.over = True
            self.news.notify_all()

    def _messages(self, name: str) -> Iterator[bytes]:
        seen: tuple[bytes, ...] = ()
        while not self.over:
            with self.news:
                self._until_new(name, seen)
                before, seen = seen, self.messages[name]
            yield b"".join(part for part in seen if part not in before) or b": alive\n\n"

    def _until_new(self, name: str, seen: tuple[bytes, ...]) -> bool:
        return self.news.wait_for(lambda: self.over or self.messages[name] != seen, HEARTBEAT)

    def _work(self) -> None:
        while not self.over:
            with self.news:
                self.news.wait_for(lambda: self.over or self.followed)
                names = list(self.followed)
            began = monotonic()
            for name in names:
                if view := self.board.look(name):
                    with self.news:
                        self.messages[name] = view.parts
                        self.news.notify_all()
            rest = max(EVERY, RESTING * (monotonic() - began))
            with self.news:
                self.news.wait_for(lambda: self.over, rest)
