"""The broker of a testbed: created anew at every start, and ended with the testbed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from ...core.errors import BrokerError, BusyError, HeterophonyError
from ...core.files import translate_disk_errors
from ...engines.child_processes import CONTEXT, wait_for_parent_exit
from ..broker import enrolment, process
from ..broker.broker import Broker
from ..broker.enrolment import Enrolment

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
