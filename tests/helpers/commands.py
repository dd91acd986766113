"""The command line called in this process: its answer, or its one line of refusal."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from heterophony.cli import app


def call(*words: str | Path) -> Result:
    """The command in this process; a real exception is the test's."""
    done = CliRunner().invoke(app, [str(w) for w in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def refused(code: int, *words: str | Path) -> str:
    """The one line on stderr."""
    done = call(*words)
    assert done.exit_code == code
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
