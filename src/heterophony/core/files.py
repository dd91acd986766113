"""Write files atomically, lock folders, and turn disk errors into one clear line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BusyError, FolderError, StorageError


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """Turn every ``OSError`` inside the block into a ``StorageError`` that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot use {path}: {reason}; what was committed before is intact"
            " (make room or fix the permissions, then resume)"
        ) from error


def write_atomically(
    path: Path, content: bytes, durable: bool = True, private: bool = False
) -> None:
    """Write, fsync, rename: readers see the old file or the new one, even after a crash.

    Without ``durable`` there is no fsync: a power cut may lose the file. A ``private`` file is
    readable by its owner only, even while it is being written.
    """
    with translate_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with open(new, "wb", opener=open_for_owner_only if private else None) as file:
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def open_for_owner_only(path: str, flags: int) -> int:
    """Open a file; if it is created, only its owner can read it."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that its file names survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_folder(folder: Path) -> int:
    """Lock a folder for this process. The lock ends with the process, even if that crashes."""
    with translate_disk_errors(folder):
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BusyError(
            f"{folder} is in use by another process; wait for it or end it first"
        ) from None
    return lock


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, indented for people."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file; raise a clear error if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise FolderError(f"{path} is not there") from None
    except ValueError:
        raise FolderError(f"{path} is damaged: it is not JSON") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
