"""Several runs at a time, each in a process of its own: faster than one by one for short runs.

A round has few jobs, and workers idle until its last one is done. Runs do not wait for each other.
Each process runs its jobs itself, or sends them to a Ray cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..config.reading import read_config
from ..core.accelerator import assign_gpu
from ..core.errors import DivergedError, EngineError
from ..engines.base import MAX_ATTEMPTS, ClusterShare
from ..engines.child_processes import ChildProcess, send_errors, start_fork_server
from ..runs.events import Event
from ..runs.folder import RunFolder
from .execute import execute_plan

EventListener = Callable[[Path, Event], None]
Work = tuple[Callable[..., None], tuple[Any, ...]]  # a function for a child process, its arguments


class RunProcess(ChildProcess):
    """A process that executes one run."""

    def __init__(self, folder: Path, attempt: int, work: Work) -> None:
        self.folder, self.attempt = folder, attempt
        target, arguments = work
        super().__init__(target, *arguments)


def run_in_parallel(
    folders: Sequence[Path],
    width: int,
    on_event: EventListener,
    share: ClusterShare | None = None,
    overrides: Sequence[str] = (),
    get_work: Callable[[Path], Work] | None = None,
) -> dict[Path, str]:
    """Continue these runs to their end, ``width`` at a time; a process that dies is replaced.

    Returns the runs that diverged, with the reason: that is a result, and the others continue.
    ``get_work`` says what the process of a run does; default: what its configuration says, with
    ``overrides``.
    """
    start_fork_server()
    diverged: dict[Path, str] = {}
    waiting = [(folder, 1) for folder in reversed(folders)]
    with kill_runs_at_exit() as runs:
        while waiting or runs:
            while waiting and len(runs) < width:
                folder, attempt = waiting.pop()
                work = (
                    get_work(folder)
                    if get_work
                    else (run_in_child_process, (folder, overrides, share))
                )
                runs.append(RunProcess(folder, attempt, work))
            by_pipe = {r.pipe: r for r in runs}
            for pipe in connection.wait(list(by_pipe)):
                run = by_pipe[pipe]  # type: ignore[index]
                try:
                    event = run.receive()
                except DivergedError as error:
                    diverged[run.folder] = str(error)
                except EOFError:
                    pass
                else:
                    on_event(run.folder, event)
                    continue
                runs.remove(run)
                if run.wait_for_exit() != 0:
                    waiting.append(requeue_run(run))
    return diverged


@contextmanager
def kill_runs_at_exit() -> Iterator[list[RunProcess]]:
    """Kill the processes that are left when this context ends; their runs can be resumed."""
    runs: list[RunProcess] = []
    try:
        yield runs
    finally:
        for run in runs:
            run.kill()


def requeue_run(run: RunProcess) -> tuple[Path, int]:
    """Give the run of a process that died to another one, unless that cannot help."""
    if run.process.exitcode == 1:  # Python's own: it ended before it could begin
        raise EngineError(
            "a process of a run could not start: it imports the script again, so the script must"
            ' call hp.sweep below `if __name__ == "__main__":` (or use the serial engine); any other'
            " reason is printed above"
        )
    if run.attempt >= MAX_ATTEMPTS:
        raise EngineError(
            f"{run.folder}: {MAX_ATTEMPTS} processes died on this run (exit code"
            f" {run.process.exitcode}); is there enough memory? fewer --workers need less"
        )
    return run.folder, run.attempt + 1


def run_in_child_process(
    pipe: connection.Connection, path: Path, overrides: Sequence[str], share: ClusterShare | None
) -> None:
    """Continue one run to its end, in the child process."""
    with send_errors(pipe, str(path)):
        continue_run(path, overrides, share, pipe.send)


def continue_run(
    path: Path,
    overrides: Sequence[str],
    share: ClusterShare | None,
    on_event: Callable[[Event], None],
) -> None:
    """Continue one run to its end: in this process, or on its share of a cluster.

    The parent process has read the folder's configuration, and trusts it.
    """
    folder = RunFolder(path)

    def warn(text: str) -> None:
        """Say nothing: the parent has said that the run continues on another device."""

    try:
        folder.reopen()
        config = read_config(folder.config_file, overrides, trust=True)
        plan = config.build_plan(config.build_federation())
        compute = config.engine.choose_compute()
        if share is None:
            # numbers of processes follow each other, so runs spread over the GPUs
            compute = assign_gpu(compute, os.getpid())
            execute_plan(plan, folder, "serial", None, on_event, warn=warn, compute=compute)
        else:
            os.environ.update(share.environment)
            execute_plan(
                *(plan, folder, "ray", share.workers, on_event),
                warn=warn,
                cluster=share.cluster,
                compute=compute,
            )
    finally:
        folder.close()
