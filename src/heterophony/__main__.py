"""``python -m heterophony``."""

import sys
from contextlib import suppress
from pathlib import Path

with suppress(OSError):  # the current folder was deleted
    # Python searches the current folder first, and would import any file there as a package
    if not sys.flags.safe_path and sys.path[0] == str(here := Path.cwd()):
        del sys.path[0]
        if here == Path(__file__).resolve().parents[1]:
            sys.path.append(str(here))  # it holds heterophony itself, which child processes import

from .cli import main  # only now: its imports must not find those files

main()
