"""The device's side of the conversation: who it is, what it hears, what it says again.

No threads, no clock, no network. All that must outlive the process is on the shelf; everything
else the server says again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.errors import CodecError
from . import chunks, messages, topics
from .backoff import Patience
from .messages import (
    Control,
    Hello,
    Holding,
    Message,
    Metrics,
    Refused,
    Rejected,
    Status,
    Taken,
    Task,
    Want,
    Welcome,
)
from .reply_store import Shelf
from .task_queue import Desk, Work
from .topics import Address, Publish

STATES = ("waiting", "playing", "ended")


class Station:
    """One device in one run; ``session`` is new at each start, ``limit`` is of a blob's bytes."""

    def __init__(
        self, run: str, device: str, session: str, shelf: Shelf, limit: int, now: float
    ) -> None:
        self.run, self.device, self.session = run, device, session
        self.desk = Desk(shelf, limit, now)
        self.control: Control | None = None
        self.hello: Hello | None = None
        self.welcome = False
        self.refused = self.rejected = ""  # the server's words: to the device; to its last reply
        self.presence, self.greeting = Patience(now), Patience(now)

    # What the device does -------------------------------------------------------------------
    @property
    def config(self) -> bytes | None:
        """The run's configuration as the server has it, once it is here."""
        return self.desk.pantry.blobs.get(self.control.config.sha256) if self.control else None

    def introduce(
        self,
        version: str,
        clients: Sequence[Holding],
        hardware: Mapping[str, str],
        now: float,
        home: str = "",
    ) -> list[Publish]:
        """Say which clients are here; that takes the configuration, hence comes after it."""
        assert self.control is not None
        epoch, config = self.control.epoch, self.control.config.sha256
        self.hello = Hello(self.session, epoch, version, config, tuple(clients), hardware, home)
        self.welcome, self.refused = False, ""
        return self.greet(now)

    def next_work(self) -> Work | None:
        """The next job, if there is one and none is being done."""
        return self.desk.next_work()

    def finished(self, reply: bytes, seconds: float, now: float) -> list[Publish]:
        """The job is done; this is its reply."""
        return self.say(self.desk.finished(reply, seconds, now))

    def failed(self, why: object, again: bool, now: float) -> list[Publish]:
        """The job could not be done; might it be, ``again``?"""
        return self.say(self.desk.failed(why, again, now))

    def report(self, values: Mapping[str, float]) -> list[Publish]:
        """Numbers to be shown."""
        return self.say([Metrics(values)])

    def status(self, state: str) -> Publish:
        """Here, or gone (which is also the last will)."""
        topic = topics.of_device(self.run, self.device, "status")
        return Publish(topic, messages.encode(Status(state, self.session)), retain=True)

    # What the network brings ----------------------------------------------------------------
    def connected(self, now: float) -> list[Publish]:
        """A new connection: all that the other side may have missed."""
        self.presence.renew(now)
        return [self.status("here"), *self.greet(now), *self.say(self.desk.again(now))]

    def tick(self, now: float) -> list[Publish]:
        """What to say again, after a silence."""
        out = [self.status("here")] if self.presence.over(now) else []
        greeting = self.greeted() if self.greeting.over(now) else []
        return [*out, *greeting, *self.say(self.desk.tick(now))]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publish]:
        """Answer a message; what is not for this device, or damaged, is as if lost."""
        try:
            address = topics.read(topic)
            if address.run != self.run or address.device not in ("", self.device):
                return []
            return self.heard(address, payload, now)
        except CodecError:
            return []

    def heard(self, address: Address, payload: bytes, now: float) -> list[Publish]:
        if address.channel == "ctl":
            return self.stands(messages.decode(payload, Control), now)
        if address.channel == "down/chunk":
            return self.say(self.desk.chunk(chunks.decode(payload), now))
        if address.channel == "down":
            return self.say(self.told(messages.decode(payload, *messages.FROM_SERVER), now))
        return []

    def stands(self, control: Control, now: float) -> list[Publish]:
        """How the run stands; what is older than what we know was delayed on its way."""
        before = self.control
        if control.run != self.run or (before and age(control) < age(before)):
            return []
        self.control = control
        out = self.say(self.desk.stands(control, now))
        if before is None or before.epoch != control.epoch:  # this server does not know us
            self.welcome, self.refused = False, ""
            out += self.greet(now)
        return out

    def told(self, message: Message, now: float) -> list[Message | bytes]:
        match message:
            case Welcome(session, epoch) if self.meant(session, epoch):
                self.welcome, self.refused = True, ""
            case Refused(session, epoch, why) if self.meant(session, epoch) and not self.welcome:
                self.refused = why
            case Task() if self.hello and message.client in {c.name for c in self.hello.clients}:
                return self.desk.task(message, now)
            case Want():
                return self.desk.wanted(message, now)
            case Taken(id):
                self.desk.taken(id)
            case Rejected(id, attempt, why):
                self.rejected = why
                self.desk.rejected(id, attempt)
        return []

    def meant(self, session: str, epoch: int) -> bool:
        """Is it an answer to our greeting, of this start to this start?"""
        now = self.control.epoch if self.control else None
        return (session, epoch) == (self.session, now)

    # Publishing -----------------------------------------------------------------------------
    def greet(self, now: float) -> list[Publish]:
        self.greeting.renew(now)
        return self.greeted()

    def greeted(self) -> list[Publish]:
        """The greeting, as long as it is not answered."""
        if self.hello is None or self.control is None or self.welcome or self.refused:
            return []
        return self.say([replace(self.hello, epoch=self.control.epoch)])

    def say(self, items: Iterable[Message | bytes]) -> list[Publish]:
        """To the server; bytes are chunks."""
        up, chunk = (topics.of_device(self.run, self.device, c) for c in ("up", "up/chunk"))
        return [
            Publish(chunk, item) if isinstance(item, bytes) else Publish(up, messages.encode(item))
            for item in items
        ]


def age(control: Control) -> tuple[int, int, int]:
    """Controls in the order in which a server says them."""
    return control.epoch, control.t, STATES.index(control.state)
