"""Bring what boards recorded to the run's folder: logs and facts, never memories or data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from ...core.files import write_atomically, write_json
from .agent import call_board
from .checks import BoardFacts
from .hosts import Board
from .ssh import SshRunner

LOG = "device.log"
MAX_LOG_BYTES = 4 << 20


def read_log(ssh: SshRunner, board: Board, limit: int = MAX_LOG_BYTES) -> str:
    """Return the end of the device's log; an empty text if there is none."""
    answer = call_board(ssh, board, "read", {"files": [LOG], "limit": limit})
    return str(answer["files"].get(LOG, ""))


def collect(ssh: SshRunner, board: Board, folder: Path, facts: BoardFacts | None) -> str:
    """Write the board's log and facts to a folder of its name."""
    text = read_log(ssh, board)
    write_atomically(folder / board.name / LOG, text.encode(), durable=False)
    if facts is not None:
        write_json(folder / board.name / "board.json", asdict(facts))
    return f"{len(text.encode()) / 1e3:.1f} kB of its log"
