"""The server's side of the protocol: jobs in, replies out. No I/O, no threads, no clock.

Every method returns messages to publish; if they are lost, a later ``tick`` repeats them. The caller
decides which devices may take part and which replies are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.algorithm import Reply
from ...core.errors import CodecError, HeterophonyError
from ...engines.base import sort_jobs
from ...jobs.plan import Job
from . import blobs as chunks
from . import messages, topics
from . import messages as framing
from .assignments import Assignments, LostJob, ReplyCheck, ReplyLimit, describe_unexpected_error
from .blobs import OutgoingBlob, ResendTimer
from .messages import Control, Done, Failed, Hello, Message, Metrics, Status, Want, Welcome
from .registry import AdmissionCheck, DeviceRegistry
from .topics import ParsedTopic, Publication


class ServerSession:
    """One run, during one start of the server.

    ``epoch`` counts the starts. ``device_of_client`` is known from earlier ones.
    """

    def __init__(
        self,
        *,
        run: str,
        epoch: int,
        rounds: int,
        config: bytes,
        check_admission: AdmissionCheck,
        check_reply: ReplyCheck,
        limit_reply_bytes: ReplyLimit,
        now: float,
        device_of_client: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.config_blob = run, OutgoingBlob.from_bytes(config)
        self.control = Control(run, epoch, "waiting", 0, rounds, 0, self.config_blob.blob)
        self.registry = DeviceRegistry(
            epoch=epoch,
            config_sha256=self.config_blob.blob.sha256,
            check_admission=check_admission,
            device_of_client=device_of_client or {},
        )
        self.stats = self.registry.stats
        self.stats.now = now
        self.assignments = Assignments(
            run=run,
            registry=self.registry,
            check_reply=check_reply,
            limit_reply_bytes=limit_reply_bytes,
        )
        self.control_timer = ResendTimer(now)

    # Called by the server -------------------------------------------------------------------
    def submit_jobs(self, jobs: Sequence[Job], now: float, oldest: int = 0) -> list[Publication]:
        """Assign these jobs of one round; devices may delete memories from before ``oldest``."""
        t = max((j.t for j in jobs), default=self.control.t)
        self.control = replace(self.control, state="playing", t=t, oldest=oldest)
        self.assignments.assign_jobs(sort_jobs(jobs), t, now)
        return self.handle_connected(now)

    def take_replies(self) -> list[Reply]:
        """Return the replies accepted since the last call."""
        replies, self.assignments.replies = self.assignments.replies, []
        return replies

    def take_lost_jobs(self) -> list[LostJob]:
        """Return the jobs given up since the last call."""
        lost, self.assignments.lost_jobs = self.assignments.lost_jobs, []
        return lost

    def abandon_open_tasks(self) -> None:
        """Accept no more replies to open tasks, because the deadline has passed."""
        self.assignments.abandon_open_tasks()

    def shut_out_device(self, device: str, why: str, now: float) -> None:
        """Take nothing of a device any more, and give up its tasks."""
        self.stats.now = now
        if device not in self.registry.shut_out:
            self.registry.shut_out_device(device, why)
            self.assignments.give_up_tasks_of_shut_out_devices()

    def take_requested(self) -> list[tuple[str, int]]:
        """Return devices and bytes of the messages since the last call that were asked for."""
        requested, self.assignments.requested = self.assignments.requested, []
        return requested

    def end_run(self) -> list[Publication]:
        """Tell the devices that the run has ended."""
        self.abandon_open_tasks()
        self.control = replace(self.control, state="ended")
        return [self.make_control_publication()]

    # Called for the network -----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """Publish everything again: a restarted broker may have lost all of it."""
        self.control_timer.reset(now)
        out = [self.make_control_publication()]
        for device in self.registry.devices:
            out += self.repeat_all(device, now)
        return out

    def tick(self, now: float) -> list[Publication]:
        """Repeat what got no answer for a while."""
        out = [self.make_control_publication()] if self.control_timer.advance_if_due(now) else []
        for device, record in self.registry.devices.items():
            if record.connected:
                overdue = self.assignments.repeat_overdue(device, record, now)
                out += self.address_to_device(device, overdue)
        return out

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message; an invalid one is counted against the device whose topic it is on."""
        self.stats.now = now
        try:
            address = topics.parse_topic(topic)
        except CodecError:
            address = None
        if address is None or not address.device:
            self.stats.foreign_messages += 1
            return []
        if address.device in self.registry.shut_out:
            return []
        self.stats.count_received(address.device, len(payload))
        try:
            run, content = framing.split_run(payload)
            if run != self.run:
                self.stats.foreign_messages += 1
                return []
            return self.dispatch(address, content, now)
        except CodecError as error:
            self.stats.record_invalid_message(address.device, error)
            return []
        except HeterophonyError:  # of the server itself: a full disk, or a request to stop
            raise
        except Exception as error:  # whatever a device sends, it does not end the run
            self.stats.record_invalid_message(address.device, describe_unexpected_error(error))
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        device, record = address.device, self.registry.devices.get(address.device)
        if address.channel == "status":
            status = messages.decode_message(payload, Status)
            returned = self.registry.handle_status(device, status)
            return self.repeat_all(device, now) if returned else []
        if address.channel == "up/chunk":
            chunk = chunks.decode_chunk(payload)
            if record is None:
                return []
            answer = self.assignments.handle_chunk(device, record, chunk, now)
            return self.address_to_device(device, answer)
        if address.channel == "up":
            message = messages.decode_message(payload, *messages.FROM_DEVICE)
            return self.handle_message(device, message, now)
        return []

    def handle_message(self, device: str, message: Message, now: float) -> list[Publication]:
        """Answer a message; of devices that were not welcomed only Hello and Want count."""
        record = self.registry.devices.get(device)
        answer: Sequence[Message | bytes] = ()
        match message, record:
            case Hello(), _:
                return self.handle_hello(device, message, now)
            case Want(), _ if message.sha256 == self.config_blob.blob.sha256:
                answer = self.config_blob.encode_wanted_chunks(message)
            case Want(), _:
                answer = self.assignments.answer_want(device, message)
            case Done(), record if record:
                answer = self.assignments.handle_done(device, record, message, now)
            case Failed(), record if record:
                answer = self.assignments.handle_failed(device, message, now)
            case Metrics(), record if record:
                record.metrics = message.values
        return self.address_to_device(device, answer)

    def handle_hello(self, device: str, hello: Hello, now: float) -> list[Publication]:
        answer = self.registry.handle_hello(device, hello)
        out = self.address_to_device(device, [answer] if answer else [])
        return out + (self.repeat_all(device, now) if isinstance(answer, Welcome) else [])

    # Publish --------------------------------------------------------------------------------
    def repeat_all(self, device: str, now: float) -> list[Publication]:
        record = self.registry.devices[device]
        if not record.connected:
            return []
        return self.address_to_device(device, self.assignments.repeat_all(device, record, now))

    def make_control_publication(self) -> Publication:
        """Return the state of the run, retained for devices that connect later."""
        return Publication(
            topics.make_control_topic(self.run), messages.encode_message(self.control), retain=True
        )

    def record_sent(self, sent: Iterable[Publication]) -> None:
        """Count messages handed to the network; those to all devices count for none."""
        for message in sent:
            if device := topics.parse_topic(message.topic).device:
                self.stats.count_sent(device, len(message.payload))

    def address_to_device(self, device: str, items: Iterable[Message | bytes]) -> list[Publication]:
        """Return publications to a device; bytes are encoded chunks."""
        down, chunk = (topics.make_device_topic(device, c) for c in ("down", "down/chunk"))
        return [
            Publication(chunk, framing.add_run(self.run, item))
            if isinstance(item, bytes)
            else Publication(down, framing.add_run(self.run, messages.encode_message(item)))
            for item in items
        ]
