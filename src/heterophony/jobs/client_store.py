"""The store of client memories: one file per training round of a client, and data derived from its examples.

A job of round t gets the newest memory *older than t*. So, without any messages, a job may safely
run again after the server lost a round, run twice, or run in a worker whose driver has died.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ..core.codec import BLOB_LIMIT, decode_groups, encode_groups
from ..core.errors import DataError, FolderError
from ..core.files import (
    make_folder,
    read_json,
    read_regular_file,
    read_text_file,
    translate_disk_errors,
    write_atomically,
)
from ..core.samples import Samples, Scale
from ..core.tensors import Memory, Tensors

WRITERS = 8  # number of files that are written at a time
WAITING_BYTES = 64 << 20  # limit on the bytes of memories waiting to be written
LONGEST_NAME = 192  # most disks allow 255 bytes, and some file names extend the client's name


def digest_memory(memory: Memory) -> str:
    """Compute the digest of a client's memory: of all tensors and their names."""
    flat = {f"{g}|{k}": v for g, tensors in memory.items() for k, v in tensors.items()}
    return Tensors(flat).digest()


class ClientStore(ABC):
    """Stores clients' memories where jobs run; files in its folder ``scratch`` can be computed again."""

    scratch: Path

    @abstractmethod
    def read_blob(self, client: str, before: int) -> bytes:
        """Return a client's newest memory older than round ``before``, encoded; empty if there is none."""

    @abstractmethod
    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        """Store a client's encoded memory of round ``t``; empty bytes mean an empty memory."""

    @contextmanager
    def saving_together(self) -> Iterator[None]:
        """Allow the store to postpone writes inside the ``with`` block; at its end, all memories are stored."""
        yield

    def has_memories(self) -> bool:
        """Return False only if no client has a memory."""
        return True

    def load_memory(self, client: str, before: int) -> Memory:
        """Load the client's newest memory older than round ``before``; empty if there is none."""
        blob = self.read_blob(client, before)
        return decode_groups(blob, finite=False)[0] if blob else {}

    def save_memory(self, client: str, t: int, memory: Memory) -> str:
        """Store a client's memory after training in round ``t``; return its sha256 ("" if it is empty)."""
        blob = encode_groups(memory) if memory else b""
        self.write_blob(client, t, blob)
        return hashlib.sha256(blob).hexdigest() if blob else ""

    def digest_memory(self, client: str, before: int) -> str:
        """Compute the digest of a client's newest memory older than round ``before``; only a digest may leave a board."""
        return digest_memory(self.load_memory(client, before))

    def load_derived_samples(
        self, client: str, name: str, scale: Scale, make: Callable[[], Samples]
    ) -> Samples:
        """Return examples derived from a client's data, computed once and stored in memory-mapped files.

        If the files are lost or damaged, the examples are derived again.
        """
        path = self.scratch / "once" / encode_folder_name(client) / name
        files = [path.with_name(f"{name}.{part}.npy") for part in ("x", "y")]
        try:
            x, y = map(map_npy_file, files)
        except (OSError, ValueError, EOFError):  # missing or damaged
            derived = make()
            write_atomically(files[0], encode_npy(derived.get_all_stored()), durable=False)
            write_atomically(files[1], encode_npy(derived.labels), durable=False)
            with translate_disk_errors(path):
                x, y = map(map_npy_file, files)
        return Samples(x, y, scale)


class FolderClientStore(ClientStore):
    """Keeps clients' memories in one folder, and data that can be computed again in another."""

    def __init__(self, memories: Path, scratch: Path) -> None:
        self.memory_folder, self.scratch = memories, scratch
        self.writers: Writers | None = None

    def read_blob(self, client: str, before: int) -> bytes:
        rounds = [t for t in self.list_rounds(client) if t < before]
        if not rounds:
            return b""
        with translate_disk_errors(self.client_folder(client)):
            return read_regular_file(self.memory_file(client, rounds[-1]), BLOB_LIMIT)

    def has_memories(self) -> bool:
        try:
            with os.scandir(self.memory_folder) as entries:
                return any(True for _ in entries)
        except FileNotFoundError:
            return False

    def write_blob(self, client: str, t: int, blob: bytes) -> None:
        if blob or self.list_rounds(client):  # an empty memory must replace an older one
            write = write_atomically if self.writers is None else self.writers.write
            write(self.memory_file(client, t), blob or encode_groups({}))

    @contextmanager
    def saving_together(self) -> Iterator[None]:
        """Write clients' memories in threads inside the ``with`` block; at its end, all memories are on disk.

        A disk writes several files at a time as fast as a single one.
        """
        with ThreadPoolExecutor(WRITERS) as threads:
            self.writers = Writers(threads)
            try:
                yield
                self.writers.wait()
            finally:
                self.writers = None

    def delete_old_memories(
        self, clients: Iterable[str], before: int, keep: int | None = None
    ) -> None:
        """Delete clients' memories that no job of round ``before`` or later can read.

        Each client's newest memory older than round ``keep`` is kept as well.
        """
        for client in clients:
            old = [t for t in self.list_rounds(client) if t < before][:-1]
            kept = max((t for t in old if keep is not None and t < keep), default=None)
            for t in old:
                if t != kept:
                    self.memory_file(client, t).unlink(missing_ok=True)

    def check_names(self, clients: Iterable[str]) -> None:
        """Raise FolderError if two clients' memories would share a folder because the disk ignores case."""
        known: dict[str, str] = {}
        for client in clients:
            other = known.setdefault(encode_folder_name(client).lower(), client)
            if other != client and ignores_case(self.memory_folder):
                raise FolderError(
                    f"clients '{other}' and '{client}' differ only in case, and the disk of"
                    f" {self.memory_folder} ignores case; rename one, or use another disk"
                )

    def client_folder(self, client: str) -> Path:
        """Return the folder of a client's memories."""
        return self.memory_folder / encode_folder_name(client)

    def memory_file(self, client: str, t: int) -> Path:
        """Return the file of a client's memory of round ``t``."""
        return self.client_folder(client) / f"{t:07d}"

    def list_rounds(self, client: str) -> list[int]:
        """List the rounds of which a client has a stored memory, in ascending order."""
        folder = f"{self.memory_folder}/{encode_folder_name(client)}"
        try:
            names = os.listdir(folder)  # noqa: PTH208  # faster, and often there is no folder
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name) for name in names if name.isdigit())


