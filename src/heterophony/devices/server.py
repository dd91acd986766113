"""The server of a run on devices: waits for them, plays the rounds, keeps its journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from ..config.config import Config
from ..core.algorithm import Reply
from ..core.files import read_json, write_json
from ..data.client_folders import OWN, Kind
from ..experiments.execute import execute
from ..jobs.plan import Job
from ..run.store import RunFolder
from ..run.summary import Event, Summary
from .admission import names, objection, playable
from .broker.enrolment import Enrolment
from .engine import (
    Fleet,
    part,
    publish,
    pump,
)
from .protocol import topics
from .protocol.messages import Hello, Holding
from .protocol.server_session import Hub
from .remote_federation import Held, Roster, roster
from .reply_checks import Expected
from .status_writer import Lookout
from .transport.link import Link, Peer, Will

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

    def take(self, device: str, hello: Hello) -> None:
        """These clients are the device's from now on; written down before it hears of it."""
        fresh = {c.name: c for c in hello.clients if c.name not in self.held}
        if fresh:
            self.held |= fresh
            self.holders |= dict.fromkeys(fresh, device)
            self.homes[device] = hello.home
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
    playable(config)
    journal = Journal(folder.path)
    expected: list[Expected] = []

    def check(job: Job, reply: Reply) -> None:
        expected[0].check(reply, job)

    def accept(device: str, hello: Hello) -> str:
        why = objection(config, journal.held, hello)
        if journal.homes.get(device, hello.home) != hello.home:
            why = (
                f"device '{device}' began in another folder, where what its clients keep lies;"
                " start it with that one"
            )
        if not why:
            journal.take(device, hello)
        return why

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
        plan = config.on_devices(known)
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


def gathered(
    config: Config, hub: Hub, link: Link, journal: Journal, say: Say, look: Callable[[], None]
) -> Roster:
    """Wait until every client of the run has been introduced, now or before."""
    count, told = config.data.clients, ""
    publish(hub, link, [hub.standing()])
    while missing := count - len(journal.held):
        words = f"waiting for {missing} of {count} clients"
        if words != told:
            say(words)
            told = words
        pump(hub, link, say, look)
    held = {
        c: Held(h.train, h.test, h.validation, tuple(h.labels), h.data_sha256)
        for c, h in ((c, journal.held[c]) for c in names(config, journal.held))
    }
    first = next(iter(journal.held.values()))
    labels = tuple(str(i) for i in range(first.classes))
    if config.data.name == OWN:
        labels = Kind.of(config.data.shape, config.data.classes).labels
    dtype = getattr(torch, first.type)
    return roster(config.data.name, held, tuple(first.shape), labels, dtype)
