"""``new``: a folder to start a study from: settings, an algorithm, data, and a test that passes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FolderError
from ..core.files import write_atomically
from . import terminal

TEMPLATE = files(__package__) / "new_study"  # files of Python end in .txt there


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(new)


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
) -> None:
    """Write a folder to start a study from: settings, an algorithm, data, and a test that passes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder} exists already; name a new folder")
    for file in sorted(TEMPLATE.iterdir(), key=lambda file: file.name):
        write_atomically(folder / file.name.removesuffix(".txt"), file.read_bytes(), durable=False)
    terminal.print_note(
        f"wrote {folder}; next: cd {folder} && python make_data.py && heterophony run study.toml"
    )
