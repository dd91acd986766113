"""The broker of a testbed: created anew at every start, and ended with the testbed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from ...config.reading import read_config
from ...core.errors import BrokerError, BusyError, HeterophonyError
from ...core.files import translate_disk_errors
from ...engines.child_processes import CONTEXT, ChildProcess, send_errors, wait_for_parent_exit
from ...runs.events import Event
from ...runs.folder import RunFolder
from ..board import Device
from ..broker import enrolment, process
from ..broker.broker import Broker
from ..broker.enrolment import Enrolment
from ..server import serve

START_ATTEMPTS = 5


class PrivateBroker:
    """Mosquitto in a folder, on a free port, reachable from this machine only."""

    def __init__(self, folder: Path) -> None:
        """Start it; a broker that a killed testbed left in the folder is ended first."""
        process.stop_mosquitto(folder)
        with translate_disk_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.broker = Broker(folder)
        self.cleanup_process = CONTEXT.Process(
            target=stop_after_testbed, args=(folder,), daemon=True
        )
        self.cleanup_process.start()
        self.pidfd: int | None = None  # becomes readable when Mosquitto has ended
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start Mosquitto, again if it is killed meanwhile; always on the port it had at first."""
        for attempt in range(1, START_ATTEMPTS + 1):
            port = None if self.broker.settings_file.exists() else 0
            try:
                self.port = self.broker.start(lan=False, port=port)[0].port
                self.pidfd = open_pidfd(self.broker.find_pid())
                return
            except BrokerError:
                if attempt == START_ATTEMPTS:
                    raise

    def restart(self) -> None:
        """Kill Mosquitto, if it still runs, and start it again."""
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            if not select.select([self.pidfd], [], [], process.TIMEOUT_SECONDS)[0]:
                raise BrokerError(
                    "Mosquitto does not end after SIGKILL; end it by hand, then repeat"
                )
            self.close_pidfd()
        self.start()

    def enrol_device(self, name: str) -> Enrolment:
        return self.broker.enrol(name, self.broker.folder / f"{name}.toml")

    def read_server_enrolment(self) -> Enrolment:
        return enrolment.read_enrolment(self.broker.server_enrolment_file)

    def stop(self) -> None:
        """End Mosquitto and delete its folder, which holds keys.

        If that fails, the clean-up process ends Mosquitto after us.
        """
        with suppress(HeterophonyError):
            process.stop_mosquitto(self.broker.folder)
            shutil.rmtree(self.broker.folder, ignore_errors=True)
            self.cleanup_process.kill()
            self.cleanup_process.join()
        self.close_pidfd()

    def close_pidfd(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def open_pidfd(pid: int | None) -> int:
    """Open a process to be told of its end; raise BrokerError if it has ended already."""
    if pid is not None:
        with suppress(ProcessLookupError):
            return os.pidfd_open(pid)
    raise BrokerError("Mosquitto ended right after its start; see its log")


def stop_after_testbed(folder: Path) -> None:
    """Wait for the end of the testbed, then end Mosquitto, which is no child of the testbed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_parent_exit()
    deadline = time.monotonic() + process.TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            process.stop_mosquitto(folder)
            return
        except BusyError:  # it is being started
            time.sleep(process.POLL_SECONDS)


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
