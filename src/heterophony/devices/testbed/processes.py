"""The processes of a testbed, the server and the devices.

They come from a fork server that has imported torch already, and tell the testbed through a pipe
what there is to say: words, events of the run, at last perhaps an error. All end with the testbed,
however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ...config.reading import read_config
from ...core.errors import EngineError, HeterophonyError
from ...engines.pool import CONTEXT, configure_worker_process
from ...run.store import RunFolder
from ...run.summary import Event
from ..broker.enrolment import Enrolment
from ..device import Device
from ..server import serve

ProcessMessage = str | Event | HeterophonyError
SendMessage = Callable[[ProcessMessage], None]
RUN_NAME = "testbed"  # the run's name; the broker has no other


class SupervisedProcess:
    """One of the processes, and our end of its pipe; after an end it can be started again."""

    def __init__(self, name: str, work: Callable[..., None], *args: object) -> None:
        self.name, self.target = name, (work, *args)
        self.start()

    def start(self) -> None:
        self.pipe, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=run_child, args=(theirs, *self.target), daemon=True)
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.wait_for_exit()

    def wait_for_exit(self, seconds: float | None = None) -> int | None:
        """How it ended, once it has; None if that takes longer."""
        self.process.join(seconds)
        if self.process.exitcode is not None:
            self.pipe.close()
        return self.process.exitcode


# In the processes ---------------------------------------------------------------------------


def run_child(pipe: Any, work: Callable[..., None], *args: object) -> None:
    """The life of such a process; what goes wrong is told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the testbed's to answer
    configure_worker_process()
    threading.Thread(target=exit_with_testbed, daemon=True).start()
    try:
        work(pipe.send, *args)
    except HeterophonyError as error:
        pipe.send(type(error)(str(error)))
    except Exception as error:
        pipe.send(EngineError(f"{error!r}\n{traceback.format_exc()}"))


def exit_with_testbed() -> None:
    """The fork server lives as long as any of us: that it is our parent is no help."""
    wait_for_testbed_exit()
    os._exit(1)


def wait_for_testbed_exit() -> None:
    """Returns when the testbed is no more."""
    testbed = multiprocessing.parent_process()
    assert testbed is not None
    connection.wait([testbed.sentinel])


def run_server(tell: SendMessage, folder: Path, enrolment: Enrolment) -> None:
    """The server; the folder's lock is the testbed's."""
    serve(read_config(folder / "config.toml"), RunFolder(folder), enrolment, RUN_NAME, tell, tell)


def run_device(
    tell: SendMessage, enrolment: Enrolment, folder: Path, clients: Sequence[str]
) -> None:
    """A device."""
    Device(enrolment, RUN_NAME, folder, clients, tell).run()
