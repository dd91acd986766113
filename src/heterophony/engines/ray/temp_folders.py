"""Folders of this machine that outlive no one who uses them, not even after kill -9.

Whoever uses one holds a lock beside it, and locks end with their owner; whoever claims another
removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.files import translate_disk_errors

MAX_PATH_LENGTH = 40  # a socket's path has at most 107 bytes, of which Ray uses 62 below its folder


@dataclass(frozen=True)
class TempFolder:
    """A folder, and the lock that keeps it."""

    path: Path
    lock: int

    def delete(self) -> None:
        """Remove it; what others have mapped of it, they keep."""
        remove_temp_folder(self.path.name)
        self.close()

    def close(self) -> None:
        """Leave it to the others who hold it."""
        os.close(self.lock)


def open_temp_folder(name: str) -> TempFolder:
    """The folder of that name, which is there for all processes that claim it."""
    base = find_temp_root()
    with translate_disk_errors(base):
        base.mkdir(mode=0o700, exist_ok=True)
        if base.is_symlink() or base.stat().st_uid != os.getuid():
            raise PermissionError(f"{base} belongs to somebody else")
        remove_abandoned(base, name)
        folder = base / name
        lock = os.open(make_lock_path(folder), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder.mkdir(mode=0o700, exist_ok=True)
    return TempFolder(folder, lock)


def remove_temp_folder(name: str) -> None:
    """Remove a folder, whoever holds it."""
    shutil.rmtree(find_temp_root() / name, ignore_errors=True)
    make_lock_path(find_temp_root() / name).unlink(missing_ok=True)


def find_temp_root() -> Path:
    """Short, whatever the user's temporary folder is called."""
    usual = Path(tempfile.gettempdir())
    root = usual if len(str(usual)) < MAX_PATH_LENGTH else Path("/tmp")  # noqa: S108
    return root / f"heterophony-{os.getuid()}"


def make_lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def remove_abandoned(base: Path, name: str) -> None:
    """Remove what is left of those who were killed."""
    for path in base.glob("*.lock"):
        folder = path.with_suffix("")
        with suppress(OSError):
            if folder.name == name:
                continue
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(lock)
