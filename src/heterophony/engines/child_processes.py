"""Child processes: started from a fork server, supervised through a pipe, stopped with their parent.

The fork server has already imported torch, so a child starts in milliseconds. A child sends its
errors through the pipe, and its parent raises them again with the same type.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..core.errors import EngineError, HeterophonyError
from ..core.temporary import create_temporary_folder, remove_temporary_folder

if sys.platform == "darwin":  # libraries that torch loads on macOS do not survive a fork
    CONTEXT = multiprocessing.get_context("spawn")
else:
    CONTEXT = multiprocessing.get_context("forkserver")
# errors raised if the other process has exited
PIPE_CLOSED = EOFError, BrokenPipeError, ConnectionResetError
SAFE_PATH_VARIABLE, SET_BY_US = "PYTHONSAFEPATH", "heterophony"
START_ATTEMPTS = 5
FORK_SERVER_DIED = 255  # exit code that Python reports for a child whose fork server has exited
PR_SET_PDEATHSIG, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3  # constants of Linux and glibc


def start_fork_server(*preload: str) -> None:
    """Start the fork server now, on platforms that have one, so that torch is imported in the background.

    ``preload`` names more modules to import. A running server is left as it is.

    Ctrl-C reaches every process of the terminal, but only the parent must act on it. So the server and
    its children block it.
    """
    forget_missing_script()
    if CONTEXT.get_start_method() != "forkserver":
        return
    CONTEXT.set_forkserver_preload([f"{__package__}.fork_server", f"{__package__}.pool", *preload])
    ensure_fork_server()


def ensure_fork_server() -> None:
    """Start the fork server unless it is running; restart it if it was killed."""
    keep_sockets_in_own_folder()
    with safe_path():
        resource_tracker.ensure_running()  # the tracker sets the signal mask itself, so start it first
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_sockets_in_own_folder() -> None:
    """Make multiprocessing put its sockets in a temporary folder, removed even if this process is killed."""
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    if config.get("tempdir") is None:
        folder = create_temporary_folder(socket="listener-12345678")
        config["tempdir"] = str(folder)
        atexit.register(remove_temporary_folder, folder)


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep Python processes started inside the ``with`` block from searching the current folder first.

    Python starts them with ``-c``, which would search it first. They get this process's ``sys.path`` before
    they import any of the user's modules.
    """
    if SAFE_PATH_VARIABLE in os.environ:
        yield
        return
    os.environ[SAFE_PATH_VARIABLE] = SET_BY_US
    try:
        yield
    finally:
        del os.environ[SAFE_PATH_VARIABLE]


def exit_if_script_is_imported() -> None:
    """Exit if this process is a child that still imports its parent's script; call this first.

    Such a script starts children without ``if __name__ == "__main__":``. The parent reports
    this in one line; without this check, Python would print a long traceback for every child.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)


def forget_missing_script() -> None:
    """Keep child processes from importing a script that is not a file, such as one read from a pipe."""
    main = sys.modules["__main__"]
    if not Path(getattr(main, "__file__", None) or __file__).exists():
        del main.__file__


class ChildProcess:
    """A process that runs ``target(pipe, *args)``, and the parent's end of the pipe.

    It can be started again after it has exited. ``target`` must be importable.
    """

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        self.target, self.args = target, args
        self.start()

    def start(self) -> None:
        """Start the process; try again if the process or the fork server is killed meanwhile."""
        for attempt in range(START_ATTEMPTS):
            self.pipe, theirs = CONTEXT.Pipe()
            self.process: Any = CONTEXT.Process(
                target=run_child, args=(theirs, self.target, *self.args), daemon=True
            )
            with theirs, suppress(*PIPE_CLOSED, ConnectionRefusedError):
                ensure_fork_server()
                with safe_path():
                    self.process.start()
                return
            self.pipe.close()
            time.sleep(0.1 * 2**attempt)  # a server that is dying still looks alive for a moment
        raise EngineError(
            "a process could not be started: the fork server exited every time,"
            " possibly because memory ran out"
        )

    def receive(self) -> Any:
        """Receive a message from the child; raise the error that it sent, or EOFError if it has exited."""
        try:
            message = self.pipe.recv()
        except ConnectionResetError:
            raise EOFError from None
        if isinstance(message, BaseException):
            raise message
        return message

    def kill(self) -> None:
        """Kill the child process, as ``kill -9`` does."""
        self.process.kill()
        self.wait_for_exit()

    def wait_for_exit(self, seconds: float | None = None) -> int | None:
        """Wait until the process exits and return its exit code; return None after waiting ``seconds``."""
        self.process.join(seconds)
        if self.process.exitcode is not None:
            self.pipe.close()
        exit_code: int | None = self.process.exitcode
        return exit_code


# In the child -------------------------------------------------------------------------------


def run_child(pipe: Connection, target: Callable[..., None], *args: object) -> None:
    """Prepare this child process, then run the target."""
    gc.freeze()  # otherwise, the first collection would scan, and so copy, what the fork server imported
    gc.enable()  # the fork server has switched it off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to act on
    if os.environ.get(SAFE_PATH_VARIABLE) == SET_BY_US:  # a user's code may start Python itself
        del os.environ[SAFE_PATH_VARIABLE]
    configure_torch()
    set_parent_death_signal()
    threading.Thread(target=exit_with_parent, daemon=True).start()
    target(pipe, *args)


@contextmanager
def send_errors(pipe: Connection, where: str = "") -> Iterator[None]:
    """Send an error raised inside the ``with`` block to the parent process, instead of raising it here."""
    try:
        yield
    except Exception as error:
        with suppress(*PIPE_CLOSED):
            pipe.send(make_sendable(error, where))


def make_sendable(error: Exception, where: str = "") -> HeterophonyError:
    """Copy an error for another process: this package's errors keep their type, other errors their traceback.

    Only the text of an error is sent, because causes and tracebacks may not be picklable.
    """
    if isinstance(error, HeterophonyError):
        return type(error)(str(error))
    trace = "".join(traceback.format_exception(error))
    return EngineError(f"{where}{': ' if where else ''}{error!r}\n{trace}")


def configure_torch() -> None:
    """Set torch to one thread, and keep freed memory instead of returning it to the system."""
    import torch  # imported here: the fork server is started before its parent imports torch

    torch.set_num_threads(1)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if hasattr(libc, "mallopt"):  # glibc: otherwise, every step maps and unmaps its activations
            libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def set_parent_death_signal() -> None:
    """Ask Linux to kill this process when the fork server, which forked it, exits."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_with_parent() -> None:
    """Exit this process when its parent exits, even in the middle of a long job.

    Linux's signal is not enough: the fork server lives as long as any of its children.
    """
    wait_for_parent_exit()
    os._exit(1)


def wait_for_parent_exit() -> None:
    """Wait until the parent process has exited."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
