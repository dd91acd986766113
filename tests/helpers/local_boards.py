"""Boards without SSH: their programs run as processes of this machine, each with its own home folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from heterophony.boards.fleet.hosts import Board
from heterophony.boards.fleet.ssh import ProgramResult, SshRunner


class LocalRunner(SshRunner):
    """Runs the programs of a board on this machine; the board's home is a folder of its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self, board: Board, words: Sequence[str], pieces: Iterable[bytes] = (), seconds: float = 60
    ) -> ProgramResult:
        home = self.folder / board.name
        home.mkdir(exist_ok=True)
        try:
            done = subprocess.run(
                words,
                input=b"".join(pieces),
                capture_output=True,
                env={**os.environ, "HOME": str(home)},
            )
        except FileNotFoundError:  # as the shell of a board would say
            return ProgramResult(127, b"", f"sh: {words[0]}: not found")
        return ProgramResult(done.returncode, done.stdout, done.stderr.decode())

    def close(self) -> None:
        """Do nothing: there is no connection."""


def make_board(name: str = "nano", **keys: object) -> Board:
    return Board(name, name, **{"python": sys.executable, **keys})


def write_python(path: Path, before: str, shell: str = "") -> str:
    """Write a fake Python that runs the line ``before`` ahead of any program; return its path."""
    launcher = f"import sys, time; {before}; code = sys.argv[2]; sys.argv = ['-c', *sys.argv[3:]]; exec(code)"
    path.write_text(f'#!/bin/sh\n{shell}\nexec "{sys.executable}" -c "{launcher}" "$@"\n')
    path.chmod(0o755)
    return str(path)
