"""Run commands one after the other in this process, and record how each one exited.

``python trapped_commands.py ANSWERS`` reads the commands from stdin, as JSON. It runs in a folder
of modules that must not be imported; as for `heterophony`, that folder is not on the import path.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


def call(words: list[str]) -> dict[str, object]:
    """Call `heterophony` with these words; return its exit code, its output and its import path."""
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
    """Load a run and ask for its generic model; return the message of the refusal."""
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
