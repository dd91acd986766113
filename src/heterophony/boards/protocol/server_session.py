"""The server's side of the protocol: jobs in, replies out, without I/O, threads or a clock.

Methods return messages to publish; if one is lost, a later ``tick`` repeats it. The caller
decides which boards may take part and which replies are valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...core.algorithm import Reply
from ...core.errors import CodecError, HeterophonyError
from ...engines.base import sort_jobs
from ...jobs.plan import Job
from . import messages, topics
from .assignments import Assignments, LostJob, describe_unexpected_error
from .blobs import OutgoingBlob, ResendTimer, count_chunks, decode_chunk
from .messages import Control, Done, Failed, Hello, Message, Metrics, Status, Want, Welcome
from .registry import AdmissionCheck, BoardRegistry
from .topics import ParsedTopic, Publication


class ServerSession:
    """The server's side of the protocol in one run: jobs and messages in, messages and replies out.

    ``control`` is the first message to all boards. ``board_of_client`` is known from earlier starts
    of the server. ``given`` is the checkpoint that the run starts from.
    """

    def __init__(
        self,
        control: Control,
        config: bytes,
        check_admission: AdmissionCheck,
        now: float,
        board_of_client: Mapping[str, str],
        given: bytes | None = None,
    ) -> None:
        self.run, self.control = control.run, control
        blobs = [OutgoingBlob.from_bytes(b) for b in (config, given) if b is not None]
        self.common_blobs = {blob.blob.sha256: blob for blob in blobs}  # that every board may pull
        self.registry = BoardRegistry(control, check_admission, board_of_client)
        self.stats = self.registry.stats
        self.stats.now = now
        self.assignments = Assignments(control.run_id, self.registry)
        self.control_timer = ResendTimer(now)
        self.given_to = set[str]()  # boards that have pulled the checkpoint

    # Called by the server -------------------------------------------------------------------
    def submit_jobs(self, jobs: Sequence[Job], now: float, oldest: int = 0) -> list[Publication]:
        """Assign the jobs of one round; boards may delete client memories of rounds before ``oldest``."""
        t = max((j.t for j in jobs), default=self.control.t)
        self.control = replace(self.control, state="running", t=t, oldest=oldest)
        self.assignments.assign_jobs(sort_jobs(jobs), t, now)
        return self.handle_connected(now)

    def take_replies(self) -> list[Reply]:
        """Return the replies of boards that were accepted since the last call."""
        replies, self.assignments.replies = self.assignments.replies, []
        return replies

    def take_lost_jobs(self) -> list[LostJob]:
        """Return the jobs that were given up since the last call."""
        lost, self.assignments.lost_jobs = self.assignments.lost_jobs, []
        return lost

    def shut_out_board(self, board: str, why: str, now: float) -> None:
        """Accept nothing more from a board, and give up its jobs."""
        self.stats.now = now
        if board not in self.registry.shut_out:
            self.registry.shut_out_board(board, why)
            self.assignments.give_up_jobs_of_shut_out_boards()

    def take_requested(self) -> list[tuple[str, int]]:
        """Return board and size of each requested message that has arrived since the last call."""
        requested, self.assignments.requested = self.assignments.requested, []
        return requested

    def end_run(self) -> list[Publication]:
        """Announce to all boards that the run has finished."""
        self.assignments.abandon_open_jobs()
        self.control = replace(self.control, state="ended")
        return [self.make_control_publication()]

    # Called for the network -----------------------------------------------------------------
    def handle_connected(self, now: float) -> list[Publication]:
        """Publish the state of the run and all open jobs again, after a new connection to the broker."""
        self.control_timer.reset(now)
        out = [self.make_control_publication()]
        for board in self.registry.boards:
            out += self.repeat_all(board, now)
        return out

    def tick(self, now: float) -> list[Publication]:
        """Repeat messages that have not been answered for a while."""
        out = [self.make_control_publication()] if self.control_timer.advance_if_due(now) else []
        for board, record in self.registry.boards.items():
            if record.connected:
                overdue = self.assignments.repeat_overdue(board, record, now)
                out += self.address_to_board(board, overdue)
        return out

    def receive(self, topic: str, payload: bytes, now: float) -> list[Publication]:
        """Answer a message from the network; record an invalid one for the board that owns the topic."""
        self.stats.now = now
        try:
            address = topics.parse_topic(topic)
        except CodecError:
            address = None
        if address is None or not address.board:
            self.stats.foreign_messages += 1
            return []
        if address.board in self.registry.shut_out:
            return []
        self.stats.get_counters(address.board).bytes_up += len(payload)
        try:
            run, content = messages.split_run(payload)
            if run != self.run:
                self.stats.foreign_messages += 1
                return []
            return self.dispatch(address, content, now)
        except CodecError as error:
            self.stats.record_invalid_message(address.board, error)
            return []
        except HeterophonyError:  # an error of the server itself: a full disk, or a request to stop
            raise
        except Exception as error:  # no message from a board may stop the run
            self.stats.record_invalid_message(address.board, describe_unexpected_error(error))
            return []

    def dispatch(self, address: ParsedTopic, payload: bytes, now: float) -> list[Publication]:
        """Decode a message from a board by its channel, and answer it."""
        board, record = address.board, self.registry.boards.get(address.board)
        if address.channel == "status":
            status = messages.decode_message(payload, Status)
            returned = self.registry.handle_status(board, status)
            return self.repeat_all(board, now) if returned else []
        if address.channel == "up/chunk":
            chunk = decode_chunk(payload)
            if record is None:
                return []
            answer = self.assignments.handle_chunk(board, record, chunk, now)
            return self.address_to_board(board, answer)
        if address.channel == "up":
            message = messages.decode_message(payload, *messages.FROM_BOARD)
            return self.handle_message(board, message, now)
        return []

    def handle_message(self, board: str, message: Message, now: float) -> list[Publication]:
        """Answer a board's decoded message; before its Welcome, only Hello and Want are accepted."""
        record = self.registry.boards.get(board)
        answer: Sequence[Message | bytes] = ()
        match message, record:
            case Hello(), _:
                return self.handle_hello(board, message, now)
            case Want(), _ if message.sha256 in self.common_blobs:
                answer = self.common_blobs[message.sha256].encode_wanted_chunks(message)
                self.record_given(board, message)
            case Want(), _:
                answer = self.assignments.answer_want(board, message)
            case Done(), record if record:
                answer = self.assignments.handle_done(board, record, message, now)
            case Failed(), record if record:
                answer = self.assignments.handle_failed(board, message, now)
            case Metrics(), record if record:
                record.metrics = message.values
        return self.address_to_board(board, answer)

    def record_given(self, board: str, want: Want) -> None:
        """Record in the journal that a board has requested the last chunk of the run's checkpoint."""
        for blob in self.control.given:
            ends = want.sha256 == blob.sha256 and count_chunks(blob) - 1 in want.chunks
            if ends and board not in self.given_to:
                self.given_to.add(board)
                self.stats.record_fact("given", board, bytes=blob.size, sha256=blob.sha256[:16])

    def handle_hello(self, board: str, hello: Hello, now: float) -> list[Publication]:
        """Answer a board's Hello; send a welcomed board all its open jobs."""
        answer = self.registry.handle_hello(board, hello)
        out = self.address_to_board(board, [answer] if answer else [])
        return out + (self.repeat_all(board, now) if isinstance(answer, Welcome) else [])

    # Publish --------------------------------------------------------------------------------
    def repeat_all(self, board: str, now: float) -> list[Publication]:
        """Send a connected board all its open jobs and requests again."""
        record = self.registry.boards[board]
        if not record.connected:
            return []
        return self.address_to_board(board, self.assignments.repeat_all(board, record, now))

    def make_control_publication(self) -> Publication:
        """Return the Control message with the run's state, retained for boards that connect later."""
        return Publication(
            topics.make_control_topic(self.run), messages.encode_message(self.control), retain=True
        )

    def record_sent(self, sent: Iterable[Publication]) -> None:
        """Count the bytes sent to each board; messages to all boards are not counted."""
        for message in sent:
            if board := topics.parse_topic(message.topic).board:
                self.stats.get_counters(board).bytes_down += len(message.payload)

    def address_to_board(self, board: str, items: Iterable[Message | bytes]) -> list[Publication]:
        """Wrap messages and encoded chunks as publications to a board."""
        down = topics.make_board_topic(board, "down")
        return messages.make_publications(self.run, down, items)
