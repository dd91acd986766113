"""A device: fetches the run's configuration, holds clients and what they keep, and does its tasks.

Work is done in a thread of its own, so that the network is heard meanwhile. All that must outlive
the process is in the device's folder: memories, and replies that the server has not taken yet.
"""

from __future__ import annotations

import hashlib
import platform
import queue
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from .. import __version__
from ..config.config import Config, resolve
from ..core.algorithm import Reply
from ..core.errors import ConfigError, DivergedError, HeterophonyError
from ..core.tensors import raw
from ..data.client_folders import OWN
from ..data.federation import Federation
from ..jobs.client_store import Place
from ..jobs.plan import Job, Plan, work
from ..population.device_speeds import Devices
from ..population.participation import Uniform
from .broker.enrolment import Enrolment
from .device_folder import Home
from .protocol import job_codec, topics
from .protocol.device_session import Station
from .protocol.messages import Control, Holding, decode
from .protocol.reply_store import Shelf
from .protocol.topics import Publish
from .transport.inbox import Event, Message
from .transport.link import Link, Peer, Will

LIMIT = 1 << 30  # bytes of what one task sends down
MOMENT = 0.05
Say = Callable[[str], None]
Done = tuple[Reply | Exception, float]


class Device:
    """One device in one run, from its start to the end of the run."""

    def __init__(
        self,
        enrolment: Enrolment,
        run: str,
        folder: Path,
        clients: Sequence[str],
        say: Say,
        slow: float = 1.0,
        data: Mapping[str, Path] | None = None,
    ) -> None:
        """``data`` says where each client's own lie, where the run has none to deal."""
        self.folder, self.clients, self.say, self.slow = folder / run, list(clients), say, slow
        self.data = data
        self.plan: Plan | None = None
        self.home = Home(self.folder)
        self.place = Place(self.folder / "clients", self.folder / "scratch")
        shelf, now = Shelf(self.folder / "replies"), time.monotonic()
        self.station = Station(run, enrolment.device, secrets.token_hex(8), shelf, LIMIT, now)
        gone, here = (self.station.status(state) for state in ("gone", "here"))
        self.link = Link(
            Peer(enrolment.address, enrolment.port, enrolment.device, enrolment.context()),
            topics.for_device(run, enrolment.device),
            standing={here.topic: here.payload},
            will=Will(gone.topic, gone.payload),
        )
        self.jobs: queue.Queue[Job] = queue.Queue(1)
        self.results: queue.Queue[Done] = queue.Queue()
        self.told = ""

    def live(self) -> None:
        """Until the run has ended."""
        threading.Thread(target=self.toil, name="work", daemon=True).start()
        with closing(self.home), self.link:
            while not self.over:
                self.hear()
                self.publish(self.station.tick(time.monotonic()))
                self.advance()

    @property
    def over(self) -> bool:
        control = self.station.control
        return control is not None and control.state == "ended"

    def hear(self) -> None:
        """What has arrived, for a moment at most."""
        try:
            item: Message | Event = self.link.inbox.get(timeout=MOMENT)
        except queue.Empty:
            return
        now = time.monotonic()
        if isinstance(item, Message):
            self.publish(self.station.receive(item.topic, item.payload, now))
        elif item.kind == "connected":
            self.publish(self.station.connected(now))
        elif item.kind != "nudge":
            self.say(item.words)

    def advance(self) -> None:
        """Begin, take up work, hand in results; say what is new."""
        now = time.monotonic()
        if self.plan is None and self.station.config is not None:
            self.begin(self.station.config, now)
        while not self.results.empty():
            self.hand_in(*self.results.get(), now)
        if self.plan is not None and (task := self.station.next_work()):
            self.jobs.put(task.job)
        control = self.station.control
        if control is not None:
            self.place.forget(self.clients, before=control.oldest)
        if self.station.refused:
            raise ConfigError(f"the server says: {self.station.refused}")
        words = self.station.rejected
        if words and words != self.told:
            self.say(f"the server says: {words}")
        self.told = words

    def begin(self, text: bytes, now: float) -> None:
        """The configuration is here: deal the data, and say who is here."""
        config = configured(text)
        federation = held_here(config, self.data)
        # who is asked and when is the server's matter, and speaks of clients that are not here
        here = replace(config, participation=Uniform(rate=1.0), devices=Devices())
        self.plan = here.on_devices(federation)
        unknown = [c for c in self.clients if c not in federation.clients]
        if unknown:
            raise ConfigError(f"--clients: the run has no client '{unknown[0]}'")
        if config.evaluation.share_personal:
            self.say("the run asks for personal parts, only to measure G, where G rests on them")
        held, home = [holding(federation, c) for c in self.clients], self.home.name
        self.publish(self.station.introduce(__version__, held, hardware(), now, home))

    def hand_in(self, result: Reply | Exception, seconds: float, now: float) -> None:
        if isinstance(result, Exception):
            self.publish(self.station.failed(result, not isinstance(result, DivergedError), now))
        else:
            aside = self.plan is not None and self.plan.share_personal
            self.publish(self.station.finished(job_codec.encode_reply(result, aside), seconds, now))

    def publish(self, messages: Sequence[Publish]) -> None:
        for topic, payload, retain in messages:
            self.link.publish(topic, payload, retain)

    # In the thread --------------------------------------------------------------------------
    def toil(self) -> None:
        """One job after the other, in one torch thread: the bits of every other engine."""
        torch.set_num_threads(1)
        while True:
            job, begun = self.jobs.get(), time.monotonic()
            assert self.plan is not None
            result: Reply | Exception
            try:
                result = work(self.plan, job, self.place)
            except HeterophonyError as error:
                result = error
            except Exception as error:  # whatever it is, the server hears of it
                result = HeterophonyError(repr(error))
            taken = time.monotonic() - begun
            if self.slow > 1:
                time.sleep(taken * (self.slow - 1))
            self.results.put((result, taken * self.slow))
            self.link.inbox.offer(Event("nudge", "a job is done"))


