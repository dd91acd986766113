"""Run programs on boards and copy files to them, over the system's OpenSSH."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Self

from ...core.errors import ConfigError, HeterophonyError
from ...core.files import clean_line
from .hosts import Board

CONNECT_SECONDS = 10
CONNECTION_LOST = 255  # the exit code of ssh itself
NOT_FOUND = 127  # exit code of the board's shell for an unknown command
REASONS = (  # texts of ssh, and what to do
    ("Permission denied", "ssh is refused: the board does not accept your key"),
    ("Host key verification failed", "ssh does not know the board's host key, or it has changed"),
    ("REMOTE HOST IDENTIFICATION", "the board's host key has changed"),
    ("Could not resolve hostname", "its host name cannot be resolved"),
    ("Connection refused", "no SSH server answers"),
    ("timed out", "it cannot be reached"),
    ("No route to host", "it cannot be reached"),
    ("Bad owner or permissions", "ssh refuses its own configuration"),
)


class BoardError(HeterophonyError):
    """Raised when there is a problem with one board of a fleet; the message does not name the board."""


class ConnectionLostError(BoardError):
    """Raised when a board cannot be reached by ssh, or when the connection broke."""


@dataclass(frozen=True)
class ProgramResult:
    """The exit code, output and errors of a program that ran on a board."""

    code: int
    out: bytes
    err: str


class SshRunner:
    """Runs programs on boards by ssh, over shared connections that ``close`` ends."""

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
        """Return an ssh command for this target, without the program to run there."""
        settings = {
            "BatchMode": "yes",  # never prompt: nobody can answer for ten boards
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
    ) -> ProgramResult:
        """Run a program on the board with these bytes as its input; give up after ``seconds``."""
        self.used[board.name] = board.ssh
        # one string for the board's shell: every word is quoted
        command = [*self.make_command(board.ssh), shlex.join(words)]
        code, out, err = run_with_input(command, pieces, seconds)
        if code < 0:
            raise ConnectionLostError(
                f"no answer within {seconds:.0f} s; try by hand: {board_command(board)}"
            )
        if code == CONNECTION_LOST:
            raise ConnectionLostError(
                f"{explain_ssh_error(err)}; try by hand: {board_command(board)}"
            )
        return ProgramResult(code, out, err)

    def close(self) -> None:
        """Close the shared ssh connections."""
        for target in self.used.values():
            subprocess.run(
                self.make_command(target, "-O", "exit"), capture_output=True, check=False
            )
        shutil.rmtree(self.sockets, ignore_errors=True)


def run_with_input(
    command: Sequence[str], pieces: Iterable[bytes], seconds: float
) -> tuple[int, bytes, str]:
    """Run an ssh command with this input; return its exit code, output and errors.

    After ``seconds``, the command is killed. Threads write the input and read the errors, so that no
    pipe can block.
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
    """Write the input of an ssh command; stop if the command has exited, because its error output says why."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        for piece in pieces:
            process.stdin.write(piece)
    with suppress(BrokenPipeError):
        process.stdin.close()


def read_errors(process: subprocess.Popen[bytes], errors: list[bytes]) -> None:
    """Append the error output of an ssh command to ``errors``."""
    assert process.stderr is not None
    with process.stderr:
        errors.append(process.stderr.read())


def board_command(board: Board) -> str:
    """Return the ssh command with which a user can connect to a board."""
    return f"ssh {shlex.quote(board.ssh)}"


def explain_ssh_error(text: str) -> str:
    """Explain the error output of ssh in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for words, reason in REASONS:
        found = [line for line in lines if words in line]
        if found:
            return f"{reason} ({clean_line(found[-1])[:200]})"
    return f"ssh failed ({clean_line(lines[-1])[:200]})" if lines else "the connection broke"


MODULES = ("environment", "service")
# any Python 3 can run this program; the modules that it loads need 3.11
BOOTSTRAP = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"  # the folder in which SSH starts
    "import json, types\n"
    "if sys.version_info < (3, 11):\n"
    "    print(json.dumps({'old': list(sys.version_info[:3])})); sys.exit(0)\n"
    "sources = json.loads(sys.stdin.buffer.read(int(sys.argv[1])))\n"
    "board = types.ModuleType('board'); board.__path__ = []; sys.modules['board'] = board\n"
    "for name, text in sources:\n"
    "    module = types.ModuleType('board.' + name); module.__package__ = 'board'\n"
    "    sys.modules['board.' + name] = module; setattr(board, name, module)\n"
    "    exec(compile(text, name + '.py', 'exec'), module.__dict__)\n"
    "sys.modules['board.service'].main()\n"
)


