"""Commands in new processes that start quickly: they are forked from one that has imported torch.

Otherwise they are like those of `subprocess`: they can be killed, and have their own folder,
environment and output. The few tests that need a fresh interpreter do not use this module.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Thread
from typing import Any, TextIO

from heterophony.engines.child_processes import CONTEXT, start_fork_server


class Forked:
    """A process that runs ``heterophony WORDS``, with the methods of ``Popen`` that tests need."""

    def __init__(
        self,
        *words: str | Path,
        env: Mapping[str, str] | None = None,
        before: Callable[[], Any] | None = None,
    ) -> None:
        start_fork_server()
        self.words = list(map(str, words))
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        ends = [end for _, end in pipes]
        how = (self.words, str(Path.cwd()), dict(os.environ if env is None else env), before)
        self.process = CONTEXT.Process(target=become, args=(*how, *ends))
        self.process.start()
        for end in ends:
            end.close()
        self.stdout, self.stderr = (opened(begin) for begin, _ in pipes)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutExpired(self.words, timeout or 0.0)
        return self.process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        said: dict[TextIO, str] = {}
        readers = [Thread(target=lambda f=f: said.update({f: f.read()}), daemon=True)
                   for f in (self.stdout, self.stderr)]  # fmt: skip
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        self.close()
        return said[self.stdout], said[self.stderr]

    def send_signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes of its output."""
        self.stdout.close()
        self.stderr.close()


def opened(end: Connection) -> TextIO:
    file = os.fdopen(os.dup(end.fileno()))
    end.close()
    return file


def become(
    words: list[str],
    folder: str,
    env: dict[str, str],
    before: Callable[[], Any] | None,
    out: Connection,
    err: Connection,
) -> None:
    """Set up the new process as `python -W error -m heterophony` would be, and run the command."""
    for number, end in ((1, out), (2, err)):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    sys.argv = ["heterophony", *words]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the fork server blocks it
    if before:
        before()
    from heterophony.cli import main

    main()
