"""Execute a run in a process that kills itself after a round is recorded, but before it is committed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import heterophony as hp
from helpers.support import played
from heterophony.core import files as secret_file
from heterophony.engines.child_processes import CONTEXT, start_fork_server
from heterophony.runs.events import Event


def run_until_killed(
    algorithm: hp.Algorithm,
    protection: hp.Protection,
    out: Path,
    stop: int,
    secret: bytes,
    how: dict[str, Any],
) -> int | None:
    """Run until round ``stop`` is recorded; return the exit code of the process.

    The process is forked from the fork server: a fork of this process cannot use autograd any more.
    """
    start_fork_server()
    child = CONTEXT.Process(
        target=run_and_kill_itself, args=(algorithm, protection, out, stop, secret, how)
    )
    child.start()
    child.join()
    return child.exitcode


def run_and_kill_itself(
    algorithm: hp.Algorithm,
    protection: hp.Protection,
    out: Path,
    stop: int,
    secret: bytes,
    how: dict[str, Any],
) -> None:
    def kill_itself(event: Event) -> None:
        if event["event"] == "round" and event["t"] == stop:
            signal.raise_signal(signal.SIGKILL)

    secret_file.draw_secret = lambda: secret
    played(algorithm, protection=[protection], out=out, resume=True, on_event=kill_itself, **how)
