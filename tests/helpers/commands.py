"""Call the command line in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from heterophony.cli import app

# all settings for which digits have defaults of their own, so that no note says which apply
TRAINING = ("training.batch=20", "training.lr=0.01", "training.momentum=0.9")


def call(*words: str | Path) -> Result:
    """Call a command and return its result; raise any exception but SystemExit."""
    done = CliRunner().invoke(app, [str(w) for w in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def refused(code: int, *words: str | Path) -> str:
    """Call a command that must exit with ``code``; return its one line on stderr without ``error:``."""
    done = call(*words)
    assert done.exit_code == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
