"""What a commit rests on: the sha256 of the settings, of the events and of every client's memory."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

import torch

from ..core.algorithm import Reply
from ..core.codec import BLOB_LIMIT
from ..core.errors import CodecError, FolderError, simplify_name
from ..core.files import open_regular_file, read_regular_file
from ..core.tensors import Tensors
from ..jobs.client_store import FolderClientStore

CHUNK_BYTES = 1 << 20
MemoryDigests = dict[str, tuple[int, str]]  # by client: the round of its newest memory, its sha256


class GrowingDigest:
    """The sha256 of a file that grows, computed as it grows: a run commits after every round."""

    def __init__(self) -> None:
        self.size, self._sha256 = 0, hashlib.sha256()

    def update(self, content: bytes) -> None:
        """Add what was appended to the file."""
        self.size += len(content)
        self._sha256.update(content)

    def get(self) -> str:
        return self._sha256.hexdigest()


def digest_beginning(path: Path, size: int) -> GrowingDigest:
    """Compute the digest of the first ``size`` bytes of a file."""
    digest = GrowingDigest()
    if not size:
        return digest  # there may be no file yet
    with open_regular_file(path) as file:
        while chunk := file.read(min(CHUNK_BYTES, size - digest.size)):
            digest.update(chunk)
    return digest


def digest_settings(text: str) -> str:
    """Compute the digest of a configuration; its section [engine] and its layout do not count."""
    try:
        settings = {k: v for k, v in tomllib.loads(text).items() if k != "engine"}
    except tomllib.TOMLDecodeError:
        return hashlib.sha256(text.encode()).hexdigest()
    if isinstance(algorithm := settings.get("algorithm"), dict) and "name" in algorithm:
        algorithm["name"] = simplify_name(str(algorithm["name"]))  # may be spelt differently
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


# Memories ---------------------------------------------------------------------------------------


def record_memories(digests: MemoryDigests, t: int, replies: Iterable[Reply]) -> None:
    """Record the memories that clients stored in round ``t``; some keep nothing any more."""
    for reply in replies:
        digests.pop(reply.client, None)
        if reply.kept:
            digests[reply.client] = (t, reply.kept)


def encode_memory_digests(digests: MemoryDigests) -> Tensors:
    """Encode digests as three tensors: a header of a commit has no room for very many clients."""
    if not digests:
        return Tensors()
    names = json.dumps(list(digests)).encode()
    sha256 = b"".join(bytes.fromhex(digest) for _, digest in digests.values())
    return Tensors(
        {
            "clients": torch.frombuffer(bytearray(names), dtype=torch.uint8),
            "rounds": torch.tensor([t for t, _ in digests.values()], dtype=torch.int64),
            "sha256": torch.frombuffer(bytearray(sha256), dtype=torch.uint8).reshape(-1, 32),
        }
    )


def decode_memory_digests(tensors: Tensors) -> MemoryDigests:
    """Decode what ``encode_memory_digests`` made; commits of early versions have none."""
    if not tensors:
        return {}
    try:
        names = [str(name) for name in json.loads(bytes(tensors["clients"].numpy()))]
        "".join(names).encode()  # raises for a name that no file can have
        rounds, rows = tensors["rounds"].tolist(), tensors["sha256"].numpy()
        columns = zip(names, rounds, rows, strict=True)
        return {name: (int(t), bytes(row).hex()) for name, t, row in columns}
    except (KeyError, TypeError, ValueError, RecursionError):
        raise CodecError("the digests of client memories are damaged") from None


def check_memories(store: FolderClientStore, digests: MemoryDigests, before: int) -> None:
    """Raise if a memory that a commit after ``before`` rounds rests on is missing or another one."""
    for client, (t, sha256) in digests.items():
        path = store.memory_file(client, t)
        try:
            newest = max((r for r in store.list_rounds(client) if r < before), default=None)
            right = (
                newest == t
                and hashlib.sha256(read_regular_file(path, BLOB_LIMIT)).hexdigest() == sha256
            )
        except OSError:  # also a name that is too long for a file
            right = False
        if not right:
            raise FolderError(
                f"the memory of client {client} ({path}) is not what its commit recorded"
                " (its sha256 differs)"
            )