def configured(text: bytes) -> Config:
    """The server's configuration; it comes over the network, so it is checked like any other."""
    try:
        return resolve(tomllib.loads(text.decode()))
    except (ValueError, tomllib.TOMLDecodeError):
        raise ConfigError("the server's configuration is not valid TOML") from None


def held_here(config: Config, data: Mapping[str, Path] | None) -> Federation:
    """What is dealt, for all clients, or what the clients of this device have of their own."""
    if (config.data.name == OWN) != (data is not None):
        raise ConfigError(
            f"--data: the run deals {config.data.name} itself; leave it out, and name --clients"
            if data is not None
            else "--data: missing; the clients of this run have data of their own"
        )
    return config.federation() if data is None else config.brought(data)


def holding(federation: Federation, client: str) -> Holding:
    """What is told of a client: how much data, of which kind, and a digest."""
    i = federation.clients.index(client)
    sizes = {part: federation.sizes(part)[client] for part in ("train", "test", "validation")}
    digest = hashlib.sha256()
    for part in [p for p in sizes if sizes[p]]:
        samples = federation.samples(client, part)
        digest.update(raw(samples.stored_all()))
        digest.update(raw(samples.labels))
    counts = tuple(int(n) for n in federation.counts()[i])
    return Holding(
        client, **sizes, labels=counts, data_sha256=digest.hexdigest(), shape=federation.shape,
        classes=federation.classes, type=str(federation.x.dtype).removeprefix("torch."),
    )  # fmt: skip


def hardware() -> dict[str, str]:
    """For people to look at."""
    return {"machine": platform.machine(), "system": platform.system(), "torch": torch.__version__}


def announced(enrolment: Enrolment, say: Say) -> str:
    """The run that a server announces on this broker; waits for one."""
    peer = Peer(enrolment.address, enrolment.port, enrolment.device, enrolment.context())
    say("waiting for a server")
    with Link(peer, [f"{topics.ROOT}/+/ctl"]) as link:
        while True:
            item = link.inbox.get()
            if isinstance(item, Event):
                if item.kind != "connected":
                    say(item.words)
                continue
            try:
                control = decode(item.payload, Control)
            except HeterophonyError:
                continue
            if control.state != "ended":
                return control.run
