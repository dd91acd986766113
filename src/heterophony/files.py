"""Files that are either wholly there or not at all, and disk trouble said in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StorageError


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Trouble with the disk inside becomes a ``StorageError`` that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot use {path}: {reason}; what was committed before is intact"
            " (make room or fix the permissions, then resume)"
        ) from error


def write(path: Path, content: bytes, durable: bool = True) -> None:
    """Write, fsync, rename: a reader sees the old file or the new one, also after a crash.

    Without ``durable`` it is the same for readers, but a power cut may lose the file.
    """
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with open(new, "wb") as file:
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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
