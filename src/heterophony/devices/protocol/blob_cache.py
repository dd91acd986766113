"""What a device has pulled and still needs: several clients that get one model get it once."""

from __future__ import annotations

from collections.abc import Iterable

from .blob_transfer import Pull
from .chunks import Chunk
from .message_fields import Blob
from .messages import Want

SPARE = 3  # blobs kept beyond those in need: the next task often wants one of them


class Pantry:
    """Blobs by their sha256, and the one that is on its way."""

    def __init__(self, limit: int) -> None:
        self.limit, self.blobs = limit, dict[str, bytes]()
        self.pull: Pull | None = None

    def has(self, *blobs: Blob) -> bool:
        return all(b.sha256 in self.blobs for b in blobs)

    def ask(self, needed: Iterable[Blob], now: float) -> list[Want]:
        """Go on with the first that is missing; what nobody needs any more is let go."""
        needs = {b.sha256: b for b in needed}
        missing = [b for sha256, b in needs.items() if sha256 not in self.blobs]
        if self.pull and self.pull.blob not in missing:
            self.pull = None
        if self.pull is None and missing:
            self.pull = Pull(missing[0], self.limit, now)
        spare = [sha256 for sha256 in self.blobs if sha256 not in needs]
        for sha256 in spare[: max(0, len(spare) - SPARE)]:
            del self.blobs[sha256]
        return self.pull.ask() if self.pull else []

    def take(self, chunk: Chunk, now: float) -> bool:
        """Was it a piece of what is on its way?"""
        if self.pull is None or not self.pull.take(chunk, now):
            return False
        content = self.pull.incoming.content()
        if content is not None:
            self.blobs[chunk.sha256] = content
            self.pull = None
        return True

    def again(self) -> list[Want]:
        return self.pull.again() if self.pull else []

    def overdue(self, now: float) -> list[Want]:
        return self.pull.overdue(now) if self.pull else []
