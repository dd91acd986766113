"""A disk with faults: a real folder, and a record of the content that a power cut would leave.

Only synced content and names are safe. ``Disk`` replaces the few calls with which heterophony writes;
each is a step at which an armed fault can strike.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from heterophony.boards import journal
from heterophony.core import files

OPEN_TO_APPEND = files.open_to_append


class KilledError(BaseException):
    """The process was killed as by SIGKILL; code that runs while this error unwinds must not write."""


class Disk:
    """The folders of all machines; ``current`` is the machine whose program runs, or empty.

    Without a current machine, writing is as usual.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.current = root, ""
        self.hosts: dict[str, str] = {}  # by process: the machine where it runs, besides its own
        self.names: dict[str, dict[str, int]] = {}  # by folder: its synced entries
        self.content: dict[int, bytes] = {}  # by inode: the synced content
        self.syncing = threading.Lock()  # memories are written by several threads
        self.armed: list[list[Any]] = []  # who, kind, steps to go
        self.dead: set[str] = set()
        self.struck = set[str]()  # machines that a power cut has hit
        self.files: dict[str, list[FaultyFile]] = {}
        self.locks: dict[str, list[tuple[int, int]]] = {}  # file and inode

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Send all writing inside the block through this disk."""
        replace, unlink, mkdir, rename, flock, fsync = (
            *(Path.replace, Path.unlink, Path.mkdir, Path.rename),
            *(fcntl.flock, os.fsync),
        )

        def on_replace(path: Path, target: Path) -> Path:
            self.step(path)
            return replace(path, target)

        def on_rename(path: Path, target: Path) -> Path:
            self.step(path)
            return rename(path, target)

        def on_unlink(path: Path, missing_ok: bool = False) -> None:
            self.step(path, fails=False)
            unlink(path, missing_ok)

        def on_mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
            if not path.exists():
                self.step(path)
            mkdir(path, *args, **kwargs)

        def on_fsync(fd: int) -> None:
            if not self.current:
                fsync(fd)
                return
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
            self.step(path)
            self.sync(path)

        def on_flock(fd: int, how: int) -> None:
            flock(fd, how)
            self.locks.setdefault(self.current, []).append((fd, os.fstat(fd).st_ino))

        with ExitStack() as stack:
            for owner, name, replacement in (
                (Path, "replace", on_replace),
                (Path, "rename", on_rename),
                (Path, "unlink", on_unlink),
                (Path, "mkdir", on_mkdir),
                (os, "fsync", on_fsync),
                (fcntl, "flock", on_flock),
                (files, "open_to_append", self.open_to_append),
                (journal, "open_to_append", self.open_to_append),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            stack.enter_context(mock.patch.object(files, "open", self.open, create=True))
            yield

    def open(self, path: Any, mode: str = "rb", opener: Any = None) -> Any:
        if mode == "rb" or not self.current:
            return io.open(path, mode, opener=opener)  # noqa: UP020
        self.step(path)
        return FaultyFile(self, path, mode, opener=opener)

    def open_to_append(self, path: Path) -> Any:
        if not self.current:
            return OPEN_TO_APPEND(path)
        self.step(path)
        with OPEN_TO_APPEND(path) as file:
            return FaultyFile(self, os.dup(file.fileno()), "ab")

    def step(self, path: object, fails: bool = True, tears: bool = False) -> bool:
        """Count a step of the current machine, at which a fault may strike.

        Return True if the caller ``tears`` its write and then calls ``kill``.
        """
        if not self.current:
            return False
        if self.current in self.dead:
            raise KilledError
        for fault in list(self.armed):
            who, kind, left = fault
            if who not in (self.current, self.hosts.get(self.current)):
                continue
            fault[2] = left - 1
            if left > 0 or (kind in ("full", "EIO") and not fails):
                continue
            if kind == "full":  # until the machine's owner has made room
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            self.armed.remove(fault)
            if kind == "EIO":
                raise OSError(errno.EIO, "Input/output error", str(path))
            self.dead |= {who, self.current}
            if kind == "power cut":
                self.struck.add(who)
            if not tears:
                raise KilledError
            return True
        return False

    def kill(self) -> None:
        self.dead.add(self.current)
        raise KilledError

    def end_process(self, who: str) -> None:
        """Close the files and locks of a machine's program, as when it exits."""
        for file in self.files.pop(who, []):
            io.FileIO.close(file)
        for fd, inode in self.locks.pop(who, []):
            with suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)

    def sync(self, path: Path) -> None:
        with self.syncing:  # a listing must not replace a newer one
            if path.is_dir():
                self.names[str(path)] = {e.name: e.inode() for e in os.scandir(path)}
            else:
                self.content[path.stat().st_ino] = path.read_bytes()

    # A power cut ----------------------------------------------------------------------------
    def cut_power(self, folder: Path, draw: Random) -> None:
        """Revert all or some of the changes below a machine's folder that were not synced."""
        self.current = ""
        self.revert(folder, draw)

    def revert(self, folder: Path, draw: Random) -> None:
        now = {e.name: e.inode() for e in os.scandir(folder)}
        safe = self.names.get(str(folder), {})
        for name in sorted(now.keys() | safe.keys()):
            path, kept = folder / name, draw.random() < 0.5
            if now.get(name) != safe.get(name) and not kept:
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.exists():
                    path.unlink()
                if name in safe and safe[name] in self.content:
                    path.write_bytes(self.content[safe[name]])
            elif path.is_dir():
                self.revert(path, draw)
            elif path.exists():
                self.tear(path, draw)
            if path.is_file():
                self.content[path.stat().st_ino] = path.read_bytes()
        self.names[str(folder)] = {e.name: e.inode() for e in os.scandir(folder)}

    def tear(self, path: Path, draw: Random) -> None:
        """Keep only a part, or nothing, of the bytes written to a file since its last sync."""
        content, safe = path.read_bytes(), self.content.get(path.stat().st_ino, b"")
        if content == safe:
            return
        if draw.random() < 0.5:
            path.write_bytes(safe)
        else:
            common = next(
                (i for i, (a, b) in enumerate(zip(safe, content, strict=False)) if a != b),
                min(len(safe), len(content)),
            )
            path.write_bytes(content[: draw.randint(common, len(content))])


class FaultyFile(io.FileIO):
    """A file whose writes are steps of a disk."""

    def __init__(self, disk: Disk, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.disk, self.owner = disk, disk.current
        disk.files.setdefault(self.owner, []).append(self)

    def write(self, content: Any) -> int:
        if self.disk.step(self.name, tears=True):
            super().write(content[: len(content) // 2])
            self.disk.kill()
        return super().write(content)

    def truncate(self, size: int | None = None) -> int:
        self.disk.step(self.name)
        return super().truncate(size)

    def close(self) -> None:
        if not self.closed and self.owner in self.disk.files:
            self.disk.files[self.owner].remove(self)
        super().close()
