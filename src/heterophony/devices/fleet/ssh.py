"""Run a program on a board over the system's OpenSSH, with the user's keys, known hosts and jump hosts."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...core.errors import ConfigError, HeterophonyError
from ...core.plain_text import clean_line
from .hosts import Board

CONNECT_SECONDS = 10
CONNECTION_LOST = 255  # the exit code of ssh itself
NOT_FOUND = 127  # of the board's shell
REASONS = (  # words of ssh, and what to do
    ("Permission denied", "ssh is refused: the board does not accept your key"),
    ("Host key verification failed", "ssh does not know the board's host key, or it has changed"),
    ("REMOTE HOST IDENTIFICATION", "the board's host key has changed"),
    ("Could not resolve hostname", "its name cannot be resolved"),
    ("Connection refused", "no SSH server answers"),
    ("timed out", "it cannot be reached"),
    ("No route to host", "it cannot be reached"),
    ("Bad owner or permissions", "ssh refuses its own configuration"),
)


class BoardError(HeterophonyError):
    """Something is wrong with one board; the line does not repeat its name."""


class ConnectionLostError(BoardError):
    """The board cannot be reached, or the connection broke."""


@dataclass(frozen=True)
class Answer:
    """What a program on a board printed, and its exit code."""

    code: int
    out: bytes
    err: str


class SshRunner:
    """Runs programs on boards; connections are shared and end with ``close``."""

    def __init__(self, config: Path | None = None) -> None:
        if shutil.which("ssh") is None:
            raise ConfigError(
                "ssh is not installed; get it with: sudo apt-get install openssh-client"
            )
        self.config = config
        # short, as a socket's path has at most 107 bytes; only we can read it
        self.sockets = Path(tempfile.mkdtemp(prefix="het-", dir="/tmp"))
        self.used: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_command(self, target: str, *options: str) -> list[str]:
        """Return the words that begin a call of ssh; what the user has configured holds."""
        settings = {
            "BatchMode": "yes",  # never ask: nobody can answer for ten boards
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "4",
            "ControlMaster": "auto",
            "ControlPath": f"{self.sockets}/%C",
            "ControlPersist": "60",
        }
        words = ["ssh", *(["-F", str(self.config)] if self.config else []), "-T"]
        for key, value in settings.items():
            words += ["-o", f"{key}={value}"]
        return [*words, *options, "--", target]

    def run(
        self,
        board: Board,
        words: Sequence[str],
        pieces: Iterable[bytes] = (),
        seconds: float = 180.0,
    ) -> Answer:
        """Run a program on the board with these bytes as its input; end it after ``seconds``."""
        self.used[board.name] = board.ssh
        # one string for the board's shell: every word is quoted
        command = [*self.make_command(board.ssh), shlex.join(words)]
        code, out, err = exchange(command, pieces, seconds)
        if code < 0:
            raise ConnectionLostError(
                f"no answer within {seconds:.0f} s; try by hand: {board_command(board)}"
            )
        if code == CONNECTION_LOST:
            raise ConnectionLostError(f"{explain(err)}; try by hand: {board_command(board)}")
        return Answer(code, out, err)

    def close(self) -> None:
        """End the shared connections."""
        for target in self.used.values():
            subprocess.run(
                self.make_command(target, "-O", "exit"), capture_output=True, check=False
            )
        shutil.rmtree(self.sockets, ignore_errors=True)


def exchange(
    command: Sequence[str], pieces: Iterable[bytes], seconds: float
) -> tuple[int, bytes, str]:
    """Run a command with this input; return its exit code, output and errors.

    After ``seconds`` it is killed. Input and errors have threads of their own: no pipe can block.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    errors: list[bytes] = []
    threads = [
        threading.Thread(target=write_input, args=(process, pieces), daemon=True),
        threading.Thread(target=read_errors, args=(process, errors), daemon=True),
    ]
    timer = threading.Timer(seconds, process.kill)
    for thread in (*threads, timer):
        thread.start()
    try:
        out = process.stdout.read()
        code = process.wait()
        for thread in threads:
            thread.join()
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
    return code, out, b"".join(errors).decode(errors="replace")


def write_input(process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
    """Write the input; a program that ended early has said why."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        for piece in pieces:
            process.stdin.write(piece)
    with suppress(BrokenPipeError):
        process.stdin.close()


def read_errors(process: subprocess.Popen[bytes], errors: list[bytes]) -> None:
    assert process.stderr is not None
    with process.stderr:
        errors.append(process.stderr.read())


def board_command(board: Board) -> str:
    return f"ssh {shlex.quote(board.ssh)}"


def explain(text: str) -> str:
    """Return what ssh complains about, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for words, reason in REASONS:
        found = [line for line in lines if words in line]
        if found:
            return f"{reason} ({clean_line(found[-1])[:200]})"
    return f"ssh failed ({clean_line(lines[-1])[:200]})" if lines else "the connection broke"
