"""Content-addressed bytes in checksummed chunks: order, repetition and damage do no harm.

A chunk is ``HETC``, the sha256 of the whole, its index, a crc32 of all the rest, and the data.
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
CHUNK_BYTES = 128 << 10  # small enough for a slow link's keep-alive, large enough to be cheap


@dataclass(frozen=True)
class Chunk:
    """A piece of a blob, undamaged as it travelled; whether it is right, the whole will tell."""

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
    (told,) = CHECKSUM.unpack(payload[HEADER.size : start])
    if told != zlib.crc32(data, zlib.crc32(head)):
        raise CodecError("a chunk was damaged on its way")
    _, sha256, index = HEADER.unpack(head)
    return Chunk(sha256.hex(), index, data)


def count_chunks(blob: BlobRef) -> int:
    """How many chunks it has."""
    return -(-blob.size // CHUNK_BYTES)


class OutgoingBlob:
    """A blob that can be asked for; ``read(offset, size)`` gives its bytes, from wherever."""

    def __init__(self, blob: BlobRef, read: Callable[[int, int], bytes]) -> None:
        self.blob, self.read_range = blob, read

    @staticmethod
    def from_bytes(content: bytes) -> OutgoingBlob:
        return OutgoingBlob(
            BlobRef.from_bytes(content), lambda offset, size: content[offset : offset + size]
        )

    def encode_wanted_chunks(self, want: Want) -> list[bytes]:
        """The chunks that are wanted, as they travel."""
        if max(want.chunks) >= count_chunks(self.blob):
            raise CodecError(
                f"chunk {max(want.chunks)} of a blob that has {count_chunks(self.blob)}"
            )
        return [
            encode_chunk(Chunk(want.sha256, i, self.read_range(i * CHUNK_BYTES, CHUNK_BYTES)))
            for i in set(want.chunks)
        ]


class IncomingBlob:
    """A blob on its way here. Memory is spent only on chunks that were asked for and came."""

    def __init__(self, blob: BlobRef, limit: int) -> None:
        if blob.size > limit:
            raise CodecError(f"{blob.size} bytes are over the limit of {limit}")
        self.blob, self.digest_failures = blob, 0  # how often the whole was not what its name says
        self.reset()

    def reset(self) -> None:
        self.received, self.outstanding, self.next_index = dict[int, bytes](), set[int](), 0

    def request_next(self) -> tuple[int, ...]:
        """What to ask for now, besides what is on its way; nothing before half has come."""
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
        """What was asked for and has not come."""
        return tuple(sorted(self.outstanding))

    def add_chunk(self, chunk: Chunk) -> bool:
        """Is it a piece that was missing? Repeated and foreign ones are not."""
        if chunk.sha256 != self.blob.sha256 or chunk.index not in self.outstanding:
            return False
        if len(chunk.data) != min(CHUNK_BYTES, self.blob.size - chunk.index * CHUNK_BYTES):
            raise CodecError(f"chunk {chunk.index} has {len(chunk.data)} bytes, not as many as due")
        self.outstanding.remove(chunk.index)
        self.received[chunk.index] = chunk.data
        return True

    def assemble(self) -> bytes | None:
        """The whole, once it is; if it is not what its name says, all begins anew."""
        if len(self.received) < count_chunks(self.blob):
            return None
        whole = b"".join(self.received[i] for i in range(count_chunks(self.blob)))
        if hashlib.sha256(whole).hexdigest() == self.blob.sha256:
            return whole
        self.digest_failures += 1
        self.reset()
        return None
