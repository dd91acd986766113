"""The id that a tracker gave to a run, stored in the run folder for a resume."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.files import read_text_file, write_atomically


def read_run_id(path: Path) -> str | None:
    """Read the id from a file; return None if it is missing or damaged."""
    try:
        content = json.loads(read_text_file(path))
    except (OSError, ValueError):
        return None
    run_id = content.get("id") if isinstance(content, dict) else None
    return run_id if isinstance(run_id, str) else None


def write_run_id(path: Path, id: str) -> None:
    write_atomically(path, (json.dumps({"id": id}) + "\n").encode())
