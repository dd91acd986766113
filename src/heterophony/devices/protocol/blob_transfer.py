"""A blob pulled from the other side: a window of chunks, asked for again after a silence."""

from __future__ import annotations

from .chunks import Chunk, IncomingBlob
from .messages import BlobRef, Want
from .resend_timer import ResendTimer


class BlobTransfer:
    """One blob on its way, and when to ask again. What has come is never asked for twice."""

    def __init__(self, blob: BlobRef, limit: int, now: float) -> None:
        self.incoming, self.resend_timer = IncomingBlob(blob, limit), ResendTimer(now)

    @property
    def blob(self) -> BlobRef:
        return self.incoming.blob

    def request_next(self) -> list[Want]:
        """What to ask for besides what is on its way, if anything."""
        return self.make_wants(self.incoming.request_next())

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Was it missing?"""
        new = self.incoming.add_chunk(chunk)
        if new:
            self.resend_timer.reset(now)
        return new

    def repeat_overdue_request(self, now: float) -> list[Want]:
        """After a silence, all that was asked for and has not come."""
        return self.repeat_request() if self.resend_timer.advance_if_due(now) else []

    def repeat_request(self) -> list[Want]:
        """All that was asked for and has not come: the other side may have forgotten."""
        return self.make_wants(self.incoming.list_outstanding())

    def make_wants(self, indices: tuple[int, ...]) -> list[Want]:
        return [Want(self.blob.sha256, indices)] if indices else []
