"""The device's side of the protocol: introduce itself, receive tasks, announce replies.

No threads, no clock, no network. Everything that must outlive the process is in the reply store;
everything else the server repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.errors import CodecError
from . import chunks, framing, messages, topics
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
    """One device in one run; ``session`` is a new id at each start of the device."""

    def __init__(
        self,
        *,
        run: str,
        device: str,
        session: str,
        reply_store: ReplyStore,
        max_blob_bytes: int,
        now: float,
    ) -> None:
        self.run, self.device, self.session = run, device, session
        self.tasks = TaskQueue(reply_store=reply_store, max_blob_bytes=max_blob_bytes, now=now)
        self.control: Control | None = None
        self.hello: Hello | None = None
        self.welcomed = False
        self.refusal_reason = ""  # why the server refuses this device
        self.last_rejection_reason = ""  # why it rejected the last reply
        self.presence_timer, self.hello_timer = ResendTimer(now), ResendTimer(now)

    # Called by the device -------------------------------------------------------------------
    @property
    def config(self) -> bytes | None:
        """The run's configuration file, once it has arrived."""
        return self.tasks.blob_cache.blobs.get(self.control.config.sha256) if self.control else None

    def introduce(
        self,
        version: str,
        clients: Sequence[ClientSummary],
        hardware: Mapping[str, str],
        now: float,
        folder_id: str = "",
    ) -> list[Publication]:
        """Tell the server which clients are here; possible once the configuration has arrived."""
        assert self.control is not None
        self.hello = Hello(
            session=self.session,
            epoch=self.control.epoch,
            version=version,
            config_sha256=self.control.config.sha256,
            clients=tuple(clients),
            hardware=hardware,
            home=folder_id,
        )
        self.welcomed, self.refusal_reason = False, ""
        return self.send_hello(now)

    def take_next_task(self) -> ReadyTask | None:
        """Start the next task that is ready; None while another one runs."""
        return self.tasks.take_next_task()

    def submit_reply(self, reply: bytes, seconds: float, now: float) -> list[Publication]:
        """Hand in the reply of the current task."""
        return self.address_to_server(self.tasks.finish_current(reply, seconds, now))

    def submit_failure(self, why: object, again: bool, now: float) -> list[Publication]:
        """Report that the current task failed; ``again`` if another attempt can help."""
        return self.address_to_server(self.tasks.fail_current(why, again, now))

    def report_metrics(self, values: Mapping[str, float]) -> list[Publication]:
        """Send numbers to show live."""
        return self.address_to_server([Metrics(values)])

    def make_status_publication(self, state: str) -> Publication:
        """Return the status ``here`` or ``gone``; the latter is also the last will."""
        topic = topics.make_device_topic(self.device, "status")
        payload = messages.encode_message(Status(state, self.session))
        return Publication(topic, framing.add_run(self.run, payload), retain=True)

    # Called for the network -----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """Repeat everything that the server may have missed."""
        self.presence_timer.reset(now)
        return [
            self.make_status_publication("here"),
            *self.send_hello(now),
            *self.address_to_server(self.tasks.repeat_all(now)),
        ]

    def tick(self, now: float) -> list[Publication]:
        """Repeat what got no answer for a while."""
        out = (
            [self.make_status_publication("here")]
            if self.presence_timer.advance_if_due(now)
            else []
        )
        hello = self.repeat_hello() if self.hello_timer.advance_if_due(now) else []
        return [*out, *hello, *self.address_to_server(self.tasks.repeat_overdue(now))]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message; ignore those that are damaged or not for this device."""
        try:
            address = topics.parse_topic(topic)
            run = address.run
            if address.device:
                run, payload = framing.split_run(payload)
            if run != self.run or address.device not in ("", self.device):
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
        """Take over the state of the run; ignore one that is older than the last."""
        before = self.control
        if control.run != self.run or (before and rank_control(control) < rank_control(before)):
            return []
        self.control = control
        out = self.address_to_server(self.tasks.handle_control(control, now))
        if before is None or before.epoch != control.epoch:  # a new start of the server
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
        """Return whether an answer belongs to this start of the device and of the server."""
        current = self.control.epoch if self.control else None
        return (session, epoch) == (self.session, current)

    # Publish --------------------------------------------------------------------------------
    def send_hello(self, now: float) -> list[Publication]:
        self.hello_timer.reset(now)
        return self.repeat_hello()

    def repeat_hello(self) -> list[Publication]:
        """Return the Hello as long as it is not answered."""
        if self.hello is None or self.control is None or self.welcomed or self.refusal_reason:
            return []
        return self.address_to_server([replace(self.hello, epoch=self.control.epoch)])

    def address_to_server(self, items: Iterable[Message | bytes]) -> list[Publication]:
        """Return publications to the server; bytes are encoded chunks."""
        up, chunk = (topics.make_device_topic(self.device, c) for c in ("up", "up/chunk"))
        return [
            Publication(chunk, framing.add_run(self.run, item))
            if isinstance(item, bytes)
            else Publication(up, framing.add_run(self.run, messages.encode_message(item)))
            for item in items
        ]


def rank_control(control: Control) -> tuple[int, int, int]:
    """Return a key that sorts Control messages in the order in which servers send them."""
    return control.epoch, control.t, messages.RUN_STATES.index(control.state)
