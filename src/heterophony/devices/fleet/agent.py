"""Call an action on a board: our program goes over SSH to its Python, a JSON answer comes back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from .hosts import Board
from .ssh import NOT_FOUND, Answer, BoardError, SshRunner, explain

OLDEST_PYTHON = (3, 11)
MODULES = ("problems", "facts", "files", "environment", "service", "units", "enrolment", "main")
# any Python 3 can read it; the rest needs 3.11
BOOTSTRAP = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"  # the folder where SSH begins
    "import json, types\n"
    "if sys.version_info < (3, 11):\n"
    "    print(json.dumps({'old': list(sys.version_info[:3])})); sys.exit(0)\n"
    "sources = json.loads(sys.stdin.buffer.read(int(sys.argv[1])))\n"
    "board = types.ModuleType('board'); board.__path__ = []; sys.modules['board'] = board\n"
    "for name, text in sources:\n"
    "    module = types.ModuleType('board.' + name); module.__package__ = 'board'\n"
    "    sys.modules['board.' + name] = module; setattr(board, name, module)\n"
    "    exec(compile(text, name + '.py', 'exec'), module.__dict__)\n"
    "sys.modules['board.main'].main()\n"
)


def call_board(
    ssh: SshRunner,
    board: Board,
    action: str,
    request: dict[str, Any] | None = None,
    pieces: Iterable[bytes] = (),
    seconds: float = 180.0,
) -> dict[str, Any]:
    """Do one action on the board and return its answer; raise one line if it fails."""
    sources = read_sources()
    content = {"action": action, "folder": board.folder, **(request or {})}
    words = [board.python, "-c", BOOTSTRAP, str(len(sources))]
    stream = join_input(sources, json.dumps(content).encode() + b"\n", pieces)
    return read_answer(board, ssh.run(board, words, stream, seconds))


def join_input(sources: bytes, request: bytes, pieces: Iterable[bytes]) -> Iterable[bytes]:
    yield sources
    yield request
    yield from pieces


@cache
def read_sources() -> bytes:
    """Return the modules that run on a board, in the order of their imports, as JSON."""
    folder = files(__package__) / "board"
    texts = [(name, (folder / f"{name}.py").read_text()) for name in MODULES]
    return json.dumps(texts).encode()


def read_answer(board: Board, answer: Answer) -> dict[str, Any]:
    """Return the answer's content; explain anything else in one line."""
    if answer.code in (NOT_FOUND, 126):
        raise BoardError(f"it has no Python named {board.python}; install Python 3.11 or newer")
    # a shell may greet before: our answer is the last line
    last = (answer.out.splitlines() or [b""])[-1]
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
        result: dict[str, Any] = content["answer"]
        return result
    except (ValueError, KeyError, TypeError):
        what = explain(answer.err).removeprefix("ssh failed ")
        raise BoardError(f"its Python ({board.python}) failed {what}") from None
