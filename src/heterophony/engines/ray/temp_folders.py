"""Temporary folders that are removed even if the processes that use them are killed.

Every process that uses a folder holds a lock file beside it, and the system releases a lock when
its process ends. Opening a folder removes all others whose lock nobody holds.
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
    """A folder, and this process's lock on it."""

    path: Path
    lock: int

    def delete(self) -> None:
        """Remove the folder; processes that have mapped its files can still read them."""
        remove_temp_folder(self.path.name)
        self.close()

    def close(self) -> None:
        """Release our lock; the folder stays as long as another process holds one."""
        os.close(self.lock)


def open_temp_folder(name: str) -> TempFolder:
    """Open or create the folder of that name; processes that use the same name share it."""
    root = find_temp_root()
    with translate_disk_errors(root):
        root.mkdir(mode=0o700, exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise PermissionError(f"{root} belongs to another user")
        remove_abandoned(root, name)
        folder = root / name
        lock = os.open(make_lock_path(folder), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        folder.mkdir(mode=0o700, exist_ok=True)
    return TempFolder(folder, lock)


def remove_temp_folder(name: str) -> None:
    """Remove a folder, even if a process holds its lock."""
    shutil.rmtree(find_temp_root() / name, ignore_errors=True)
    make_lock_path(find_temp_root() / name).unlink(missing_ok=True)


def find_temp_root() -> Path:
    """Find where the folders are: below the user's temporary folder, or /tmp if that is long."""
    users = Path(tempfile.gettempdir())
    parent = users if len(str(users)) < MAX_PATH_LENGTH else Path("/tmp")  # noqa: S108
    return parent / f"heterophony-{os.getuid()}"


def make_lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def remove_abandoned(root: Path, name: str) -> None:
    """Remove all folders but ``name`` whose lock nobody holds: their processes were killed."""
    for path in root.glob("*.lock"):
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
