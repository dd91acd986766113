"""The board's side of the protocol: its jobs, from their arrival until the server accepts the reply.

Methods return messages to the server; bytes among them are encoded chunks of blobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core import codec
from ...core.errors import CodecError
from ...core.tensors import Tensors
from ...engines.wire import TensorCache
from ...jobs.plan import Job
from . import job_codec, messages, topics
from .blobs import BlobCache, Chunk, GivenStore, ReplyStore, ResendTimer, decode_chunk
from .message_fields import to_single_line
from .topics import ParsedTopic, Publication

OutgoingMessages = list[messages.Message | bytes]


class JobQueue:
    """A board's jobs: waiting ones, the current one, and finished ones that the server may still ask for."""

    def __init__(
        self, reply_store: ReplyStore, given_store: GivenStore, max_blob_bytes: int, now: float
    ) -> None:
        self.reply_store, self.given_store = reply_store, given_store
        self.max_blob_bytes = max_blob_bytes
        self.blob_cache = BlobCache(max_blob_bytes)
        self.tensor_cache = TensorCache[str]()
        self.control: messages.Control | None = None
        self.waiting: dict[str, messages.Assigned] = {}
        self.current: messages.Assigned | None = None
        self.failures: dict[str, messages.Failed] = {}  # failures of this round, by job id
        self.announcement_timers = {k: ResendTimer(now) for k in reply_store.announcements}

    def handle_control(self, control: messages.Control, now: float) -> OutgoingMessages:
        """Adopt the state of the run; drop jobs and replies of rounds that are over."""
        before, self.control = self.control, control
        if before is None or (before.start, before.t) != (control.start, control.t):
            self.failures.clear()
        if before is not None and before.start != control.start:
            self.waiting.clear()  # the server may have gone back a round, and will assign jobs again
        self.waiting = {k: job for k, job in self.waiting.items() if self.is_round_open(job.t)}
        announced = self.reply_store.announcements.values()
        for done in [d for d in announced if not self.is_round_open(d.t)]:
            self.drop_reply(done.id)
        return self.request_blobs(now)

    def is_round_open(self, t: int) -> bool:
        """Return True if the server can still ask for work of round ``t``.

        Work of earlier rounds may need memories that have been deleted.
        """
        return self.control is not None and self.control.state != "ended" and t >= self.control.t

    def handle_assigned(self, assigned: messages.Assigned, now: float) -> OutgoingMessages:
        """Queue a job that the server assigns; if it is already finished, announce its reply again."""
        if not self.is_round_open(assigned.t):
            return []
        self.handle_rejected(
            assigned.id, assigned.attempt - 1
        )  # a new attempt rejects the earlier ones
        if assigned.id in self.reply_store.announcements:
            self.announcement_timers[assigned.id] = ResendTimer(now)
            return [self.reply_store.announcements[assigned.id]]
        if assigned.id in self.failures:
            return [self.failures[assigned.id]]
        if max(assigned.tensors.size, assigned.average.size) > self.max_blob_bytes:
            why = f"its tensors are over this board's limit of {self.max_blob_bytes} bytes"
            return self.record_failure(assigned, why, again=True)
        if self.current is None or assigned.id != self.current.id:
            self.waiting[assigned.id] = assigned
        return self.request_blobs(now)

    # Work -----------------------------------------------------------------------------------
    def take_next_job(self) -> Job | None:
        """Return the next job whose tensors have arrived, training jobs first; None if there is none."""
        ready = [j for j in self.waiting.values() if self.blob_cache.has_all(j.tensors, j.average)]
        if self.current or not ready:
            return None
        assigned = self.waiting.pop(min(ready, key=lambda j: (j.t, j.job != "train")).id)
        try:
            tensors, average = map(self.decode_blob, (assigned.tensors, assigned.average))
        except CodecError as error:
            # the failure is reported when the server repeats the job
            self.record_failure(assigned, error, again=True)
            return None
        self.current = assigned
        return job_codec.make_job(assigned, tensors, average)

    def decode_blob(self, blob: messages.BlobRef) -> Tensors:
        """Decode the tensors of a blob that has arrived, once for all jobs that share the blob."""
        content = self.blob_cache.blobs[blob.sha256]
        return self.tensor_cache.get(
            blob.sha256, lambda: codec.decode_blob(content, finite=False)[0]
        )

    def finish_current(self, reply: bytes, seconds: float, now: float) -> OutgoingMessages:
        """Store and announce the reply of the current job."""
        assigned = self.current
        assert assigned is not None
        out: OutgoingMessages = []
        if self.is_round_open(assigned.t):
            done = messages.Done(
                assigned.id,
                assigned.attempt,
                assigned.t,
                messages.BlobRef.from_bytes(reply),
                seconds,
            )
            self.reply_store.put(done, reply)  # must be on disk before it is announced
            self.announcement_timers[assigned.id] = ResendTimer(now)
            out = [done]
        self.current = None
        return out + self.request_blobs(now)

    def fail_current(self, why: object, again: bool, now: float) -> OutgoingMessages:
        """Report that the current job failed; ``again`` if another attempt can help."""
        assigned, self.current = self.current, None
        assert assigned is not None
        return self.record_failure(assigned, why, again) + self.request_blobs(now)

    def record_failure(
        self, assigned: messages.Assigned, why: object, again: bool
    ) -> OutgoingMessages:
        """Record a failure, to report it until the server assigns another attempt."""
        self.failures[assigned.id] = messages.Failed(
            assigned.id, assigned.attempt, to_single_line(why), again
        )
        return [self.failures[assigned.id]]

    # Replies --------------------------------------------------------------------------------
    def answer_want(self, want: messages.Want, now: float) -> OutgoingMessages:
        """Return the chunks of a stored reply that the server requests; postpone its next announcement."""
        outgoing = self.reply_store.find_reply(want.sha256)
        if outgoing is None:
            return []
        for job, timer in self.announcement_timers.items():
            if self.reply_store.announcements[job].reply.sha256 == want.sha256:
                timer.reset(now)
        return [*outgoing.encode_wanted_chunks(want)]

    def handle_taken(self, id: str) -> None:
        """Stop announcing an accepted reply, but keep it in case the server dies before its commit."""
        self.announcement_timers.pop(id, None)

    def handle_rejected(self, id: str, attempt: int) -> None:
        """Drop the reply or failure of a rejected job, if it is of this attempt or an earlier one."""
        done = self.reply_store.announcements.get(id)
        if done and done.attempt <= attempt:
            self.drop_reply(id)
        if id in self.failures and self.failures[id].attempt <= attempt:
            del self.failures[id]

    def drop_reply(self, id: str) -> None:
        """Delete a reply and stop announcing it."""
        self.announcement_timers.pop(id, None)
        self.reply_store.drop(id)

    # Blobs ----------------------------------------------------------------------------------
    def request_blobs(self, now: float) -> OutgoingMessages:
        """Request the missing blobs: the configuration, then the tensors of the waiting jobs in order."""
        first = self.list_needed_first()
        needed = [b for job in self.waiting.values() for b in (job.tensors, job.average)]
        return [*self.blob_cache.request_missing([*first, *needed], now)]

    def list_needed_first(self) -> list[messages.BlobRef]:
        """List the blobs to request before any job's: the configuration and a missing checkpoint."""
        if self.control is None:
            return []
        given = (b for b in self.control.given if not self.given_store.find(b.sha256))
        return [self.control.config, *given]

    def handle_chunk(self, chunk: Chunk, now: float) -> OutgoingMessages:
        """Add a chunk of a blob; store a complete checkpoint on disk."""
        if not self.blob_cache.add_chunk(chunk, now):
            return []
        for blob in self.control.given if self.control else ():
            if (content := self.blob_cache.blobs.pop(blob.sha256, None)) is not None:
                self.given_store.put(blob.sha256, content)
        return self.request_blobs(now)

    # Repeat ---------------------------------------------------------------------------------
    def repeat_all(self, now: float) -> OutgoingMessages:
        """Return all announcements and requests again, after a new connection."""
        for timer in self.announcement_timers.values():
            timer.reset(now)
        return [
            *(self.reply_store.announcements[job] for job in self.announcement_timers),
            *self.blob_cache.repeat_request(),
        ]

    def repeat_overdue(self, now: float) -> OutgoingMessages:
        """Return the announcements and requests that have been unanswered for too long."""
        due = [
            self.reply_store.announcements[job]
            for job, timer in self.announcement_timers.items()
            if timer.advance_if_due(now)
        ]
        return [*due, *self.repeat_overdue_request(now)]

    def repeat_overdue_request(self, now: float) -> OutgoingMessages:
        """Repeat the overdue request for a blob; if no chunk has arrived, try the blobs of other jobs first.

        The server does not answer requests for the tensors of a job that is no longer open.
        """
        requests = self.blob_cache.repeat_overdue_request(now)
        if not requests or (unanswered := self.blob_cache.drop_unanswered_transfer()) is None:
            return [*requests]
        for job in list(self.waiting.values()):
            if unanswered.blob in (job.tensors, job.average):
                self.waiting[job.id] = self.waiting.pop(job.id)
        out = self.request_blobs(now)
        self.blob_cache.keep_waiting(unanswered)
        return out


