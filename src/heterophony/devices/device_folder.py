"""A device's folder for one run: locked by one process, and recognised by an id."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ..core.files import lock_folder, translate_disk_errors, write_atomically


class DeviceFolder:
    """A folder that is locked until ``close``.

    The id distinguishes it from a new folder, and from that of a copied enrolment.
    """

    def __init__(self, path: Path) -> None:
        id_file = path / "home"
        with translate_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path)
        if not id_file.exists():
            write_atomically(id_file, secrets.token_hex(8).encode())
        with translate_disk_errors(id_file):
            self.folder_id = id_file.read_text()

    def close(self) -> None:
        os.close(self._lock)
