"""The server of a run on devices: waits for them, plays the rounds, keeps its journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from .. import __version__
from ..algorithm import Reply
from ..config import Config
from ..data.federation import Federation
from ..errors import ConfigError
from ..faults import Faults
from ..files import read_json, write_json
from ..mqtt import topics
from ..mqtt.checks import Expected
from ..mqtt.enrolment import Enrolment
from ..mqtt.fleet import Fleet, part, publish, pump
from ..mqtt.hub import Hub
from ..mqtt.link import Link, Peer, Will
from ..mqtt.messages import Hello, Holding
from ..mqtt.roster import Held, Roster, roster
from ..plan import Job, Plan
from ..results import Event, Summary
from ..session import execute
from ..store import RunFolder
from .lookout import Lookout

LIMIT = 1 << 30  # bytes of one reply
JOURNAL = "devices.json"
Say = Callable[[str], None]


class Journal:
    """What outlives the server besides the run: who holds which client, with what data."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        told = read_json(self.path) if self.path.is_file() else {}
        self.epoch: int = told.get("epoch", 0) + 1
        self.holders: dict[str, str] = told.get("holders", {})
        self.homes: dict[str, str] = told.get("homes", {})  # by device
        self.held: dict[str, Holding] = {
            name: Holding(**{**h, "labels": tuple(h["labels"]), "shape": tuple(h["shape"])})
            for name, h in told.get("held", {}).items()
        }
        self.save()

    def save(self) -> None:
        held = {name: asdict(h) for name, h in self.held.items()}
        who = {"holders": self.holders, "homes": self.homes, "held": held}
        write_json(self.path, {"epoch": self.epoch, **who})


def serve(
    config: Config,
    folder: RunFolder,
    enrolment: Enrolment,
    run: str,
    say: Say,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Summary:
    """Play what is left of the run. The folder must be ours (locked)."""
    journal = Journal(folder.path)
    expected: list[Expected] = []

    def check(job: Job, reply: Reply) -> None:
        expected[0].check(reply, job)

    def accept(device: str, hello: Hello) -> str:
        if journal.homes.get(device, hello.home) != hello.home:
            return (
                f"device '{device}' began in another folder, where what its clients keep lies;"
                " start it with that one"
            )
        return objection(config, journal.held, hello)

    peer = Peer(enrolment.address, enrolment.port, enrolment.device, enrolment.context())
    will = Will(f"{topics.ROOT}/{run}/server", b"gone")
    now, text = time.monotonic(), folder.config.read_bytes()
    hub = Hub(
        run, journal.epoch, config.top.rounds, text, accept, check, LIMIT, now, journal.holders
    )
    with (
        Link(peer, topics.for_server(run), will=will) as link,
        Lookout(hub, folder.path, say) as lookout,
    ):
        known = gathered(config, hub, link, journal, say, lookout.look)
        plan = planned(config, known)
        expected.append(Expected(plan))
        faults = config.faults
        fleet = Fleet(
            plan,
            hub,
            link,
            expected[0],
            faults.deadline,
            faults.needed,
            folder.oldest,
            say,
            lookout.look,
        )
        summary = execute(plan, folder, fleet, on_event=on_event)
        part(hub, link, say)  # also of a run that had ended: its devices may not have heard of it
    return summary


def names(config: Config) -> list[str]:
    """The clients of the run, in their order."""
    return [str(i) for i in range(config.data.clients)]


def objection(config: Config, held: Mapping[str, Holding], hello: Hello) -> str:
    """Why a device cannot take part with these clients; nothing if it can."""
    if hello.version != __version__:
        return f"it has heterophony {hello.version}, the server {__version__}"
    for client in hello.clients:
        if client.name not in names(config):
            return f"the run has no client '{client.name}'"
        if client.train < 1 or len(client.labels) != client.classes:
            return f"client '{client.name}' has nothing to train on, or not its classes"
        before = held.get(client.name)
        if before is not None and before != client:
            return f"the data of client '{client.name}' are not those it began with"
        other = next(iter(held.values()), client)
        if (client.shape, client.classes) != (other.shape, other.classes):
            return f"examples of client '{client.name}' have another form than those of others"
    return ""


def gathered(
    config: Config, hub: Hub, link: Link, journal: Journal, say: Say, look: Callable[[], None]
) -> Roster:
    """Wait until every client of the run has been introduced, now or before."""
    wanted, told = names(config), ""
    publish(hub, link, [hub.standing()])
    while missing := [c for c in wanted if c not in journal.held]:
        words = f"waiting for {len(missing)} of {len(wanted)} clients"
        if words != told:
            say(words)
            told = words
        pump(hub, link, say, look)
        for device, guest in hub.guests.known.items():
            fresh = {c.name: c for c in guest.hello.clients if c.name not in journal.held}
            if fresh:
                journal.held |= fresh
                journal.homes[device] = guest.hello.home
                journal.holders = dict(hub.guests.holders)
                journal.save()
    first = journal.held[wanted[0]]
    held = {
        c: Held(h.train, h.test, h.validation, tuple(h.labels), h.data_sha256)
        for c, h in ((c, journal.held[c]) for c in wanted)
    }
    labels = tuple(str(i) for i in range(first.classes))
    return roster(config.data.name, held, tuple(first.shape), labels, text=len(first.shape) == 1)


def planned(config: Config, known: Federation) -> Plan:
    """The plan on devices: what goes wrong is real there, and what stays is not averaged."""
    if config.algorithm.pooled:
        raise ConfigError(f"algorithm.name: {config.algorithm_name} has no devices; run it")
    if config.data.new_clients:
        raise ConfigError("data.new_clients: on devices nobody joins after training; leave it out")
    plan = replace(config, faults=Faults()).plan(known)
    return replace(plan, apart=True)
