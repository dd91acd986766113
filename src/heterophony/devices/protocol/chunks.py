"""Send blobs in checksummed chunks that may arrive in any order, repeatedly or damaged.

A chunk is ``HETC``, the sha256 of the blob, its index, a crc32 of everything else, and the data.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ...core.errors import CodecError
from .messages import MAX_WANTED_CHUNKS, BlobRef, Want

MAGIC = b"HETC"
HEADER = struct.Struct(">4s32sI")
CHECKSUM = struct.Struct(">I")
CHUNK_BYTES = (
    128 << 10
)  # short enough for the keep-alive of a slow network, long enough to be cheap


@dataclass(frozen=True)
class Chunk:
    """A part of a blob. Its checksum is right; the blob's sha256 is checked at the end."""

    sha256: str
    index: int
    data: bytes


def encode_chunk(chunk: Chunk) -> bytes:
    head = HEADER.pack(MAGIC, bytes.fromhex(chunk.sha256), chunk.index)
    return b"".join([head, CHECKSUM.pack(zlib.crc32(chunk.data, zlib.crc32(head))), chunk.data])


def decode_chunk(payload: bytes) -> Chunk:
    start = HEADER.size + CHECKSUM.size
    if not start < len(payload) <= start + CHUNK_BYTES or payload[:4] != MAGIC:
        raise CodecError("a chunk is not from heterophony, or is empty or too long")
    head, data = payload[: HEADER.size], payload[start:]
    (checksum,) = CHECKSUM.unpack(payload[HEADER.size : start])
    if checksum != zlib.crc32(data, zlib.crc32(head)):
        raise CodecError("a chunk was damaged on its way")
    _, sha256, index = HEADER.unpack(head)
    return Chunk(sha256.hex(), index, data)


def count_chunks(blob: BlobRef) -> int:
    """Return the number of chunks of a blob."""
    return -(-blob.size // CHUNK_BYTES)


class OutgoingBlob:
    """A blob to send; ``read_range(offset, size)`` returns some of its bytes."""

    def __init__(self, blob: BlobRef, read_range: Callable[[int, int], bytes]) -> None:
        self.blob, self.read_range = blob, read_range

    @staticmethod
    def from_bytes(content: bytes) -> OutgoingBlob:
        return OutgoingBlob(
            BlobRef.from_bytes(content), lambda offset, size: content[offset : offset + size]
        )

    def encode_wanted_chunks(self, want: Want) -> list[bytes]:
        """Return the encoded chunks that are wanted."""
        if max(want.chunks) >= count_chunks(self.blob):
            raise CodecError(
                f"chunk {max(want.chunks)} is wanted of a blob that has {count_chunks(self.blob)}"
            )
        return [
            encode_chunk(Chunk(want.sha256, i, self.read_range(i * CHUNK_BYTES, CHUNK_BYTES)))
            for i in set(want.chunks)
        ]


class IncomingBlob:
    """A blob to receive. Only chunks that were requested and arrived take up memory."""

    def __init__(self, blob: BlobRef, max_bytes: int) -> None:
        if blob.size > max_bytes:
            raise CodecError(f"{blob.size} bytes are over the limit of {max_bytes}")
        self.blob, self.digest_failures = blob, 0
        self.reset()

    def reset(self) -> None:
        self.received, self.outstanding, self.next_index = dict[int, bytes](), set[int](), 0

    def request_next(self) -> tuple[int, ...]:
        """Return chunks to request now; none while over half a window is outstanding."""
        if len(self.outstanding) > MAX_WANTED_CHUNKS // 2:
            return ()
        end = min(
            count_chunks(self.blob), self.next_index + MAX_WANTED_CHUNKS - len(self.outstanding)
        )
        new = range(self.next_index, end)
        self.outstanding.update(new)
        self.next_index = end
        return tuple(new)

    def list_outstanding(self) -> tuple[int, ...]:
        """Return the chunks that were requested and did not arrive yet."""
        return tuple(sorted(self.outstanding))

    def add_chunk(self, chunk: Chunk) -> bool:
        """Add a chunk; return whether it was missing. Repeated and foreign ones are not."""
        if chunk.sha256 != self.blob.sha256 or chunk.index not in self.outstanding:
            return False
        if len(chunk.data) != min(CHUNK_BYTES, self.blob.size - chunk.index * CHUNK_BYTES):
            raise CodecError(f"chunk {chunk.index} has a wrong size of {len(chunk.data)} bytes")
        self.outstanding.remove(chunk.index)
        self.received[chunk.index] = chunk.data
        return True

    def assemble(self) -> bytes | None:
        """Return the blob once it is complete; if its sha256 is wrong, start over."""
        if len(self.received) < count_chunks(self.blob):
            return None
        whole = b"".join(self.received[i] for i in range(count_chunks(self.blob)))
        if hashlib.sha256(whole).hexdigest() == self.blob.sha256:
            return whole
        self.digest_failures += 1
        self.reset()
        return None
