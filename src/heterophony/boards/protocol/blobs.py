"""Blobs, which are bytes named by their content: send and pull them in chunks, repeat requests."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...core.errors import CodecError
from ...core.files import make_folder, translate_disk_errors, write_atomically
from . import messages
from .messages import MAX_WANTED_CHUNKS, BlobRef, Done, Want

MAX_BLOB_BYTES = 1 << 30  # of the tensors of one job, or of a checkpoint
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds


class ResendTimer:
    """Decides when to repeat an unanswered message; each wait is twice the last, and the caller passes the time."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        """Start again with the shortest wait, because the other side has answered."""
        self.wait_seconds = FIRST_WAIT
        self.due_at = now + self.wait_seconds

    def advance_if_due(self, now: float) -> bool:
        """Return True if it is time to repeat the message; if so, double the next wait."""
        if now < self.due_at:
            return False
        self.wait_seconds = min(2 * self.wait_seconds, LONGEST_WAIT)
        self.due_at = now + self.wait_seconds
        return True


MAGIC = b"HETC"
HEADER = struct.Struct(">4s32sI")
CHECKSUM = struct.Struct(">I")
# short enough for the keep-alive of a slow network, long enough to be cheap
CHUNK_BYTES = 128 << 10


@dataclass(frozen=True)
class Chunk:
    """A part of a blob. Its checksum was verified; the blob's sha256 is checked at the end."""

    sha256: str
    index: int
    data: bytes


def encode_chunk(chunk: Chunk) -> bytes:
    """Encode a part of a blob, with its checksum."""
    head = HEADER.pack(MAGIC, bytes.fromhex(chunk.sha256), chunk.index)
    return b"".join([head, CHECKSUM.pack(zlib.crc32(chunk.data, zlib.crc32(head))), chunk.data])


def decode_chunk(payload: bytes) -> Chunk:
    """Decode a part of a blob; raise CodecError if it is damaged or too long."""
    start = HEADER.size + CHECKSUM.size
    if not start < len(payload) <= start + CHUNK_BYTES or payload[:4] != MAGIC:
        raise CodecError("a chunk is not from heterophony, or is empty or too long")
    head, data = payload[: HEADER.size], payload[start:]
    (checksum,) = CHECKSUM.unpack(payload[HEADER.size : start])
    if checksum != zlib.crc32(data, zlib.crc32(head)):
        raise CodecError("a chunk was damaged in transit")
    _, sha256, index = HEADER.unpack(head)
    return Chunk(sha256.hex(), index, data)


