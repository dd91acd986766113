"""Where jobs run: each client's memory, one file per round it took part in, and derived data.

A job of round t gets the newest memory *older than t*. So a server that lost a round, a job done
twice and a worker that outlived its driver are all harmless: nobody has to tell anybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ..core.client import Memory
from ..core.codec import decode_groups, encode_groups
from ..core.files import disk, write
from ..core.samples import Samples, Scale
from ..core.tensors import Tensors


class Keeping(ABC):
    """What a job asks of where it runs, wherever the bytes are; ``scratch`` can be made again."""

    scratch: Path

    @abstractmethod
    def stored(self, client: str, before: int) -> bytes:
        """The newest memory older than that round, encoded; empty where there is none."""

    @abstractmethod
    def store(self, client: str, t: int, blob: bytes) -> None:
        """Store a memory of round ``t``, encoded; an empty one has no bytes."""

    def memory(self, client: str, before: int) -> Memory:
        """What the client kept when it last trained before that round."""
        blob = self.stored(client, before)
        return decode_groups(blob, finite=False)[0] if blob else {}

    def keep(self, client: str, t: int, memory: Memory) -> None:
        """Keep what the client holds after training in round ``t``."""
        self.store(client, t, encode_groups(memory) if memory else b"")

    def digest(self, client: str, before: int) -> str:
        """A digest of what the client keeps; it may be told, the tensors may not."""
        memory = self.memory(client, before)
        flat = {f"{g}|{k}": v for g, tensors in memory.items() for k, v in tensors.items()}
        return Tensors(flat).digest()

    def derived(self, client: str, name: str, scale: Scale, make: Callable[[], Samples]) -> Samples:
        """Data computed once per client, kept and memory-mapped; losing them costs only time."""
        path = self.scratch / "once" / folder_name(client) / name
        files = [path.with_name(f"{name}.{part}.npy") for part in ("x", "y")]
        try:
            x, y = map(mapped, files)
        except (OSError, ValueError, EOFError):  # not there, or cut short
            made = make()
            write(files[0], npy(made.stored_all()), durable=False)
            write(files[1], npy(made.labels), durable=False)
            with disk(path):
                x, y = map(mapped, files)
        return Samples(x, y, scale)


class Place(Keeping):
    """One folder for what clients keep, one for what can be computed again."""

    def __init__(self, memories: Path, scratch: Path) -> None:
        self.memories, self.scratch = memories, scratch

    def stored(self, client: str, before: int) -> bytes:
        rounds = [t for t in self.rounds(client) if t < before]
        if not rounds:
            return b""
        with disk(self.folder(client)):
            return self.file(client, rounds[-1]).read_bytes()

    def store(self, client: str, t: int, blob: bytes) -> None:
        if blob or self.rounds(client):  # nothing is kept too, where there was something
            write(self.file(client, t), blob or encode_groups({}))

    def forget(self, clients: Iterable[str], before: int) -> None:
        """Drop what no job of that round or a later one can ask for."""
        for client in clients:
            for t in [t for t in self.rounds(client) if t < before][:-1]:
                self.file(client, t).unlink(missing_ok=True)

    def folder(self, client: str) -> Path:
        return self.memories / folder_name(client)

    def file(self, client: str, t: int) -> Path:
        return self.folder(client) / f"{t:07d}"

    def rounds(self, client: str) -> list[int]:
        """The rounds a memory is there for, ascending."""
        folder = self.folder(client)
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit())


def folder_name(client: str) -> str:
    """A client's name as that of a folder: never '..', never another client's, never none."""
    return quote(client, safe="").replace(".", "%2E") or "%"


def npy(tensor: Tensor) -> bytes:
    """The content of a ``.npy`` file."""
    content = BytesIO()
    np.save(content, tensor.contiguous().numpy(), allow_pickle=False)
    return content.getvalue()


def mapped(path: Path) -> Tensor:
    """The tensor in a ``.npy`` file, which comes into memory page by page, as it is used."""
    # mode "c" (copy on write): torch may have it, and no process can change the file
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
