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

from ...core.errors import (
    ConfigError,
    EngineError,
    FolderError,
    HeterophonyError,
)
from ...core.files import disk, read_json, write_json
from ...engines.pool import warm
from ...run.store import RunFolder
from ...run.summary import Event
from ..broker.enrolment import Enrolment
from .cuttable_proxy import Cable
from .fault_injection import strike
from .private_broker import PrivateBroker
from .processes import (
    Part,
    Said,
    serving,
    taking_part,
)

USUAL = 10  # devices, if there are so many clients
LEAVING = 10.0  # seconds that devices may take to hear that the run has ended
Say = Callable[[str], None]


class Testbed:
    """The processes of one run. The folder must be ours (locked).

    ``faults`` are the kinds of strikes to choose from after every round.
    """

    __test__ = False  # for pytest it is no test
    server_work = staticmethod(serving)

    def __init__(
        self,
        folder: RunFolder,
        hands: Sequence[Sequence[str]],
        seed: int,
        faults: Sequence[str],
        say: Say,
        on_event: Callable[[Event], None],
    ) -> None:
        self.run, self.hands, self.seed, self.faults = folder.path.absolute(), hands, seed, faults
        self.home = home(folder)
        self.say, self.on_event = say, on_event
        self.broker: PrivateBroker | None = None
        self.devices: list[Part] = []
        self.parts: list[Part] = []  # the server and the devices, as long as they live
        self.cables: list[Cable] = []
        self.played = -1  # the last round after which there was a strike

    # Beginning and end ----------------------------------------------------------------------
    def __enter__(self) -> Self:
        begin()
        write_json(self.home / "testbed.json", {"devices": len(self.hands)})
        try:
            self.broker = PrivateBroker(self.home / "broker")
            self.server = Part("the server", self.server_work, self.run, self.broker.server())
            self.parts.append(self.server)
            for i, clients in enumerate(self.hands):
                folder = self.home / "devices" / f"{i + 1}"
                known = self.connected(self.broker, f"device-{i + 1}")
                self.devices.append(Part(f"device {i + 1}", taking_part, known, folder, clients))
                self.parts.append(self.devices[-1])
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def connected(self, broker: PrivateBroker, name: str) -> Enrolment:
        """A device's enrolment; where links are to be cut, its way leads through a cable."""
        known = broker.enrolled(name)
        if "network" not in self.faults:
            return known
        self.cables.append(Cable(broker.port))
        return replace(known, port=self.cables[-1].port)

    def end(self) -> None:
        """Nothing that was started is left; also in the answer to a signal."""
        for part in self.parts:
            part.process.kill()
        for part in self.parts:
            part.joined()
        for cable in self.cables:
            cable.close()
        if self.broker:
            self.broker.end()

    # While it runs --------------------------------------------------------------------------
    def play(self) -> None:
        """Look after all, until the server has ended the run."""
        assert self.broker is not None
        while True:
            pipes = {part.pipe: part for part in self.parts}
            mosquitto = [] if self.broker.alive is None else [self.broker.alive]
            for ready in connection.wait([*pipes, *mosquitto]):
                if isinstance(ready, int):
                    self.broker.again()
                    self.say("the broker was killed; it is started again")
                elif (part := pipes[ready]).pipe is ready and self.over(part):  # type: ignore[index]
                    return self.leave()
                break  # it may have changed all others

    def over(self, part: Part) -> bool:
        """Hear what a process has to say; was that the end of the run?"""
        try:
            said: Said = part.pipe.recv()
        except EOFError:
            return self.ended(part)
        if isinstance(said, HeterophonyError):
            raise type(said)(str(said) if part is self.server else f"{part.name}: {said}")
        if isinstance(said, dict):
            self.on_event(said)
            if said["event"] == "round":
                self.strike(said["t"])
        elif part is self.server:
            self.say(said)
        else:  # of use only where something is wrong
            with disk(self.home), open(self.home / "devices.log", "a") as log:
                log.write(f"{part.name}: {said}\n")
        return False

    def ended(self, part: Part) -> bool:
        """Was that the end of the run? Who was killed, by hand or for memory, starts again."""
        code = part.joined()
        if code == 0:  # a device goes when it has heard of the end
            self.parts.remove(part)
            return part is self.server
        if code is None or code > 0:
            raise EngineError(f"{part.name} ended with exit code {code}, for the reason above")
        self.say(f"{part.name} was killed by signal {-code}; it is started again")
        part.start()
        return False

    def leave(self) -> None:
        """Devices hear of the end; one that was just started may not, and needs not."""
        until = time.monotonic() + LEAVING
        for part in self.parts:
            part.joined(max(0.0, until - time.monotonic()))

    def strike(self, t: int) -> None:
        """What goes wrong after round ``t``, once: a server killed then may tell of it again."""
        due = strike(self.faults, self.seed, t, len(self.devices))
        if due is None or t <= self.played:
            return
        self.played, victim = t, self.devices[due.device]
        if due.kind == "network":
            self.cables[due.device].cut()
            self.say(f"round {t}: the link of {victim.name} cut")
        elif due.kind == "broker":
            assert self.broker is not None
            self.broker.again()
            self.say(f"round {t}: the broker killed, back")
        else:
            victim = self.server if due.kind == "server" else victim
            if victim not in self.parts:  # a device that has heard of the end already
                return
            victim.kill()
            victim.start()
            self.say(f"round {t}: {victim.name} killed, back")


def begin() -> None:
    """Start the fork server; it imports torch while the data are read."""
    warm(f"{__package__}.preload")


def home(folder: RunFolder) -> Path:
    """Where all but the run itself lies: what devices keep, and the broker."""
    return folder.path.absolute() / "testbed"


def dealt(clients: Sequence[str], devices: int | None, folder: RunFolder) -> list[list[str]]:
    """The clients of each device, as evenly as it goes; in a run that goes on, as before."""
    record = home(folder) / "testbed.json"
    begun: int | None = read_json(record)["devices"] if record.exists() else None
    count = devices or begun or min(USUAL, len(clients))
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
