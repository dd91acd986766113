"""What the processes of a testbed run: the server, and devices.

They send the testbed log lines, events of the run, and at the end perhaps an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from ...config.reading import read_config
from ...engines.child_processes import ChildProcess, send_errors
from ...runs.events import Event
from ...runs.store import RunFolder
from ..broker.enrolment import Enrolment
from ..device import Device
from ..server import serve

ProcessMessage = str | Event
SendMessage = Callable[[ProcessMessage], None]
RUN_NAME = "testbed"  # on the broker, which serves no other run


class TestbedProcess(ChildProcess):
    """The server or a device. ``work`` gets a function that sends messages, then the arguments."""

    __test__ = False  # for pytest it is no test

    def __init__(self, name: str, work: Callable[..., None], *args: object) -> None:
        self.name = name
        super().__init__(run_and_report, work, *args)


# In the processes ---------------------------------------------------------------------------


def run_and_report(pipe: Connection, work: Callable[..., None], *args: object) -> None:
    """Run the server or a device, and send an error that ends it to the testbed."""
    with send_errors(pipe):
        work(pipe.send, *args)


def run_server(send: SendMessage, folder: Path, enrolment: Enrolment) -> None:
    """Run the server. The testbed holds the lock of the run folder."""
    config = read_config(folder / "config.toml", trust=True)  # the testbed wrote it
    serve(config, RunFolder(folder), enrolment, RUN_NAME, send, send)


def run_device(
    send: SendMessage, enrolment: Enrolment, folder: Path, clients: Sequence[str]
) -> None:
    Device(enrolment, RUN_NAME, folder, clients, send, trust=True).run()
