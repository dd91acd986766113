"""Run commands one after the other in this process, and write down how each ended.

``python trapped_commands.py ANSWERS`` reads the commands from its input, as JSON. It runs in a folder
full of traps, as `heterophony` does: the folder is not on its path.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


def call(words: list[str]) -> dict[str, object]:
    """Call `heterophony` with these words; return its exit code and what it said."""
    from heterophony.cli import main

    said, sys.argv = StringIO(), ["heterophony", *words]
    code: object = 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return {"code": code, "said": said.getvalue(), "path": [p for p in sys.path if is_here(p)]}


def is_here(folder: str) -> bool:
    return Path(folder).resolve() == Path.cwd()


def load(folder: str) -> str:
    """Ask from Python for the model of a run; return the refusal."""
    import heterophony as hp

    result = hp.load(folder)
    try:
        result.generic()
    except hp.HeterophonyError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    file = Path(sys.argv[1])
    answers = [
        load(words[1]) if words[0] == "hp.load" else call(words) for words in json.load(sys.stdin)
    ]
    file.write_text(json.dumps(answers))
