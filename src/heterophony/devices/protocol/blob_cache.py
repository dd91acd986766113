"""What a device has pulled and still needs: several clients that get one model get it once."""

from __future__ import annotations

from collections.abc import Iterable

from .blob_transfer import BlobTransfer
from .chunks import Chunk
from .messages import BlobRef, Want

MAX_SPARE_BLOBS = 3  # blobs kept beyond those in need: the next task often wants one of them


class BlobCache:
    """Blobs by their sha256, and the one that is on its way."""

    def __init__(self, limit: int) -> None:
        self.max_blob_bytes, self.blobs = limit, dict[str, bytes]()
        self.current_transfer: BlobTransfer | None = None

    def has_all(self, *blobs: BlobRef) -> bool:
        return all(b.sha256 in self.blobs for b in blobs)

    def request_missing(self, needed: Iterable[BlobRef], now: float) -> list[Want]:
        """Go on with the first that is missing; what nobody needs any more is let go."""
        needs = {b.sha256: b for b in needed}
        missing = [b for sha256, b in needs.items() if sha256 not in self.blobs]
        if self.current_transfer and self.current_transfer.blob not in missing:
            self.current_transfer = None
        if self.current_transfer is None and missing:
            self.current_transfer = BlobTransfer(missing[0], self.max_blob_bytes, now)
        spare = [sha256 for sha256 in self.blobs if sha256 not in needs]
        for sha256 in spare[: max(0, len(spare) - MAX_SPARE_BLOBS)]:
            del self.blobs[sha256]
        return self.current_transfer.request_next() if self.current_transfer else []

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Was it a piece of what is on its way?"""
        if self.current_transfer is None or not self.current_transfer.add_chunk(chunk, now):
            return False
        content = self.current_transfer.incoming.assemble()
        if content is not None:
            self.blobs[chunk.sha256] = content
            self.current_transfer = None
        return True

    def repeat_request(self) -> list[Want]:
        return self.current_transfer.repeat_request() if self.current_transfer else []

    def repeat_overdue_request(self, now: float) -> list[Want]:
        return self.current_transfer.repeat_overdue_request(now) if self.current_transfer else []
