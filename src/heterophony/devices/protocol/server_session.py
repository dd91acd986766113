"""The server's side of the conversation: jobs in, replies out. No I/O, no threads, no clock.

Every answer is a list of messages to publish; if they are lost, a later ``tick`` says them again.
Who may take part, and which reply is good, the hub is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.algorithm import Reply
from ...core.errors import CodecError
from ...engines.base import in_order
from ...jobs.plan import Job
from . import chunks, messages, topics
from .assignments import Assignments, Check, Lost
from .backoff import Patience
from .chunks import Outgoing
from .device_registry import Accept, Guests
from .messages import (
    Control,
    Done,
    Failed,
    Hello,
    Message,
    Metrics,
    Status,
    Want,
    Welcome,
)
from .topics import Address, Publish


class Hub:
    """One run, from one start of the server on. ``limit`` is of the bytes of a reply."""

    def __init__(
        self,
        run: str,
        epoch: int,
        rounds: int,
        config: bytes,
        accept: Accept,
        check: Check,
        limit: int,
        now: float,
        holders: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.config = run, Outgoing.of(config)
        self.control = Control(run, epoch, "waiting", 0, rounds, 0, self.config.blob)
        self.guests = Guests(epoch, self.config.blob.sha256, accept, holders or {})
        self.ledger = self.guests.ledger
        self.ledger.now = now
        self.work = Assignments(run, self.guests, check, limit)
        self.patience = Patience(now)

    # What the server wants ------------------------------------------------------------------
    def submit(self, jobs: Sequence[Job], now: float, oldest: int = 0) -> list[Publish]:
        """Give these jobs, all of one round, to devices; memories before ``oldest`` may go."""
        t = max((j.t for j in jobs), default=self.control.t)
        self.control = replace(self.control, state="playing", t=t, oldest=oldest)
        self.work.give(in_order(jobs), t, now)
        return self.connected(now)

    def arrived(self) -> list[Reply]:
        """The replies that came since the last time."""
        replies, self.work.replies = self.work.replies, []
        return replies

    def given_up(self) -> list[Lost]:
        """The jobs that were given up since the last time."""
        lost, self.work.lost = self.work.lost, []
        return lost

    def abandon(self) -> None:
        """The deadline has passed: no reply to an open task is taken any more."""
        self.work.abandon()

    def end(self) -> list[Publish]:
        """The run is over; devices may go."""
        self.abandon()
        self.control = replace(self.control, state="ended")
        return [self.standing()]

    # What the network brings ----------------------------------------------------------------
    def connected(self, now: float) -> list[Publish]:
        """A broker that was restarted may have forgotten all: say everything again."""
        self.patience.renew(now)
        out = [self.standing()]
        for device in self.guests.known:
            out += self.remind(device, now)
        return out

    def tick(self, now: float) -> list[Publish]:
        """What to say again, after a silence."""
        out = [self.standing()] if self.patience.over(now) else []
        for device, guest in self.guests.known.items():
            if guest.here:
                out += self.say(device, self.work.tick(device, guest, now))
        return out

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publish]:
        """Answer a message; a wrong one is counted against the device whose topic it is on."""
        self.ledger.now = now
        try:
            address = topics.read(topic)
        except CodecError:
            address = None
        if address is None or address.run != self.run or not address.device:
            self.ledger.foreign += 1
            return []
        self.ledger.heard(address.device, len(payload))
        try:
            return self.heard(address, payload, now)
        except CodecError as error:
            self.ledger.wronged(address.device, error)
            return []

    def heard(self, address: Address, payload: bytes, now: float) -> list[Publish]:
        device, guest = address.device, self.guests.known.get(address.device)
        if address.channel == "status":
            back = self.guests.status(device, messages.decode(payload, Status))
            return self.remind(device, now) if back else []
        if address.channel == "up/chunk":
            chunk = chunks.decode(payload)
            return self.say(device, self.work.chunk(device, guest, chunk, now)) if guest else []
        if address.channel == "up":
            return self.answer(device, messages.decode(payload, *messages.FROM_DEVICE), now)
        return []

    def answer(self, device: str, message: Message, now: float) -> list[Publish]:
        guest = self.guests.known.get(device)
        match message, guest:
            case Hello(), _:
                told = self.guests.hello(device, message)
                out = self.say(device, [told] if told else [])
                return out + (self.remind(device, now) if isinstance(told, Welcome) else [])
            case Want(), _ if message.sha256 == self.config.blob.sha256:
                return self.say(device, self.config.answer(message))
            case Want(), _:
                return self.say(device, self.work.wanted(device, message))
            case Done(), guest if guest:
                return self.say(device, self.work.done(device, guest, message, now))
            case Failed(), guest if guest:
                return self.say(device, self.work.failed(device, message, now))
            case Metrics(), guest if guest:
                guest.metrics = message.values
        return []  # of a device that was not welcomed

    # Publishing -----------------------------------------------------------------------------
    def remind(self, device: str, now: float) -> list[Publish]:
        guest = self.guests.known[device]
        return self.say(device, self.work.remind(device, guest, now)) if guest.here else []

    def standing(self) -> Publish:
        """How the run stands, for whoever comes."""
        return Publish(topics.control(self.run), messages.encode(self.control), retain=True)

    def sent(self, taken: Iterable[Publish]) -> None:
        """These messages were handed over to the network; what is for all counts for nobody."""
        for message in taken:
            if device := topics.read(message.topic).device:
                self.ledger.said(device, len(message.payload))

    def say(self, device: str, items: Iterable[Message | bytes]) -> list[Publish]:
        """To a device; bytes are chunks."""
        down, chunk = (topics.of_device(self.run, device, c) for c in ("down", "down/chunk"))
        return [
            Publish(chunk, item)
            if isinstance(item, bytes)
            else Publish(down, messages.encode(item))
            for item in items
        ]
