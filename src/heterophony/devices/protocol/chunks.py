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
from .message_fields import Blob
from .messages import WINDOW, Want

MAGIC = b"HETC"
HEAD = struct.Struct(">4s32sI")
CRC = struct.Struct(">I")
CHUNK = 128 << 10  # small enough for a slow link's keep-alive, large enough to be cheap


@dataclass(frozen=True)
class Chunk:
    """A piece of a blob, undamaged as it travelled; whether it is right, the whole will tell."""

    sha256: str
    index: int
    data: bytes


def encode(chunk: Chunk) -> bytes:
    head = HEAD.pack(MAGIC, bytes.fromhex(chunk.sha256), chunk.index)
    return b"".join([head, CRC.pack(zlib.crc32(chunk.data, zlib.crc32(head))), chunk.data])


def decode(payload: bytes) -> Chunk:
    start = HEAD.size + CRC.size
    if not start < len(payload) <= start + CHUNK or payload[:4] != MAGIC:
        raise CodecError("a chunk is not from heterophony, or is empty or too long")
    head, data = payload[: HEAD.size], payload[start:]
    (told,) = CRC.unpack(payload[HEAD.size : start])
    if told != zlib.crc32(data, zlib.crc32(head)):
        raise CodecError("a chunk was damaged on its way")
    _, sha256, index = HEAD.unpack(head)
    return Chunk(sha256.hex(), index, data)


def count(blob: Blob) -> int:
    """How many chunks it has."""
    return -(-blob.size // CHUNK)


class Outgoing:
    """A blob that can be asked for; ``read(offset, size)`` gives its bytes, from wherever."""

    def __init__(self, blob: Blob, read: Callable[[int, int], bytes]) -> None:
        self.blob, self.read = blob, read

    @staticmethod
    def of(content: bytes) -> Outgoing:
        return Outgoing(Blob.of(content), lambda offset, size: content[offset : offset + size])

    def answer(self, want: Want) -> list[bytes]:
        """The chunks that are wanted, as they travel."""
        if max(want.chunks) >= count(self.blob):
            raise CodecError(f"chunk {max(want.chunks)} of a blob that has {count(self.blob)}")
        return [
            encode(Chunk(want.sha256, i, self.read(i * CHUNK, CHUNK))) for i in set(want.chunks)
        ]


class Incoming:
    """A blob on its way here. Memory is spent only on chunks that were asked for and came."""

    def __init__(self, blob: Blob, limit: int) -> None:
        if blob.size > limit:
            raise CodecError(f"{blob.size} bytes are over the limit of {limit}")
        self.blob, self.spoiled = blob, 0  # how often the whole was not what its name says
        self.begin()

    def begin(self) -> None:
        self.have, self.asked, self.fresh = dict[int, bytes](), set[int](), 0

    def ask(self) -> tuple[int, ...]:
        """What to ask for now, besides what is on its way; nothing before half has come."""
        if len(self.asked) > WINDOW // 2:
            return ()
        end = min(count(self.blob), self.fresh + WINDOW - len(self.asked))
        new = range(self.fresh, end)
        self.asked.update(new)
        self.fresh = end
        return tuple(new)

    def missing(self) -> tuple[int, ...]:
        """What was asked for and has not come."""
        return tuple(sorted(self.asked))

    def take(self, chunk: Chunk) -> bool:
        """Is it a piece that was missing? Repeated and foreign ones are not."""
        if chunk.sha256 != self.blob.sha256 or chunk.index not in self.asked:
            return False
        if len(chunk.data) != min(CHUNK, self.blob.size - chunk.index * CHUNK):
            raise CodecError(f"chunk {chunk.index} has {len(chunk.data)} bytes, not as many as due")
        self.asked.remove(chunk.index)
        self.have[chunk.index] = chunk.data
        return True

    def content(self) -> bytes | None:
        """The whole, once it is; if it is not what its name says, all begins anew."""
        if len(self.have) < count(self.blob):
            return None
        whole = b"".join(self.have[i] for i in range(count(self.blob)))
        if hashlib.sha256(whole).hexdigest() == self.blob.sha256:
            return whole
        self.spoiled += 1
        self.begin()
        return None
