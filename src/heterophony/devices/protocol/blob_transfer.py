"""A blob pulled from the other side: a window of chunks, asked for again after a silence."""

from __future__ import annotations

from .backoff import Patience
from .chunks import Chunk, Incoming
from .message_fields import Blob
from .messages import Want


class Pull:
    """One blob on its way, and when to ask again. What has come is never asked for twice."""

    def __init__(self, blob: Blob, limit: int, now: float) -> None:
        self.incoming, self.patience = Incoming(blob, limit), Patience(now)

    @property
    def blob(self) -> Blob:
        return self.incoming.blob

    def ask(self) -> list[Want]:
        """What to ask for besides what is on its way, if anything."""
        return self.wants(self.incoming.ask())

    def take(self, chunk: Chunk, now: float) -> bool:
        """Was it missing?"""
        new = self.incoming.take(chunk)
        if new:
            self.patience.renew(now)
        return new

    def overdue(self, now: float) -> list[Want]:
        """After a silence, all that was asked for and has not come."""
        return self.again() if self.patience.over(now) else []

    def again(self) -> list[Want]:
        """All that was asked for and has not come: the other side may have forgotten."""
        return self.wants(self.incoming.missing())

    def wants(self, indices: tuple[int, ...]) -> list[Want]:
        return [Want(self.blob.sha256, indices)] if indices else []
