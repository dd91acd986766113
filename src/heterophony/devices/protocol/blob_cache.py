"""The blobs that a device has pulled: a model that several clients need is pulled once."""

from __future__ import annotations

from collections.abc import Iterable

from .blob_transfer import BlobTransfer
from .chunks import Chunk
from .messages import BlobRef, Want

MAX_SPARE_BLOBS = 3  # kept though no task needs them: the next task often needs one of them


class BlobCache:
    """Blobs by their sha256, and the one transfer that is under way."""

    def __init__(self, max_blob_bytes: int) -> None:
        self.max_blob_bytes, self.blobs = max_blob_bytes, dict[str, bytes]()
        self.current_transfer: BlobTransfer | None = None

    def has_all(self, *blobs: BlobRef) -> bool:
        return all(b.sha256 in self.blobs for b in blobs)

    def request_missing(self, needed: Iterable[BlobRef], now: float) -> list[Want]:
        """Request chunks of the first missing blob, and delete blobs that are not needed."""
        needed_by_sha256 = {b.sha256: b for b in needed}
        missing = [b for sha256, b in needed_by_sha256.items() if sha256 not in self.blobs]
        if self.current_transfer and self.current_transfer.blob not in missing:
            self.current_transfer = None
        if self.current_transfer is None and missing:
            self.current_transfer = BlobTransfer(missing[0], self.max_blob_bytes, now)
        spare = [sha256 for sha256 in self.blobs if sha256 not in needed_by_sha256]
        for sha256 in spare[: max(0, len(spare) - MAX_SPARE_BLOBS)]:
            del self.blobs[sha256]
        return self.current_transfer.request_next() if self.current_transfer else []

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Add a chunk; return whether the current transfer was missing it."""
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