class BoardSession:
    """The board's side of the protocol in one run: messages in, messages out.

    ``session`` is a new id at each start of the board; ``run_id`` is known from earlier starts.
    """

    def __init__(
        self,
        *,
        run: str,
        board: str,
        session: str,
        jobs: JobQueue,
        now: float,
        run_id: str = "",
    ) -> None:
        self.run, self.board, self.session, self.jobs = run, board, session, jobs
        self.control: messages.Control | None = None
        # replaced_by: id of a new run with the same name
        self.run_id, self.replaced_by = run_id, ""
        self.hello: messages.Hello | None = None
        self.welcomed = False
        self.refusal_reason = ""  # why the server refuses this board
        self.last_rejection_reason = ""  # why it rejected the last reply
        self.presence_timer, self.hello_timer = ResendTimer(now), ResendTimer(now)

    # Called by the board -------------------------------------------------------------------
    @property
    def config(self) -> bytes | None:
        """The run's configuration file; None until it has arrived."""
        return self.jobs.blob_cache.blobs.get(self.control.config.sha256) if self.control else None

    @property
    def given(self) -> Path | None:
        """The file of the checkpoint that the run starts from; None if there is none."""
        blobs = self.control.given if self.control else ()
        return next((self.jobs.given_store.find(blob.sha256) for blob in blobs), None)

    @property
    def has_everything(self) -> bool:
        """Return True if the configuration and, if the run has one, the checkpoint have arrived."""
        needs_given = self.control is not None and bool(self.control.given)
        return self.config is not None and (self.given is not None) == needs_given

    def introduce(
        self,
        version: str,
        clients: Sequence[messages.ClientSummary],
        hardware: Mapping[str, str],
        now: float,
        folder_id: str = "",
    ) -> list[Publication]:
        """Introduce this board's clients to the server; the configuration must have arrived."""
        assert self.control is not None
        self.hello = messages.Hello(
            session=self.session,
            start=self.control.start,
            version=version,
            config_sha256=self.control.config.sha256,
            clients=tuple(clients),
            hardware=hardware,
            folder_id=folder_id,
        )
        self.welcomed, self.refusal_reason = False, ""
        return self.send_hello(now)

    def submit_reply(self, reply: bytes, seconds: float, now: float) -> list[Publication]:
        """Announce the reply of the current job."""
        return self.address_to_server(self.jobs.finish_current(reply, seconds, now))

    def submit_failure(self, why: object, again: bool, now: float) -> list[Publication]:
        """Report that the current job failed; ``again`` if another attempt can help."""
        return self.address_to_server(self.jobs.fail_current(why, again, now))

    def report_metrics(self, values: Mapping[str, float]) -> list[Publication]:
        """Send the board's measurements, for live display."""
        return self.address_to_server([messages.Metrics(values)])

    def make_status_publication(self, state: str) -> Publication:
        """Return the board's status message, ``here`` or ``gone``; ``gone`` is also its last will."""
        topic = topics.make_board_topic(self.board, "status")
        payload = messages.encode_message(messages.Status(state, self.session))
        return Publication(topic, messages.add_run(self.run, payload), retain=True)

    # Called for the network -----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """Repeat everything that the server may have missed."""
        self.presence_timer.reset(now)
        return [
            self.make_status_publication("here"),
            *self.send_hello(now),
            *self.address_to_server(self.jobs.repeat_all(now)),
        ]

    def tick(self, now: float) -> list[Publication]:
        """Repeat messages that have not been answered for a while."""
        out = (
            [self.make_status_publication("here")]
            if self.presence_timer.advance_if_due(now)
            else []
        )
        hello = self.repeat_hello() if self.hello_timer.advance_if_due(now) else []
        return [*out, *hello, *self.address_to_server(self.jobs.repeat_overdue(now))]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message from the network; ignore it if it is damaged or not for this board."""
        try:
            address = topics.parse_topic(topic)
            run = address.run
            if address.board:
                run, payload = messages.split_run(payload)
            if run != self.run or address.board not in ("", self.board):
                return []
            return self.dispatch(address, payload, now)
        except CodecError:
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        """Decode a message from the server by its channel, and answer it."""
        if address.channel == "ctl":
            return self.handle_control(messages.decode_message(payload, messages.Control), now)
        if address.channel == "down/chunk":
            return self.address_to_server(self.jobs.handle_chunk(decode_chunk(payload), now))
        if address.channel == "down":
            return self.address_to_server(
                self.handle_message(messages.decode_message(payload, *messages.FROM_SERVER), now)
            )
        return []

    def handle_control(self, control: messages.Control, now: float) -> list[Publication]:
        """Adopt the announced state of the run; ignore a state older than the last."""
        before = self.control
        if control.run != self.run:
            return []
        self.run_id = self.run_id or control.run_id
        if control.run_id != self.run_id:
            self.replaced_by = control.run_id
            return []
        if before and rank_control_message(control) < rank_control_message(before):
            return []
        self.control = control
        out = self.address_to_server(self.jobs.handle_control(control, now))
        if before is None or before.start != control.start:  # a new start of the server
            self.welcomed, self.refusal_reason = False, ""
            out += self.send_hello(now)
        return out

    def handle_message(
        self, message: messages.Message, now: float
    ) -> list[messages.Message | bytes]:
        """Answer a decoded message; ignore one that is meant for an earlier start of board or server."""
        match message:
            case messages.Welcome(session, start) if self.is_for_this_session(session, start):
                self.welcomed, self.refusal_reason = True, ""
            case messages.Refused(session, start, why) if (
                self.is_for_this_session(session, start) and not self.welcomed
            ):
                self.refusal_reason = why
            case messages.Assigned() if self.hello and message.client in {
                c.name for c in self.hello.clients
            }:
                return self.jobs.handle_assigned(message, now)
            case messages.Want():
                return self.jobs.answer_want(message, now)
            case messages.Taken(id):
                self.jobs.handle_taken(id)
            case messages.Rejected(id, attempt, why):
                self.last_rejection_reason = why
                self.jobs.handle_rejected(id, attempt)
        return []

    def is_for_this_session(self, session: str, start: int) -> bool:
        """Return True if the server's answer is for the current start of board and server."""
        current = self.control.start if self.control else None
        return (session, start) == (self.session, current)

    # Publish --------------------------------------------------------------------------------
    def send_hello(self, now: float) -> list[Publication]:
        """Return the board's Hello, and restart the timer that repeats it."""
        self.hello_timer.reset(now)
        return self.repeat_hello()

    def repeat_hello(self) -> list[Publication]:
        """Return the board's Hello again, unless the server has answered it."""
        if self.hello is None or self.control is None or self.welcomed or self.refusal_reason:
            return []
        return self.address_to_server([replace(self.hello, start=self.control.start)])

    def address_to_server(self, items: Iterable[messages.Message | bytes]) -> list[Publication]:
        """Wrap messages and encoded chunks as publications to the server."""
        up = topics.make_board_topic(self.board, "up")
        return messages.make_publications(self.run, up, items)


def rank_control_message(control: messages.Control) -> tuple[int, int, int]:
    """Return a key that sorts Control messages in the order in which servers send them."""
    return control.start, control.t, messages.RUN_STATES.index(control.state)
