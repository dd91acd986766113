"""Pull a blob from the other side: request a window of chunks, and repeat the request if needed."""

from __future__ import annotations

from .chunks import Chunk, IncomingBlob
from .messages import BlobRef, Want
from .resend_timer import ResendTimer


class BlobTransfer:
    """One blob on its way here. Chunks that arrived are never requested again."""

    def __init__(self, blob: BlobRef, max_bytes: int, now: float) -> None:
        self.incoming, self.resend_timer = IncomingBlob(blob, max_bytes), ResendTimer(now)

    @property
    def blob(self) -> BlobRef:
        return self.incoming.blob

    def request_next(self) -> list[Want]:
        """Request chunks beyond those already requested, if the window has room."""
        return self.make_wants(self.incoming.request_next())

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Add a chunk; return whether it was missing."""
        was_missing = self.incoming.add_chunk(chunk)
        if was_missing:
            self.resend_timer.reset(now)
        return was_missing

    def repeat_overdue_request(self, now: float) -> list[Want]:
        """Repeat the request for outstanding chunks if none arrived for a while."""
        return self.repeat_request() if self.resend_timer.advance_if_due(now) else []

    def repeat_request(self) -> list[Want]:
        """Request all outstanding chunks again: the other side may have forgotten them."""
        return self.make_wants(self.incoming.list_outstanding())

    def make_wants(self, indices: tuple[int, ...]) -> list[Want]:
        return [Want(self.blob.sha256, indices)] if indices else []
