"""A run on devices in one process: a real Mosquitto, server and devices in threads.

Torch has one generator per process, which real devices do not share: here only one thread computes
at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heterophony.boards import board as devices
from heterophony.boards import reply_checks
from heterophony.boards.board import Device
from heterophony.boards.broker.certificates import EnrolledClients
from heterophony.boards.broker.enrolment import Enrolment
from heterophony.boards.protocol.server_session import ServerSession
from heterophony.boards.server import serve
from heterophony.config.config import Config
from heterophony.config.reading import read_config
from heterophony.data.federation import Federation
from heterophony.engines.serial import Serial
from heterophony.runs import loop
from heterophony.runs.events import Event
from heterophony.runs.folder import RunFolder
from heterophony.runs.summary import Summary
from heterophony.studies.run import execute_plan

LONG = 120  # seconds; reached only where a test fails
SMALL = {
    "rounds": 2,
    "data.clients": 4,
    "data.partition.alpha": 0.5,
    "model.name": "mlp",
    "training.steps": 2,
    "training.batch": 16,
    "participation.rate": 0.5,
    "evaluation.every": 2,
    "engine.name": "serial",
}
HELD = {"one": ["0", "2"], "two": ["1", "3"]}
ALONE = threading.Lock()
TROUBLE: list[
    Exception
] = []  # of devices; raised in the server, which would otherwise wait for them


def one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    """Let only one device, or the server, compute or build a plan at a time.

    All share one federation and torch's generator; an error in a device's thread ends the server.
    """

    def taking_turns(compute: Callable[..., Any]) -> Callable[..., Any]:
        def alone(*args: Any) -> Any:
            with ALONE:
                return compute(*args)

        return alone

    tick = ServerSession.tick

    def ticking(session: ServerSession, now: float) -> Any:
        if TROUBLE:
            raise TROUBLE.pop()
        return tick(session, now)

    patch.setattr(ServerSession, "tick", ticking)
    patch.setattr(devices, "work", taking_turns(devices.work))
    for name in ("simulate_reply", "list_measures"):
        drawn = getattr(reply_checks.ReplyValidator, name)
        patch.setattr(reply_checks.ReplyValidator, name, taking_turns(drawn))
    patch.setattr(Config, "build_device_plan", taking_turns(Config.build_device_plan))
    patch.setattr(loop, "merge_replies", taking_turns(loop.merge_replies))
    patch.setattr(Config, "build_federation", lambda config: dealt(repr(config.data), config))


DEALT: dict[str, Federation] = {}
DEAL = Config.build_federation


def dealt(key: str, config: Config) -> Federation:
    """Return a shared federation, which nobody changes."""
    with ALONE:
        if key not in DEALT:
            DEALT[key] = DEAL(config)
        return DEALT[key]


def small(algorithm: str, *, trust: bool = False, **settings: Any) -> Config:
    """Return the configuration of a run of about a second."""
    pairs = {"algorithm.name": algorithm, **SMALL, **settings}
    return read_config(None, [f"{key}={value}" for key, value in pairs.items()], trust=trust)


def simulated(
    config: Config, folder: Path, engine: type[Serial] = Serial
) -> tuple[Summary, list[Event]]:
    """Run the same configuration without devices."""
    plan = config.build_plan(config.build_federation())
    return kept(config, folder, lambda out: execute_plan(plan, out, engine(plan, out.client_store)))


def kept(
    config: Config, folder: Path, play: Callable[[RunFolder], Summary]
) -> tuple[Summary, list[Event]]:
    out = RunFolder(folder)
    out.create(config.to_toml())
    try:
        summary = play(out)
        return summary, list(out.iterate_events())
    finally:
        out.close()


class Company:
    """Devices in threads, until their run has ended."""

    def __init__(self, known: dict[str, Enrolment], run: str, folder: Path) -> None:
        self.known, self.run, self.folder = known, run, folder
        self.said: list[str] = []
        self.threads: list[threading.Thread] = []
        self.devices: dict[str, Device] = {}

    def join(self, name: str, clients: Sequence[str], kind: type[Device] = Device) -> Device:
        made = kind(self.known[name], self.run, self.folder / name, clients, self.said.append)
        thread = threading.Thread(target=lived, args=[made], name=f"device {name}", daemon=True)
        self.devices[name] = made
        self.threads.append(thread)
        thread.start()
        return made

    def end(self) -> None:
        for thread in self.threads:
            thread.join(LONG)
            assert not thread.is_alive()


def lived(device: Device) -> None:
    try:
        device.run()
    except Exception as error:
        TROUBLE.append(error)


def on_devices(
    config: Config,
    known: dict[str, Enrolment],
    folder: Path,
    held: Mapping[str, Sequence[str]] = HELD,
    kinds: Mapping[str, type[Device]] | None = None,
    say: Callable[[str], None] = lambda words: None,
    on_event: Callable[[Event, Company], None] = lambda event, company: None,
    enrolled: EnrolledClients | None = None,
) -> tuple[Summary, list[Event]]:
    """Run on devices that each hold these clients; the run is named after ``folder``.

    With ``enrolled``, the broker's folder is known to the server.
    """
    run = folder.name
    company = Company(known, run, folder / "devices")
    for name, clients in held.items():
        company.join(name, clients, (kinds or {}).get(name, Device))

    def play(out: RunFolder) -> Summary:
        def on_each(event: Event) -> None:
            on_event(event, company)

        return serve(config, out, known["server"], run, say, on_each, enrolled)

    result = kept(config, folder / "run", play)
    company.end()
    return result
