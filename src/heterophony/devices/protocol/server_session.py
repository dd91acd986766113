"""The server's side of the conversation: jobs in, replies out. No I/O, no threads, no clock.

Every answer is a list of messages to publish; if they are lost, a later ``tick`` says them again.
Who may take part, and which reply is good, the hub is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.algorithm import Reply
from ...core.errors import CodecError
from ...engines.base import sort_jobs
from ...jobs.plan import Job
from . import chunks, messages, topics
from .assignments import Assignments, LostJob, ReplyCheck
from .chunks import OutgoingBlob
from .device_registry import AdmissionCheck, DeviceRegistry
from .messages import Control, Done, Failed, Hello, Message, Metrics, Status, Want, Welcome
from .resend_timer import ResendTimer
from .topics import ParsedTopic, Publication


class ServerSession:
    """One run, from one start of the server on. ``limit`` is of the bytes of a reply."""

    def __init__(
        self,
        run: str,
        epoch: int,
        rounds: int,
        config: bytes,
        accept: AdmissionCheck,
        check: ReplyCheck,
        limit: int,
        now: float,
        holders: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.config_blob = run, OutgoingBlob.from_bytes(config)
        self.control = Control(run, epoch, "waiting", 0, rounds, 0, self.config_blob.blob)
        self.registry = DeviceRegistry(epoch, self.config_blob.blob.sha256, accept, holders or {})
        self.stats = self.registry.stats
        self.stats.now = now
        self.assignments = Assignments(run, self.registry, check, limit)
        self.control_timer = ResendTimer(now)

    # What the server wants ------------------------------------------------------------------
    def submit_jobs(self, jobs: Sequence[Job], now: float, oldest: int = 0) -> list[Publication]:
        """Give these jobs, all of one round, to devices; memories before ``oldest`` may go."""
        t = max((j.t for j in jobs), default=self.control.t)
        self.control = replace(self.control, state="playing", t=t, oldest=oldest)
        self.assignments.assign_jobs(sort_jobs(jobs), t, now)
        return self.handle_connected(now)

    def take_replies(self) -> list[Reply]:
        """The replies that came since the last time."""
        replies, self.assignments.replies = self.assignments.replies, []
        return replies

    def take_lost_jobs(self) -> list[LostJob]:
        """The jobs that were given up since the last time."""
        lost, self.assignments.lost_jobs = self.assignments.lost_jobs, []
        return lost

    def abandon_open_tasks(self) -> None:
        """The deadline has passed: no reply to an open task is taken any more."""
        self.assignments.abandon_open_tasks()

    def end_run(self) -> list[Publication]:
        """The run is over; devices may go."""
        self.abandon_open_tasks()
        self.control = replace(self.control, state="ended")
        return [self.make_control_publication()]

    # What the network brings ----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """A broker that was restarted may have forgotten all: say everything again."""
        self.control_timer.reset(now)
        out = [self.make_control_publication()]
        for device in self.registry.devices:
            out += self.repeat_all(device, now)
        return out

    def tick(self, now: float) -> list[Publication]:
        """What to say again, after a silence."""
        out = [self.make_control_publication()] if self.control_timer.advance_if_due(now) else []
        for device, guest in self.registry.devices.items():
            if guest.connected:
                out += self.address_to_device(
                    device, self.assignments.repeat_overdue(device, guest, now)
                )
        return out

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message; a wrong one is counted against the device whose topic it is on."""
        self.stats.now = now
        try:
            address = topics.parse_topic(topic)
        except CodecError:
            address = None
        if address is None or address.run != self.run or not address.device:
            self.stats.foreign_messages += 1
            return []
        self.stats.count_received(address.device, len(payload))
        try:
            return self.dispatch(address, payload, now)
        except CodecError as error:
            self.stats.record_invalid_message(address.device, error)
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        device, guest = address.device, self.registry.devices.get(address.device)
        if address.channel == "status":
            back = self.registry.handle_status(device, messages.decode_message(payload, Status))
            return self.repeat_all(device, now) if back else []
        if address.channel == "up/chunk":
            chunk = chunks.decode_chunk(payload)
            return (
                self.address_to_device(
                    device, self.assignments.handle_chunk(device, guest, chunk, now)
                )
                if guest
                else []
            )
        if address.channel == "up":
            return self.handle_message(
                device, messages.decode_message(payload, *messages.FROM_DEVICE), now
            )
        return []

    def handle_message(self, device: str, message: Message, now: float) -> list[Publication]:
        guest = self.registry.devices.get(device)
        match message, guest:
            case Hello(), _:
                told = self.registry.handle_hello(device, message)
                out = self.address_to_device(device, [told] if told else [])
                return out + (self.repeat_all(device, now) if isinstance(told, Welcome) else [])
            case Want(), _ if message.sha256 == self.config_blob.blob.sha256:
                return self.address_to_device(
                    device, self.config_blob.encode_wanted_chunks(message)
                )
            case Want(), _:
                return self.address_to_device(device, self.assignments.answer_want(device, message))
            case Done(), guest if guest:
                return self.address_to_device(
                    device, self.assignments.handle_done(device, guest, message, now)
                )
            case Failed(), guest if guest:
                return self.address_to_device(
                    device, self.assignments.handle_failed(device, message, now)
                )
            case Metrics(), guest if guest:
                guest.metrics = message.values
        return []  # of a device that was not welcomed

    # Publishing -----------------------------------------------------------------------------
    def repeat_all(self, device: str, now: float) -> list[Publication]:
        guest = self.registry.devices[device]
        return (
            self.address_to_device(device, self.assignments.repeat_all(device, guest, now))
            if guest.connected
            else []
        )

    def make_control_publication(self) -> Publication:
        """How the run stands, for whoever comes."""
        return Publication(
            topics.make_control_topic(self.run), messages.encode_message(self.control), retain=True
        )

    def record_sent(self, taken: Iterable[Publication]) -> None:
        """These messages were handed over to the network; what is for all counts for nobody."""
        for message in taken:
            if device := topics.parse_topic(message.topic).device:
                self.stats.count_sent(device, len(message.payload))

    def address_to_device(self, device: str, items: Iterable[Message | bytes]) -> list[Publication]:
        """To a device; bytes are chunks."""
        down, chunk = (
            topics.make_device_topic(self.run, device, c) for c in ("down", "down/chunk")
        )
        return [
            Publication(chunk, item)
            if isinstance(item, bytes)
            else Publication(down, messages.encode_message(item))
            for item in items
        ]
