"""A device's folder for one run: of one program at a time, with a name to know it again by."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ..core.files import lock_folder, translate_disk_errors, write_atomically


class DeviceFolder:
    """Ours until ``close``. The name tells it from a new folder, or that of a copied enrolment."""

    def __init__(self, path: Path) -> None:
        file = path / "home"
        with translate_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(path)
        if not file.exists():
            write_atomically(file, secrets.token_hex(8).encode())
        with translate_disk_errors(file):
            self.folder_id = file.read_text()

    def close(self) -> None:
        os.close(self._lock)
