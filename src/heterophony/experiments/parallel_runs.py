"""Several runs side by side, a process each: faster than one by one where runs are short.

A run is made of rounds, and a round of few jobs: workers wait for its last one. Runs do not wait
for each other. The process does the run's jobs itself, or sends them to a cluster.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..config.config import read
from ..core.errors import DivergedError, EngineError, HeterophonyError
from ..engines.base import Share
from ..engines.pool import (
    CONTEXT,
    TRIES,
    settle,
    warm,
)
from ..run.store import RunFolder
from ..run.summary import Event
from .execute import execute

Listener = Callable[[Path, Event], None]


@dataclass
class Runner:
    """A process that plays one run, and our end of its pipe."""

    folder: Path
    process: Any
    pipe: connection.Connection
    tries: int


def play(
    folders: Sequence[Path], width: int, on_event: Listener, share: Share | None = None
) -> dict[Path, str]:
    """Play what is left of these runs, so many at a time; who dies is replaced and goes on.

    Returns which runs diverged, and how: that is a result, and no reason to end the others.
    """
    warm()
    diverged: dict[Path, str] = {}
    waiting = [(folder, 1) for folder in reversed(folders)]
    with ended_with_us() as runners:
        while waiting or runners:
            while waiting and len(runners) < width:
                runners.append(hired(*waiting.pop(), share))
            by_pipe = {r.pipe: r for r in runners}
            for pipe in connection.wait(list(by_pipe)):
                runner = by_pipe[pipe]  # type: ignore[index]
                try:
                    if heard(runner, on_event):
                        continue
                except DivergedError as error:
                    diverged[runner.folder] = str(error)
                runners.remove(runner)
                runner.process.join()
                if runner.process.exitcode != 0:
                    waiting.append(again(runner))
    return diverged


@contextmanager
def ended_with_us() -> Iterator[list[Runner]]:
    """Runners that do not outlive what they are needed for."""
    runners: list[Runner] = []
    try:
        yield runners
    finally:
        for runner in runners:
            runner.process.kill()  # nothing is lost
            runner.process.join()


def hired(folder: Path, tries: int, share: Share | None) -> Runner:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=serve, args=(theirs, str(folder), share), daemon=True)
    process.start()
    theirs.close()
    return Runner(folder, process, ours, tries)


def heard(runner: Runner, on_event: Listener) -> bool:
    """Take one message; False when there will be no more."""
    try:
        message = runner.pipe.recv()
    except (EOFError, ConnectionResetError):
        runner.pipe.close()
        return False
    if isinstance(message, BaseException):
        raise message
    on_event(runner.folder, message)
    return True


def again(runner: Runner) -> tuple[Path, int]:
    if runner.tries >= TRIES:
        raise EngineError(
            f"{runner.folder}: {TRIES} processes died on this run (exit code"
            f" {runner.process.exitcode}); is there enough memory? fewer --workers need less"
        )
    return runner.folder, runner.tries + 1


# In the process -----------------------------------------------------------------------------


def serve(pipe: connection.Connection, path: str, share: Share | None) -> None:
    """Play one run to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    settle()
    folder = RunFolder(Path(path))
    try:
        folder.reopen()
        config = read(folder.config)
        plan = config.plan(config.federation())
        if share is None:
            execute(plan, folder, "serial", None, pipe.send)
        else:
            os.environ.update(share.environment)
            execute(plan, folder, "ray", share.workers, pipe.send, cluster=share.cluster)
    except HeterophonyError as error:
        pipe.send(type(error)(str(error)))
    except Exception as error:
        pipe.send(EngineError(f"{path}: {error!r}\n{traceback.format_exc()}"))
    finally:
        folder.close()
