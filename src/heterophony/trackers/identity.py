"""The name that a tracker's own store has for a run, kept in the run folder for a resume."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.files import write_atomically


def read_run_id(path: Path) -> str | None:
    """The id in a file; None where there is none, or none that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    found = content.get("id") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def write_run_id(path: Path, id: str) -> None:
    write_atomically(path, (json.dumps({"id": id}) + "\n").encode())
