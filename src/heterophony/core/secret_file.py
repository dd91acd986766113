"""A secret that only its owner can read: drawn once, kept in a file, never sent or printed."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import FolderError
from .files import read_regular_file, translate_disk_errors, write_atomically

FILE_NAME = "secret"
SECRET_BYTES = 32


def load_secret(folder: Path, create: bool) -> bytes:
    """Read the secret of a folder; draw and store one if there is none and ``create`` allows it."""
    path = folder / FILE_NAME
    if not path.exists():
        if not create:
            raise FolderError(
                f"{path} is missing: without it the noise of the run cannot be drawn again; restore"
                " it, or start a new run"
            )
        write_atomically(path, draw_secret(), private=True)
    with translate_disk_errors(path):
        secret = read_regular_file(path, SECRET_BYTES)
    if len(secret) != SECRET_BYTES:
        raise FolderError(f"{path} is damaged: it must have {SECRET_BYTES} bytes; restore it")
    return secret


def draw_secret() -> bytes:
    """Draw a secret from the operating system."""
    return os.urandom(SECRET_BYTES)
