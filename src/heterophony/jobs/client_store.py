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

from ..core.codec import decode_groups, encode_groups
from ..core.files import translate_disk_errors, write_atomically
from ..core.samples import Samples, Scale
from ..core.tensors import Memory, Tensors


class ClientStore(ABC):
    """What a job asks of where it runs, wherever the bytes are; ``scratch`` can be made again."""

    scratch: Path

    @abstractmethod
    def read_blob(self, client: str, before: int) -> bytes:
        """The newest memory older than that round, encoded; empty where there is none."""

    @abstractmethod
    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        """Store a memory of round ``t``, encoded; an empty one has no bytes."""

    def load_memory(self, client: str, before: int) -> Memory:
        """What the client kept when it last trained before that round."""
        blob = self.read_blob(client, before)
        return decode_groups(blob, finite=False)[0] if blob else {}

    def save_memory(self, client: str, t: int, memory: Memory) -> None:
        """Keep what the client holds after training in round ``t``."""
        self.write_blob(client, t, encode_groups(memory) if memory else b"")

    def digest_memory(self, client: str, before: int) -> str:
        """A digest of what the client keeps; it may be told, the tensors may not."""
        memory = self.load_memory(client, before)
        flat = {f"{g}|{k}": v for g, tensors in memory.items() for k, v in tensors.items()}
        return Tensors(flat).digest()

    def load_derived_samples(
        self, client: str, name: str, scale: Scale, make: Callable[[], Samples]
    ) -> Samples:
        """Data computed once per client, kept and memory-mapped; losing them costs only time."""
        path = self.scratch / "once" / encode_folder_name(client) / name
        files = [path.with_name(f"{name}.{part}.npy") for part in ("x", "y")]
        try:
            x, y = map(map_npy_file, files)
        except (OSError, ValueError, EOFError):  # not there, or cut short
            made = make()
            write_atomically(files[0], encode_npy(made.get_all_stored()), durable=False)
            write_atomically(files[1], encode_npy(made.labels), durable=False)
            with translate_disk_errors(path):
                x, y = map(map_npy_file, files)
        return Samples(x, y, scale)


class FolderClientStore(ClientStore):
    """One folder for what clients keep, one for what can be computed again."""

    def __init__(self, memories: Path, scratch: Path) -> None:
        self.memory_folder, self.scratch = memories, scratch

    def read_blob(self, client: str, before: int) -> bytes:
        rounds = [t for t in self.list_rounds(client) if t < before]
        if not rounds:
            return b""
        with translate_disk_errors(self.client_folder(client)):
            return self.memory_file(client, rounds[-1]).read_bytes()

    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        if blob or self.list_rounds(client):  # nothing is kept too, where there was something
            write_atomically(self.memory_file(client, t), blob or encode_groups({}))

    def delete_old_memories(self, clients: Iterable[str], before: int) -> None:
        """Drop what no job of that round or a later one can ask for."""
        for client in clients:
            for t in [t for t in self.list_rounds(client) if t < before][:-1]:
                self.memory_file(client, t).unlink(missing_ok=True)

    def client_folder(self, client: str) -> Path:
        return self.memory_folder / encode_folder_name(client)

    def memory_file(self, client: str, t: int) -> Path:
        return self.client_folder(client) / f"{t:07d}"

    def list_rounds(self, client: str) -> list[int]:
        """The rounds a memory is there for, ascending."""
        folder = self.client_folder(client)
        if not folder.is_dir():
            return []
        return sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit())


def encode_folder_name(client: str) -> str:
    """A client's name as that of a folder: never '..', never another client's, never none."""
    return quote(client, safe="").replace(".", "%2E") or "%"


def encode_npy(tensor: Tensor) -> bytes:
    """The content of a ``.npy`` file."""
    content = BytesIO()
    np.save(content, tensor.contiguous().numpy(), allow_pickle=False)
    return content.getvalue()


def map_npy_file(path: Path) -> Tensor:
    """The tensor in a ``.npy`` file, which comes into memory page by page, as it is used."""
    # mode "c" (copy on write): torch may have it, and no process can change the file
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
