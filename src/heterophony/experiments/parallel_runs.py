"""Several runs side by side, a process each: faster than one by one where runs are short.

Within a run, workers wait for the last job of every round; runs do not wait for each other. The
process of a run does the jobs itself, or sends them to a cluster.
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

from ..config.reading import read_config
from ..core.errors import DivergedError, EngineError, HeterophonyError
from ..engines.base import ClusterShare
from ..engines.pool import CONTEXT, MAX_ATTEMPTS, configure_worker_process, start_fork_server
from ..run.store import RunFolder
from ..run.summary import Event
from .execute import execute_plan

EventListener = Callable[[Path, Event], None]


@dataclass
class RunProcess:
    """The process of one run, and our end of its pipe."""

    folder: Path
    process: Any
    pipe: connection.Connection
    attempts: int


def run_in_parallel(
    folders: Sequence[Path], width: int, on_event: EventListener, share: ClusterShare | None = None
) -> dict[Path, str]:
    """Run what is left of these runs, ``width`` at a time; a process that dies is replaced.

    Returns which runs diverged, and how: that is a result, and no reason to stop the others.
    """
    start_fork_server()
    diverged: dict[Path, str] = {}
    waiting = [(folder, 1) for folder in reversed(folders)]
    with kill_runs_at_exit() as runners:
        while waiting or runners:
            while waiting and len(runners) < width:
                runners.append(start_run_process(*waiting.pop(), share))
            by_pipe = {r.pipe: r for r in runners}
            for pipe in connection.wait(list(by_pipe)):
                runner = by_pipe[pipe]  # type: ignore[index]
                try:
                    if forward_message(runner, on_event):
                        continue
                except DivergedError as error:
                    diverged[runner.folder] = str(error)
                runners.remove(runner)
                runner.process.join()
                if runner.process.exitcode != 0:
                    waiting.append(requeue_run(runner))
    return diverged


@contextmanager
def kill_runs_at_exit() -> Iterator[list[RunProcess]]:
    """Collect processes, and kill those that are left at the end."""
    runners: list[RunProcess] = []
    try:
        yield runners
    finally:
        for runner in runners:
            runner.process.kill()  # run folders survive that
            runner.process.join()


def start_run_process(folder: Path, attempt: int, share: ClusterShare | None) -> RunProcess:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(
        target=run_in_child_process, args=(theirs, str(folder), share), daemon=True
    )
    process.start()
    theirs.close()
    return RunProcess(folder, process, ours, attempt)


def forward_message(runner: RunProcess, on_event: EventListener) -> bool:
    """Forward one message; return False when the process has ended."""
    try:
        message = runner.pipe.recv()
    except (EOFError, ConnectionResetError):
        runner.pipe.close()
        return False
    if isinstance(message, BaseException):
        raise message
    on_event(runner.folder, message)
    return True


def requeue_run(runner: RunProcess) -> tuple[Path, int]:
    """Return the run to start again; raise if too many of its processes have died."""
    if runner.attempts >= MAX_ATTEMPTS:
        raise EngineError(
            f"{runner.folder}: {MAX_ATTEMPTS} processes died on this run (exit code"
            f" {runner.process.exitcode}); is there enough memory? fewer --workers need less"
        )
    return runner.folder, runner.attempts + 1


# In the process -----------------------------------------------------------------------------


def run_in_child_process(
    pipe: connection.Connection, path: str, share: ClusterShare | None
) -> None:
    """Run one run to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the driver handles Ctrl-C
    configure_worker_process()
    folder = RunFolder(Path(path))
    try:
        folder.reopen()
        config = read_config(folder.config_file)
        plan = config.build_plan(config.build_federation())
        if share is None:
            execute_plan(plan, folder, "serial", None, pipe.send)
        else:
            os.environ.update(share.environment)
            execute_plan(plan, folder, "ray", share.workers, pipe.send, cluster=share.cluster)
    except HeterophonyError as error:
        pipe.send(type(error)(str(error)))
    except Exception as error:
        pipe.send(EngineError(f"{path}: {error!r}\n{traceback.format_exc()}"))
    finally:
        folder.close()
