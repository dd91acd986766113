"""The device's side of the conversation: who it is, what it hears, what it says again.

No threads, no clock, no network. All that must outlive the process is on the shelf; everything
else the server says again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.errors import CodecError
from . import chunks, messages, topics
from .messages import (
    ClientSummary,
    Control,
    Hello,
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
from .reply_store import ReplyStore
from .resend_timer import ResendTimer
from .task_queue import ReadyTask, TaskQueue
from .topics import ParsedTopic, Publication


class DeviceSession:
    """One device in one run; ``session`` is new at each start, ``limit`` is of a blob's bytes."""

    def __init__(
        self, run: str, device: str, session: str, shelf: ReplyStore, limit: int, now: float
    ) -> None:
        self.run, self.device, self.session = run, device, session
        self.tasks = TaskQueue(shelf, limit, now)
        self.control: Control | None = None
        self.hello: Hello | None = None
        self.welcomed = False
        self.refusal_reason = self.last_rejection_reason = (
            ""  # the server's words: to the device; to its last reply
        )
        self.presence_timer, self.hello_timer = ResendTimer(now), ResendTimer(now)

    # What the device does -------------------------------------------------------------------
    @property
    def config(self) -> bytes | None:
        """The run's configuration as the server has it, once it is here."""
        return self.tasks.blob_cache.blobs.get(self.control.config.sha256) if self.control else None

    def introduce(
        self,
        version: str,
        clients: Sequence[ClientSummary],
        hardware: Mapping[str, str],
        now: float,
        home: str = "",
    ) -> list[Publication]:
        """Say which clients are here; that takes the configuration, hence comes after it."""
        assert self.control is not None
        epoch, config = self.control.epoch, self.control.config.sha256
        self.hello = Hello(self.session, epoch, version, config, tuple(clients), hardware, home)
        self.welcomed, self.refusal_reason = False, ""
        return self.send_hello(now)

    def take_next_task(self) -> ReadyTask | None:
        """The next job, if there is one and none is being done."""
        return self.tasks.take_next_task()

    def submit_reply(self, reply: bytes, seconds: float, now: float) -> list[Publication]:
        """The job is done; this is its reply."""
        return self.address_to_server(self.tasks.finish_current(reply, seconds, now))

    def submit_failure(self, why: object, again: bool, now: float) -> list[Publication]:
        """The job could not be done; might it be, ``again``?"""
        return self.address_to_server(self.tasks.fail_current(why, again, now))

    def report_metrics(self, values: Mapping[str, float]) -> list[Publication]:
        """Numbers to be shown."""
        return self.address_to_server([Metrics(values)])

    def make_status_publication(self, state: str) -> Publication:
        """Here, or gone (which is also the last will)."""
        topic = topics.make_device_topic(self.run, self.device, "status")
        return Publication(topic, messages.encode_message(Status(state, self.session)), retain=True)

    # What the network brings ----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """A new connection: all that the other side may have missed."""
        self.presence_timer.reset(now)
        return [
            self.make_status_publication("here"),
            *self.send_hello(now),
            *self.address_to_server(self.tasks.repeat_all(now)),
        ]

    def tick(self, now: float) -> list[Publication]:
        """What to say again, after a silence."""
        out = (
            [self.make_status_publication("here")]
            if self.presence_timer.advance_if_due(now)
            else []
        )
        greeting = self.repeat_hello() if self.hello_timer.advance_if_due(now) else []
        return [*out, *greeting, *self.address_to_server(self.tasks.repeat_overdue(now))]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message; what is not for this device, or damaged, is as if lost."""
        try:
            address = topics.parse_topic(topic)
            if address.run != self.run or address.device not in ("", self.device):
                return []
            return self.dispatch(address, payload, now)
        except CodecError:
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        if address.channel == "ctl":
            return self.handle_control(messages.decode_message(payload, Control), now)
        if address.channel == "down/chunk":
            return self.address_to_server(
                self.tasks.handle_chunk(chunks.decode_chunk(payload), now)
            )
        if address.channel == "down":
            return self.address_to_server(
                self.handle_message(messages.decode_message(payload, *messages.FROM_SERVER), now)
            )
        return []

    def handle_control(self, control: Control, now: float) -> list[Publication]:
        """How the run stands; what is older than what we know was delayed on its way."""
        before = self.control
        if control.run != self.run or (before and rank_control(control) < rank_control(before)):
            return []
        self.control = control
        out = self.address_to_server(self.tasks.handle_control(control, now))
        if before is None or before.epoch != control.epoch:  # this server does not know us
            self.welcomed, self.refusal_reason = False, ""
            out += self.send_hello(now)
        return out

    def handle_message(self, message: Message, now: float) -> list[Message | bytes]:
        match message:
            case Welcome(session, epoch) if self.is_for_this_session(session, epoch):
                self.welcomed, self.refusal_reason = True, ""
            case Refused(session, epoch, why) if (
                self.is_for_this_session(session, epoch) and not self.welcomed
            ):
                self.refusal_reason = why
            case Task() if self.hello and message.client in {c.name for c in self.hello.clients}:
                return self.tasks.handle_task(message, now)
            case Want():
                return self.tasks.answer_want(message, now)
            case Taken(id):
                self.tasks.handle_taken(id)
            case Rejected(id, attempt, why):
                self.last_rejection_reason = why
                self.tasks.handle_rejected(id, attempt)
        return []

    def is_for_this_session(self, session: str, epoch: int) -> bool:
        """Is it an answer to our greeting, of this start to this start?"""
        now = self.control.epoch if self.control else None
        return (session, epoch) == (self.session, now)

    # Publishing -----------------------------------------------------------------------------
    def send_hello(self, now: float) -> list[Publication]:
        self.hello_timer.reset(now)
        return self.repeat_hello()

    def repeat_hello(self) -> list[Publication]:
        """The greeting, as long as it is not answered."""
        if self.hello is None or self.control is None or self.welcomed or self.refusal_reason:
            return []
        return self.address_to_server([replace(self.hello, epoch=self.control.epoch)])

    def address_to_server(self, items: Iterable[Message | bytes]) -> list[Publication]:
        """To the server; bytes are chunks."""
        up, chunk = (topics.make_device_topic(self.run, self.device, c) for c in ("up", "up/chunk"))
        return [
            Publication(chunk, item)
            if isinstance(item, bytes)
            else Publication(up, messages.encode_message(item))
            for item in items
        ]


def rank_control(control: Control) -> tuple[int, int, int]:
    """Controls in the order in which a server says them."""
    return control.epoch, control.t, messages.RUN_STATES.index(control.state)
