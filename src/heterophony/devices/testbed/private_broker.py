"""The broker of a testbed: new at every start, as nothing counts that it knows; ended with it."""

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
from ...engines.pool import CONTEXT
from ..broker import enrolment, process
from ..broker.broker import Broker
from ..broker.enrolment import Enrolment
from .processes import wait_for_testbed_exit


class PrivateBroker:
    """Mosquitto in a folder, for this machine alone, on a port that is free."""

    def __init__(self, folder: Path) -> None:
        """One that a killed testbed left there is ended first."""
        process.stop_mosquitto(folder)
        with translate_disk_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.broker = Broker(folder)
        self.cleanup_process = CONTEXT.Process(
            target=stop_after_testbed, args=(folder,), daemon=True
        )
        self.cleanup_process.start()
        self.pidfd: int | None = None  # readable once Mosquitto is no more
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start it, at first on any port, then always on that one."""
        first = None if self.broker.settings_file.exists() else 0
        self.port = self.broker.start(lan=False, port=first)[0].port
        number = self.broker.find_pid()
        self.pidfd = None if number is None else os.pidfd_open(number)

    def restart(self) -> None:
        """Kill it, if it still lives, and start it again."""
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            if not select.select([self.pidfd], [], [], process.TIMEOUT_SECONDS)[0]:
                raise BrokerError("Mosquitto does not end")
            self.close_pidfd()
        self.start()

    def enrol_device(self, name: str) -> Enrolment:
        return self.broker.enrol(name, self.broker.folder / f"{name}.toml")

    def read_server_enrolment(self) -> Enrolment:
        return enrolment.read_enrolment(self.broker.server_enrolment_file)

    def stop(self) -> None:
        """It and its folder, which holds keys, are no more; what fails is left to the keeper."""
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


def stop_after_testbed(folder: Path) -> None:
    """Mosquitto is nobody's child: when the testbed is no more, it is ended from here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_testbed_exit()
    until = time.monotonic() + process.TIMEOUT_SECONDS
    while time.monotonic() < until:
        try:
            process.stop_mosquitto(folder)
            return
        except BusyError:  # it is just being started
            time.sleep(process.POLL_SECONDS)
