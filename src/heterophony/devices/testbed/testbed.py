"""A whole testbed on one machine: a broker of its own, the server, and devices, as processes.

The testbed only looks after them. Who is killed, by it or by anybody, is started again, and what
they know is in the run's folder: the result has the bits of a simulation, whatever happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from multiprocessing import connection
from pathlib import Path
from typing import Self

from ...core.errors import ConfigError, EngineError, FolderError, HeterophonyError
from ...core.files import read_json, translate_disk_errors, write_json
from ...engines.pool import start_fork_server
from ...run.events import Event
from ...run.store import RunFolder
from ..broker.enrolment import Enrolment
from .cuttable_proxy import CuttableProxy
from .fault_injection import draw_fault
from .private_broker import PrivateBroker
from .processes import ProcessMessage, SupervisedProcess, run_device, run_server

DEFAULT_DEVICES = 10  # devices, if there are so many clients
EXIT_SECONDS = 10.0  # seconds that devices may take to hear that the run has ended
Say = Callable[[str], None]


class Testbed:
    """The processes of one run. The folder must be ours (locked).

    ``faults`` are the kinds of strikes to choose from after every round.
    """

    __test__ = False  # for pytest it is no test
    server_target = staticmethod(run_server)

    def __init__(
        self,
        folder: RunFolder,
        hands: Sequence[Sequence[str]],
        seed: int,
        faults: Sequence[str],
        say: Say,
        on_event: Callable[[Event], None],
    ) -> None:
        self.run_folder, self.clients_by_device, self.seed, self.faults = (
            folder.path.absolute(),
            hands,
            seed,
            faults,
        )
        self.folder = get_testbed_folder(folder)
        self.say, self.on_event = say, on_event
        self.broker: PrivateBroker | None = None
        self.devices: list[SupervisedProcess] = []
        self.processes: list[
            SupervisedProcess
        ] = []  # the server and the devices, as long as they live
        self.proxies: list[CuttableProxy] = []
        self.last_fault_round = -1  # the last round after which there was a strike

    # Beginning and end ----------------------------------------------------------------------
    def __enter__(self) -> Self:
        start_testbed_fork_server()
        write_json(self.folder / "testbed.json", {"devices": len(self.clients_by_device)})
        try:
            self.broker = PrivateBroker(self.folder / "broker")
            self.server = SupervisedProcess(
                "the server",
                self.server_target,
                self.run_folder,
                self.broker.read_server_enrolment(),
            )
            self.processes.append(self.server)
            for i, clients in enumerate(self.clients_by_device):
                folder = self.folder / "devices" / f"{i + 1}"
                known = self.enrol_device(self.broker, f"device-{i + 1}")
                self.devices.append(
                    SupervisedProcess(f"device {i + 1}", run_device, known, folder, clients)
                )
                self.processes.append(self.devices[-1])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def enrol_device(self, broker: PrivateBroker, name: str) -> Enrolment:
        """A device's enrolment; where links are to be cut, its way leads through a cable."""
        known = broker.enrol_device(name)
        if "network" not in self.faults:
            return known
        self.proxies.append(CuttableProxy(broker.port))
        return replace(known, port=self.proxies[-1].port)

    def stop(self) -> None:
        """Nothing that was started is left; also in the answer to a signal."""
        for part in self.processes:
            part.process.kill()
        for part in self.processes:
            part.wait_for_exit()
        for cable in self.proxies:
            cable.close()
        if self.broker:
            self.broker.stop()

    # While it runs --------------------------------------------------------------------------
    def supervise(self) -> None:
        """Look after all, until the server has ended the run."""
        assert self.broker is not None
        while True:
            pipes = {part.pipe: part for part in self.processes}
            mosquitto = [] if self.broker.pidfd is None else [self.broker.pidfd]
            for ready in connection.wait([*pipes, *mosquitto]):
                if isinstance(ready, int):
                    self.broker.restart()
                    self.say("the broker was killed; it is started again")
                elif (part := pipes[ready]).pipe is ready and self.handle_message(part):  # type: ignore[index]
                    return self.wait_for_devices()
                break  # it may have changed all others

    def handle_message(self, part: SupervisedProcess) -> bool:
        """Hear what a process has to say; was that the end of the run?"""
        try:
            said: ProcessMessage = part.pipe.recv()
        except EOFError:
            return self.handle_exit(part)
        if isinstance(said, HeterophonyError):
            raise type(said)(str(said) if part is self.server else f"{part.name}: {said}")
        if isinstance(said, dict):
            self.on_event(said)
            if said["event"] == "round":
                self.inject_fault(said["t"])
        elif part is self.server:
            self.say(said)
        else:  # of use only where something is wrong
            with translate_disk_errors(self.folder), open(self.folder / "devices.log", "a") as log:
                log.write(f"{part.name}: {said}\n")
        return False

    def handle_exit(self, part: SupervisedProcess) -> bool:
        """Was that the end of the run? Who was killed, by hand or for memory, starts again."""
        code = part.wait_for_exit()
        if code == 0:  # a device goes when it has heard of the end
            self.processes.remove(part)
            return part is self.server
        if code is None or code > 0:
            raise EngineError(f"{part.name} ended with exit code {code}, for the reason above")
        self.say(f"{part.name} was killed by signal {-code}; it is started again")
        part.start()
        return False

    def wait_for_devices(self) -> None:
        """Devices hear of the end; one that was just started may not, and needs not."""
        until = time.monotonic() + EXIT_SECONDS
        for part in self.processes:
            part.wait_for_exit(max(0.0, until - time.monotonic()))

    def inject_fault(self, t: int) -> None:
        """What goes wrong after round ``t``, once: a server killed then may tell of it again."""
        due = draw_fault(self.faults, self.seed, t, len(self.devices))
        if due is None or t <= self.last_fault_round:
            return
        self.last_fault_round, victim = t, self.devices[due.device]
        if due.kind == "network":
            self.proxies[due.device].cut()
            self.say(f"round {t}: the link of {victim.name} cut")
        elif due.kind == "broker":
            assert self.broker is not None
            self.broker.restart()
            self.say(f"round {t}: the broker killed, back")
        else:
            victim = self.server if due.kind == "server" else victim
            if victim not in self.processes:  # a device that has heard of the end already
                return
            victim.kill()
            victim.start()
            self.say(f"round {t}: {victim.name} killed, back")


def start_testbed_fork_server() -> None:
    """Start the fork server; it imports torch while the data are read."""
    start_fork_server(f"{__package__}.preload")


def get_testbed_folder(folder: RunFolder) -> Path:
    """Where all but the run itself lies: what devices keep, and the broker."""
    return folder.path.absolute() / "testbed"


def assign_clients(
    clients: Sequence[str], devices: int | None, folder: RunFolder
) -> list[list[str]]:
    """The clients of each device, as evenly as it goes; in a run that goes on, as before."""
    record = get_testbed_folder(folder) / "testbed.json"
    begun: int | None = read_json(record)["devices"] if record.exists() else None
    count = devices or begun or min(DEFAULT_DEVICES, len(clients))
    if begun and count != begun:
        raise FolderError(
            f"{folder.path} was begun with {begun} devices: say --devices {begun},"
            " or choose another --out"
        )
    if count > len(clients):
        raise ConfigError(
            f"--devices {count}: there are only {len(clients)} clients;"
            f" use fewer devices, or -c data.clients={count}"
        )
    bounds = [len(clients) * i // count for i in range(count + 1)]
    return [list(clients[a:b]) for a, b in pairwise(bounds)]