def count_chunks(blob: BlobRef) -> int:
    """Return the number of chunks of a blob."""
    return -(-blob.size // CHUNK_BYTES)


class OutgoingBlob:
    """A blob to send in chunks; ``read_range(offset, size)`` returns a part of its bytes."""

    def __init__(self, blob: BlobRef, read_range: Callable[[int, int], bytes]) -> None:
        self.blob, self.read_range = blob, read_range

    @staticmethod
    def from_bytes(content: bytes) -> OutgoingBlob:
        """Return a blob to send whose bytes are in memory."""
        return OutgoingBlob(
            BlobRef.from_bytes(content), lambda offset, size: content[offset : offset + size]
        )

    def encode_wanted_chunks(self, want: Want) -> list[bytes]:
        """Return the requested chunks of the blob, encoded."""
        if max(want.chunks) >= count_chunks(self.blob):
            raise CodecError(
                f"chunk {max(want.chunks)} was requested, but the blob has {count_chunks(self.blob)}"
            )
        return [
            encode_chunk(Chunk(want.sha256, i, self.read_range(i * CHUNK_BYTES, CHUNK_BYTES)))
            for i in set(want.chunks)
        ]


class IncomingBlob:
    """A blob to receive in chunks, with a timer that repeats requests for missing chunks.

    Only the chunks that have arrived take up memory.
    """

    def __init__(self, blob: BlobRef, max_bytes: int, now: float) -> None:
        if blob.size > max_bytes:
            raise CodecError(f"{blob.size} bytes are over the limit of {max_bytes}")
        self.blob, self.digest_failures = blob, 0
        self.resend_timer = ResendTimer(now)
        self.reset()

    def reset(self) -> None:
        """Delete all received chunks, so that the blob is requested again from its start."""
        self.received, self.outstanding, self.next_index = dict[int, bytes](), set[int](), 0

    def request_next(self) -> list[Want]:
        """Return the request for further chunks; none while more than half a window is outstanding."""
        if len(self.outstanding) > MAX_WANTED_CHUNKS // 2:
            return []
        end = min(
            count_chunks(self.blob), self.next_index + MAX_WANTED_CHUNKS - len(self.outstanding)
        )
        new = range(self.next_index, end)
        self.outstanding.update(new)
        self.next_index = end
        return [Want(self.blob.sha256, tuple(new))] if new else []

    def repeat_request(self) -> list[Want]:
        """Return the request for all outstanding chunks again; none if there are no such chunks."""
        outstanding = tuple(sorted(self.outstanding))
        return [Want(self.blob.sha256, outstanding)] if outstanding else []

    def repeat_overdue_request(self, now: float) -> list[Want]:
        """Return the request for outstanding chunks again if no chunk has arrived for too long."""
        return self.repeat_request() if self.resend_timer.advance_if_due(now) else []

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Add a chunk of the blob; return False if it was not missing or belongs to another blob."""
        if chunk.sha256 != self.blob.sha256 or chunk.index not in self.outstanding:
            return False
        if len(chunk.data) != min(CHUNK_BYTES, self.blob.size - chunk.index * CHUNK_BYTES):
            raise CodecError(f"chunk {chunk.index} has the wrong size: {len(chunk.data)} bytes")
        self.outstanding.remove(chunk.index)
        self.received[chunk.index] = chunk.data
        self.resend_timer.reset(now)
        return True

    def assemble(self) -> bytes | None:
        """Return the bytes of the complete blob; None if chunks are missing, or after a wrong sha256."""
        if len(self.received) < count_chunks(self.blob):
            return None
        whole = b"".join(self.received[i] for i in range(count_chunks(self.blob)))
        if hashlib.sha256(whole).hexdigest() == self.blob.sha256:
            return whole
        self.digest_failures += 1
        self.reset()
        return None


MAX_SPARE_BLOBS = 3  # kept although no job needs them now, because later jobs often do


class BlobCache:
    """A board's received blobs by their sha256, and the transfer in progress."""

    def __init__(self, max_blob_bytes: int) -> None:
        self.max_blob_bytes, self.blobs = max_blob_bytes, dict[str, bytes]()
        self.current_transfer: IncomingBlob | None = None

    def has_all(self, *blobs: BlobRef) -> bool:
        """Return True if all these blobs have arrived."""
        return all(b.sha256 in self.blobs for b in blobs)

    def request_missing(self, needed: Iterable[BlobRef], now: float) -> list[Want]:
        """Return the request for chunks of the first missing blob; delete blobs that are not needed."""
        needed_by_sha256 = {b.sha256: b for b in needed}
        missing = [b for sha256, b in needed_by_sha256.items() if sha256 not in self.blobs]
        if self.current_transfer and self.current_transfer.blob not in missing:
            self.current_transfer = None
        if self.current_transfer is None and missing:
            self.current_transfer = IncomingBlob(missing[0], self.max_blob_bytes, now)
        spare = [sha256 for sha256 in self.blobs if sha256 not in needed_by_sha256]
        for sha256 in spare[: max(0, len(spare) - MAX_SPARE_BLOBS)]:
            del self.blobs[sha256]
        return self.current_transfer.request_next() if self.current_transfer else []

    def add_chunk(self, chunk: Chunk, now: float) -> bool:
        """Add a chunk to the current transfer; return True if it was missing."""
        if self.current_transfer is None or not self.current_transfer.add_chunk(chunk, now):
            return False
        content = self.current_transfer.assemble()
        if content is not None:
            self.blobs[chunk.sha256] = content
            self.current_transfer = None
        return True

    def repeat_request(self) -> list[Want]:
        """Return the request for the outstanding chunks of the current transfer again."""
        return self.current_transfer.repeat_request() if self.current_transfer else []

    def repeat_overdue_request(self, now: float) -> list[Want]:
        """Return the request of the current transfer again if no chunk has arrived for too long."""
        return self.current_transfer.repeat_overdue_request(now) if self.current_transfer else []

    def drop_unanswered_transfer(self) -> IncomingBlob | None:
        """Cancel and return the current transfer if no chunk of it has arrived; otherwise return None."""
        if self.current_transfer is None or self.current_transfer.received:
            return None
        unanswered, self.current_transfer = self.current_transfer, None
        return unanswered

    def keep_waiting(self, unanswered: IncomingBlob) -> None:
        """Let the current transfer continue the timer of the unanswered transfer before it."""
        if self.current_transfer is not None:
            self.current_transfer.resend_timer = unanswered.resend_timer


class GivenStore:
    """The checkpoints that runs start from, by sha256, in a folder that all runs of a board share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.verified: set[Path] = set()

    def find(self, sha256: str) -> Path | None:
        """Return the file of a checkpoint; None if this board lacks it or the file is damaged."""
        path = self.folder / f"{sha256}.safetensors"
        if path not in self.verified and path.is_file():
            with translate_disk_errors(path), open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                    self.verified.add(path)
        return path if path in self.verified else None

    def put(self, sha256: str, content: bytes) -> None:
        """Store a checkpoint in the board's folder."""
        with translate_disk_errors(self.folder):
            make_folder(self.folder)
        write_atomically(self.folder / f"{sha256}.safetensors", content)


class ReplyStore:
    """A board's finished replies on disk, kept until the server has reached a later round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.announcements: dict[str, Done] = {}
        with translate_disk_errors(folder):
            make_folder(folder)
            for path in sorted(folder.iterdir()):
                self.load_file(path)

    def load_file(self, path: Path) -> None:
        """Load a reply from an earlier start of the board; delete the file if it is damaged."""
        text, checksum, reply = [*path.read_bytes().split(b"\n", 2), b"", b""][:3]
        try:
            done = messages.decode_message(text + b"\n" + checksum, Done)
        except CodecError:
            path.unlink()
            return
        if path.name == done.id and hashlib.sha256(reply).hexdigest() == done.reply.sha256:
            self.announcements[done.id] = done
        else:
            path.unlink()

    def put(self, done: Done, reply: bytes) -> None:
        """Store a reply and its announcement on disk."""
        write_atomically(self.folder / done.id, messages.encode_message(done) + b"\n" + reply)
        self.announcements[done.id] = done

    def drop(self, id: str) -> None:
        """Delete a reply and its announcement."""
        if self.announcements.pop(id, None) is not None:
            with translate_disk_errors(self.folder):
                (self.folder / id).unlink(missing_ok=True)

    def find_reply(self, sha256: str) -> OutgoingBlob | None:
        """Return the stored reply with this sha256 as a blob to send; None if there is none."""
        for done in self.announcements.values():
            if done.reply.sha256 == sha256:
                return OutgoingBlob(done.reply, partial(self.read_range, done))
        return None

    def read_range(self, done: Done, offset: int, size: int) -> bytes:
        """Read some bytes of a stored reply."""
        path = self.folder / done.id
        with translate_disk_errors(path), open(path, "rb") as file:
            file.seek(len(messages.encode_message(done)) + 1 + offset)
            return file.read(size)