def call_board(
    ssh: SshRunner,
    board: Board,
    action: str,
    request: dict[str, Any] | None = None,
    pieces: Iterable[bytes] = (),
    seconds: float = 180.0,
) -> dict[str, Any]:
    """Run an action of ``boards/fleet/board`` on the board and return its answer.

    Raise BoardError if the action fails there.
    """
    sources = read_sources()
    content = {"action": action, "folder": board.folder, **(request or {})}
    words = [board.python, "-c", BOOTSTRAP, str(len(sources))]
    stream = chain([sources, json.dumps(content).encode() + b"\n"], pieces)
    return parse_answer(board, ssh.run(board, words, stream, seconds))


@cache
def read_sources() -> bytes:
    """Return the source code of the modules that run on a board as JSON, in the order of imports."""
    folder = files(__package__) / "board"
    texts = [(name, (folder / f"{name}.py").read_text()) for name in MODULES]
    return json.dumps(texts).encode()


def parse_answer(board: Board, result: ProgramResult) -> dict[str, Any]:
    """Return the answer of an action on a board; raise BoardError if the action failed."""
    if result.code in (NOT_FOUND, 126):
        raise BoardError(f"it has no Python named {board.python}; install Python 3.11 or newer")
    # the shell may print a greeting first: our answer is the last line
    last = (result.out.splitlines() or [b""])[-1]
    try:
        content: dict[str, Any] = json.loads(last)
        if "old" in content:
            version = ".".join(map(str, content["old"]))
            raise BoardError(
                f"its Python is {version} ({board.python}); 3.11 or newer is needed: install one and"
                f' set python = "…" of boards.{board.name}'
            )
        if "problem" in content:
            raise BoardError(str(content["problem"]))
        answer: dict[str, Any] = content["answer"]
        return answer
    except (ValueError, KeyError, TypeError):
        what = explain_ssh_error(result.err).removeprefix("ssh failed ")
        raise BoardError(f"its Python ({board.python}) failed {what}") from None


PIECE = 1 << 20
BYTES_PER_SECOND = 200_000  # slower links count as broken
PRIVATE = 0o600


@dataclass(frozen=True)
class Content:
    """The content of a file to copy to a board: a local file, or bytes."""

    source: Path | bytes
    mode: int = 0o644

    @property
    def size(self) -> int:
        """The size of the file to copy, in bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def digest(self) -> str:
        """Return the sha256 of the file to copy."""
        if isinstance(self.source, bytes):
            return hashlib.sha256(self.source).hexdigest()
        with open(self.source, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def iterate(self) -> Iterator[bytes]:
        """Yield the bytes of the file to copy, in pieces."""
        if isinstance(self.source, bytes):
            yield self.source
            return
        with open(self.source, "rb") as file:
            while piece := file.read(PIECE):
                yield piece


def push_files(
    ssh: SshRunner, board: Board, contents: Mapping[str, Content], only: Sequence[str] = ()
) -> int:
    """Copy files to a board, unless it has them; return how many were copied or deleted.

    In the folders of ``only``, all other files on the board are deleted.
    """
    digests = {path: content.digest() for path, content in contents.items()}
    asked = call_board(ssh, board, "missing", {"files": digests, "only": list(only)}, seconds=600)
    missing = [path for path in contents if path in set(asked["missing"])]
    if not missing and not asked["others"]:
        return 0
    entries = [
        {
            "path": path,
            "size": contents[path].size,
            "sha256": digests[path],
            "mode": contents[path].mode,
        }
        for path in missing
    ]
    request = {"files": entries, "only": list(only), "keep": list(contents)}
    size = sum(contents[path].size for path in missing)
    pieces = chain.from_iterable(contents[path].iterate() for path in missing)
    answer = call_board(ssh, board, "receive", request, pieces, 120 + size / BYTES_PER_SECOND)
    return int(answer["received"]) + int(answer["deleted"])
