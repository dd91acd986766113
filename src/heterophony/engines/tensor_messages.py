"""Tensors between a pool's driver and its workers: small ones in the message, large ones in a file.

All processes are of one machine, and the files are deleted before they reach its disk.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from ..core.codec import decode_groups, encode_groups
from ..core.files import translate_disk_errors, write_atomically
from ..core.tensors import Memory, Tensors

INLINE_BYTES = 1 << 16  # a file takes longer than to send so much


@dataclass(frozen=True)
class TensorMessage:
    """Encoded groups of tensors, or the path of a file that holds them. Equal keys, equal tensors."""

    key: int
    content: bytes | str

    def decode(self, delete: bool = False) -> dict[str, Tensors]:
        """Decode the groups; ``delete`` the file, if there is one."""
        if isinstance(self.content, bytes):
            return decode_groups(self.content, finite=False)[0]
        path = Path(self.content)
        with translate_disk_errors(path):
            blob = path.read_bytes()
            if delete:
                path.unlink()
        return decode_groups(blob, finite=False)[0]


def encode_message(groups: Memory, key: int, path: Path) -> TensorMessage | None:
    """Encode groups of tensors, in a file at ``path`` if they are large; None if all are empty."""
    if not any(groups.values()):
        return None
    blob = encode_groups(groups)
    if len(blob) <= INLINE_BYTES:
        return TensorMessage(key, blob)
    write_atomically(path, blob, durable=False)
    return TensorMessage(key, str(path))


class SentTensors:
    """Encodes what the driver sends; tensors that many jobs of a round share are encoded once."""

    def __init__(self, folder: Path, size: int = 8) -> None:
        self.folder, self.size, self.number = folder, size, 0
        # by the id of the tensors; keeping the tensors keeps the id from being used again
        self.known = OrderedDict[int, tuple[Tensors, TensorMessage | None]]()
        self.files = list[Path]()

    def encode(self, tensors: Tensors) -> TensorMessage | None:
        if id(tensors) not in self.known:
            self.number += 1
            path = self.folder / f"{self.number}"
            message = encode_message({"down": tensors}, self.number, path)
            if message is not None and isinstance(message.content, str):
                self.files.append(path)
            self.known[id(tensors)] = tensors, message
            while len(self.known) > self.size:
                self.known.popitem(last=False)
        self.known.move_to_end(id(tensors))
        return self.known[id(tensors)][1]

    def clear(self) -> None:
        """Forget all tensors, and delete their files, which no job needs any more."""
        for path in self.files:
            path.unlink(missing_ok=True)
        self.files.clear()
        self.known.clear()


class TensorCache:
    """What a worker received last, decoded: many jobs of a round share it."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.known = size, OrderedDict[int, Tensors]()

    def decode(self, message: TensorMessage | None) -> Tensors:
        if message is None:
            return Tensors()
        if message.key not in self.known:
            self.known[message.key] = message.decode()["down"]
            while len(self.known) > self.size:
                self.known.popitem(last=False)
        self.known.move_to_end(message.key)
        return self.known[message.key]