class Writers:
    """Threads that write clients' memories to disk."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self.waiting = list[Future[None]]()
        self.waiting_bytes = 0

    def write(self, path: Path, content: bytes) -> None:
        """Start writing a client's memory; wait first if too many bytes are still to be written."""
        if self.waiting_bytes + len(content) > WAITING_BYTES:
            self.wait()
        self.waiting.append(self.threads.submit(write_atomically, path, content))
        self.waiting_bytes += len(content)

    def wait(self) -> None:
        """Wait until all clients' memories are written, or raise the first error."""
        for future in self.waiting:
            future.result()
        self.waiting.clear()
        self.waiting_bytes = 0


def ignores_case(folder: Path) -> bool:
    """Return True if the folder's disk ignores case, as on macOS."""
    with translate_disk_errors(folder):
        make_folder(folder)
    return folder.with_name(folder.name.swapcase()).exists()


@lru_cache(maxsize=1 << 14)
def encode_folder_name(client: str) -> str:
    """Encode a client's name as a unique folder name, never empty, '..' or too long for a disk.

    Letters, digits, '-', '_' and '~' are kept. A long name is cut and ends in '%-' and a digest of the
    whole name; no other name contains '%-'.
    """
    name = quote(client, safe="").replace(".", "%2E") or "%"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:64]}%-{hashlib.sha256(client.encode()).hexdigest()}"


def encode_npy(tensor: Tensor) -> bytes:
    """Encode a tensor of derived data as the content of a ``.npy`` file."""
    content = BytesIO()
    np.save(content, tensor.contiguous().numpy(), allow_pickle=False)
    return content.getvalue()


def map_npy_file(path: Path) -> Tensor:
    """Map a ``.npy`` file of derived data as a tensor; its pages are read on first use."""
    # mode "c" (copy on write): torch needs a writable array, and the file cannot change
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


BOARDS_RECORD = "boards.json"  # in the run folder: which board holds which client
ID_FILE = "folder-id"  # in a board's folder of a run


def load_board_memory(run: Path, board: str | Path | None, client: str, before: int) -> Memory:
    """Load the client's newest memory older than round ``before`` from its board's folder.

    ``board`` is that folder, or a copy of it.
    """
    if board is None:
        raise DataError(
            f"the personal model of client '{client}' is on its board; there, or with a copy of the"
            f" board's folder, use result.personal('{client}', board='FOLDER'). The run folder has only the"
            " generic one: result.generic()"
        )
    folder = find_board_folder(run, Path(board).expanduser(), client)
    return FolderClientStore(folder / "clients", folder / "scratch").load_memory(client, before)


def find_board_folder(run: Path, board: Path, client: str) -> Path:
    """Find the folder in which a board keeps a run's clients, by the board's id in the server's record."""
    if not board.is_dir():
        raise DataError(f"{board} does not exist; pass the board's --folder")
    try:
        record = read_json(run / BOARDS_RECORD)
        holder = record["board_of_client"][client]
        wanted = record["folder_ids"][holder]
    except (KeyError, TypeError, ValueError):
        raise FolderError(
            f"{run / BOARDS_RECORD} does not record which board holds client '{client}'"
        ) from None
    for pattern in (ID_FILE, f"*/{ID_FILE}", f"*/*/{ID_FILE}"):
        for found in sorted(board.glob(pattern)):
            if found.is_file() and read_text_file(found) == wanted:
                return found.parent
    raise DataError(
        f"{board} does not hold client '{client}' of this run, which is on board '{holder}'"
    )
