"""Files that are either wholly there or not at all, and disk trouble said in one line."""

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
    """Trouble with the disk inside becomes a ``StorageError`` that names the path."""
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
    """Write, fsync, rename: a reader sees the old file or the new one, also after a crash.

    Without ``durable`` it is the same for readers, but a power cut may lose the file.
    What is ``private`` is never readable for other users, not even while it is written.
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
    """Opens a file that is made for its owner alone."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_folder(folder: Path) -> int:
    """Refuse a second process; the lock ends with its owner, however that ends."""
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
    """A JSON file for people and programs, atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """A JSON file, or a clear answer."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise FolderError(f"{path} is not there") from None
    except ValueError:
        raise FolderError(f"{path} is damaged: it is not JSON") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
