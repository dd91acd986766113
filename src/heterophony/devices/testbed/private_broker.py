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
from ...core.files import disk
from ...engines.pool import CONTEXT
from ..broker import enrolment, process
from ..broker.broker import Broker
from ..broker.enrolment import Enrolment
from .processes import wait_for_testbed


class PrivateBroker:
    """Mosquitto in a folder, for this machine alone, on a port that is free."""

    def __init__(self, folder: Path) -> None:
        """One that a killed testbed left there is ended first."""
        process.stop(folder)
        with disk(folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.broker = Broker(folder)
        self.keeper = CONTEXT.Process(target=keep, args=(folder,), daemon=True)
        self.keeper.start()
        self.alive: int | None = None  # readable once Mosquitto is no more
        try:
            self.up()
        except BaseException:
            self.end()
            raise

    def up(self) -> None:
        """Start it, at first on any port, then always on that one."""
        first = None if self.broker.file.exists() else 0
        self.port = self.broker.up(lan=False, port=first)[0].port
        number = self.broker.pid()
        self.alive = None if number is None else os.pidfd_open(number)

    def again(self) -> None:
        """Kill it, if it still lives, and start it again."""
        if self.alive is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.alive, signal.SIGKILL)
            if not select.select([self.alive], [], [], process.PATIENCE)[0]:
                raise BrokerError("Mosquitto does not end")
            self.let_go()
        self.up()

    def enrolled(self, name: str) -> Enrolment:
        return self.broker.enrol(name, self.broker.folder / f"{name}.toml")

    def server(self) -> Enrolment:
        return enrolment.read(self.broker.server)

    def end(self) -> None:
        """It and its folder, which holds keys, are no more; what fails is left to the keeper."""
        with suppress(HeterophonyError):
            process.stop(self.broker.folder)
            shutil.rmtree(self.broker.folder, ignore_errors=True)
            self.keeper.kill()
            self.keeper.join()
        self.let_go()

    def let_go(self) -> None:
        if self.alive is not None:
            os.close(self.alive)
            self.alive = None


def keep(folder: Path) -> None:
    """Mosquitto is nobody's child: when the testbed is no more, it is ended from here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_for_testbed()
    until = time.monotonic() + process.PATIENCE
    while time.monotonic() < until:
        try:
            process.stop(folder)
            return
        except BusyError:  # it is just being started
            time.sleep(process.PAUSE)
