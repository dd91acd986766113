"""Temporary folders; if a process is killed, the next process removes those it left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

PREFIX = "heterophony-tmp-"
LONGEST_SOCKET_PATH = 100  # the system allows 107 characters on Linux, 103 on macOS
SHORT_PARENT = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder that only this user can enter
_locks: dict[Path, int] = {}  # folder -> lock; the system releases them when the process exits


def create_temporary_folder(socket: str = "") -> Path:
    """Create a folder for ``remove_temporary_folder``; if this process is killed, the next one removes it.

    ``socket`` is the longest name of a socket in the folder: if the socket's path would be too long,
    the folder is created in /tmp.
    """
    parent = Path(tempfile.gettempdir()).resolve()
    if socket and len(f"{parent}/{PREFIX}12345678/{socket}") > LONGEST_SOCKET_PATH:
        parent = SHORT_PARENT
    _remove_abandoned_folders(parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # until it is locked, another process may consider it abandoned and remove it
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            _locks[folder] = lock
            return folder
        os.close(lock)


def remove_temporary_folder(folder: Path) -> None:
    """Remove a folder made by ``create_temporary_folder``, if it still exists."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a temporary folder, and remove it after the block."""
    folder = create_temporary_folder()
    try:
        yield folder
    finally:
        remove_temporary_folder(folder)


@cache
def _remove_abandoned_folders(parent: Path) -> None:
    """Remove folders that killed processes of this user left behind; once per process."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or has just been removed
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
