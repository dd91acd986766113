"""The server's jobs of a round: assign them, pull and check replies, retry or give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from ...core.algorithm import Reply
from ...core.codec import encode_blob
from ...core.errors import CodecError, HeterophonyError, NotFiniteError
from ...core.tensors import Tensors
from ...engines.wire import EncodeOnce
from ...jobs.plan import Job
from . import job_codec
from .blobs import Chunk, IncomingBlob, OutgoingBlob, ResendTimer, count_chunks
from .message_fields import to_single_line
from .messages import Assigned, BlobRef, Done, Failed, Message, Rejected, Taken, Want
from .registry import BoardRegistry, RegisteredBoard

MAX_ATTEMPTS = 3  # attempts before a job is given up
MESSAGES_PER_JOB = 2  # outgoing messages besides requests for chunks: Done, and its repetition
OutgoingMessages = list[Message | bytes]  # messages to one board; bytes are encoded chunks


class ReplyRules(Protocol):
    """Decides which replies of boards are valid."""

    def check_reply(self, reply: Reply, job: Job) -> object:
        """Raise CodecError with the reason if the reply is not valid."""

    def limit_reply_bytes(self, job: Job) -> int:
        """Return the maximum size of the reply to a job, in bytes."""


class LostJob(NamedTuple):
    """A job that was given up, the board it was assigned to, and the reason."""

    job: Job
    board: str
    why: str
    diverged: bool  # training diverged


@dataclass
class OpenJob:
    """A job of the round whose reply has not been accepted yet."""

    job: Job
    assigned: Assigned
    resend_timer: ResendTimer


class Assignments:
    """The open jobs of a round on boards, and the replies and lost jobs so far."""

    rules: ReplyRules  # set before the first job is assigned

    def __init__(self, run_id: str, registry: BoardRegistry) -> None:
        self.run_id, self.registry = run_id, registry
        self.t: int | None = None  # None before the first round
        self.open_jobs: dict[str, OpenJob] = {}
        self.outgoing_blobs: dict[str, OutgoingBlob] = {}
        self.taken_ids: set[str] = set()
        self.replies: list[Reply] = []
        self.lost_jobs: list[LostJob] = []
        self.requested: list[tuple[str, int]] = []  # board and size of messages that we requested

    # Assign jobs ---------------------------------------------------------------------------
    def assign_jobs(self, jobs: Sequence[Job], t: int, now: float) -> None:
        """Assign the jobs of round ``t`` to boards, in this order."""
        if t != self.t:
            self.taken_ids, self.t = set(), t
        if not self.open_jobs:
            self.outgoing_blobs.clear()
            for record in self.registry.boards.values():
                record.requested_blobs.clear()
                record.furthest_chunks.clear()
        encode = EncodeOnce(self.add_blob)
        for job in jobs:
            tensors, average = encode(job.tensors), encode(job.generic_model)
            assigned = job_codec.make_assigned(self.run_id, job, tensors, average)
            self.open_jobs[assigned.id] = OpenJob(job, assigned, ResendTimer(now))
        self.give_up_jobs_of_shut_out_boards()

    def give_up_jobs_of_shut_out_boards(self) -> None:
        """Give up the open jobs of boards that are shut out, because these boards will not return."""
        for open_job in list(self.open_jobs.values()):
            board = self.registry.board_of_client.get(open_job.job.client, "")
            if why := self.registry.shut_out.get(board):
                self.lost_jobs.append(LostJob(open_job.job, board, why, diverged=False))
                del self.open_jobs[open_job.assigned.id]

    def add_blob(self, tensors: Tensors, _: int) -> BlobRef:
        """Encode the tensors of a job as a blob; the second argument, the key, is ignored."""
        outgoing = OutgoingBlob.from_bytes(encode_blob(tensors))
        self.outgoing_blobs[outgoing.blob.sha256] = outgoing
        return outgoing.blob

    def abandon_open_jobs(self) -> None:
        """Close all open jobs, because the round is over: their replies are no longer accepted."""
        self.open_jobs.clear()
        self.outgoing_blobs.clear()
        for record in self.registry.boards.values():
            record.ready_replies.clear()
            record.current_transfer = None

    def list_open_jobs(self, board: str) -> list[OpenJob]:
        """Return the open jobs of the clients on a board, if it is connected."""
        return [
            o for o in self.open_jobs.values() if self.registry.find_board(o.job.client) == board
        ]

    def repeat_all(self, board: str, record: RegisteredBoard, now: float) -> OutgoingMessages:
        """Return all open jobs and requests of a board again, because it may have lost them."""
        jobs = self.list_open_jobs(board)
        for open_job in jobs:
            open_job.resend_timer.reset(now)
        requests = record.current_transfer[1].repeat_request() if record.current_transfer else []
        return [*(open_job.assigned for open_job in jobs), *requests]

    def repeat_overdue(self, board: str, record: RegisteredBoard, now: float) -> OutgoingMessages:
        """Return the jobs and requests of a board that have been unanswered for too long."""
        jobs = [
            o.assigned for o in self.list_open_jobs(board) if o.resend_timer.advance_if_due(now)
        ]
        if record.current_transfer is None:
            return [*jobs]
        return [*jobs, *record.current_transfer[1].repeat_overdue_request(now)]

    def answer_want(self, board: str, want: Want) -> OutgoingMessages:
        """Return the chunks that a board requests, if they belong to one of its open jobs."""
        own = {
            b.sha256
            for o in self.list_open_jobs(board)
            for b in (o.assigned.tensors, o.assigned.average)
        }
        if want.sha256 not in own:
            return []
        outgoing = self.outgoing_blobs[want.sha256]
        self.registry.stats.timeline.record_want(board, self.registry.stats.now)
        record = self.registry.boards[board]
        sent_before = record.requested_blobs.get(want.sha256, False)
        if record.record_want(want, last=count_chunks(outgoing.blob) - 1):
            self.requested.append((board, 0))
        if record.requested_blobs[want.sha256] and not sent_before:
            self.record_blob("sent", board, outgoing.blob, round=self.t)
        return [*outgoing.encode_wanted_chunks(want)]

    def record_blob(self, kind: str, board: str, blob: BlobRef, **details: Any) -> None:
        """Record in the journal that tensors were ``sent`` to a board, or a reply ``received`` from it."""
        digest = blob.sha256[:16]
        self.registry.stats.record_fact(kind, board, bytes=blob.size, sha256=digest, **details)

    # Pull and check replies -----------------------------------------------------------------
    def find_own_job(self, board: str, message: Done | Failed) -> OpenJob | None:
        """Return the open job of a board's message; raise CodecError if another board holds the client."""
        open_job = self.open_jobs.get(message.id)
        if open_job and self.registry.board_of_client.get(open_job.job.client) != board:
            raise CodecError(
                f"it sent a message for client {open_job.job.client!r}, which it does not hold"
            )
        return open_job

    def handle_done(
        self, board: str, record: RegisteredBoard, done: Done, now: float
    ) -> OutgoingMessages:
        """Start to pull a reply that a board announced, unless another of its replies is being pulled."""
        open_job = self.find_own_job(board, done)
        if open_job is None:
            return self.answer_closed_job(done)
        if done.attempt < open_job.assigned.attempt:
            return []  # this attempt has already been rejected
        if (size := done.reply.size) > (limit := self.rules.limit_reply_bytes(open_job.job)):
            why = f"{size} bytes, over the limit of {limit}"
            return self.reject_reply(board, open_job, why, now)
        open_job.resend_timer.reset(now)
        self.registry.stats.timeline.record_done(board, done.id, now)
        assigned = open_job.assigned
        record.requested_blobs |= dict.fromkeys(
            (assigned.tensors.sha256, assigned.average.sha256), True
        )
        if record.current_transfer and record.current_transfer[0].id == done.id:
            if record.current_transfer[0].reply == done.reply:
                return []
            record.current_transfer = None  # the board replaced the reply that was being pulled
        record.ready_replies[done.id] = done
        return self.start_next_transfer(record, now)

    def answer_closed_job(self, done: Done) -> OutgoingMessages:
        """Answer the announcement of a reply that was already accepted, or arrives too late."""
        if done.id in self.taken_ids:
            return [Taken(done.id)]
        if self.t is not None and done.t < self.t:
            return [Rejected(done.id, done.attempt, f"round {done.t} is over")]
        return []  # a restarted server will assign this job again

    def start_next_transfer(self, record: RegisteredBoard, now: float) -> OutgoingMessages:
        """Start to pull a board's next ready reply, unless a reply to an open job is being pulled."""
        if record.current_transfer and record.current_transfer[0].id not in self.open_jobs:
            record.current_transfer = None
        while record.current_transfer is None and record.ready_replies:
            done = record.ready_replies.pop(next(iter(record.ready_replies)))
            if done.id in self.open_jobs:
                limit = self.rules.limit_reply_bytes(self.open_jobs[done.id].job)
                transfer = IncomingBlob(done.reply, limit, now)
                record.current_transfer = done, transfer
                return [*transfer.request_next()]
        return []

    def handle_chunk(
        self, board: str, record: RegisteredBoard, chunk: Chunk, now: float
    ) -> OutgoingMessages:
        """Add a chunk of a board's reply; after the last chunk, accept or reject the reply."""
        if record.current_transfer is None or not record.current_transfer[1].add_chunk(chunk, now):
            return []
        self.requested.append((board, len(chunk.data)))
        done, transfer = record.current_transfer
        open_job = self.open_jobs.get(done.id)
        if open_job is None:  # the job was given up meanwhile
            return self.start_next_transfer(record, now)
        open_job.resend_timer.reset(now)
        content = transfer.assemble()
        if content is None and transfer.digest_failures < MAX_ATTEMPTS:
            return [*transfer.request_next()]
        record.current_transfer = None
        answer = self.accept_or_reject(board, open_job, done, content, now)
        return answer + self.start_next_transfer(record, now)

    def accept_or_reject(
        self, board: str, open_job: OpenJob, done: Done, content: bytes | None, now: float
    ) -> OutgoingMessages:
        """Decode and check a board's complete reply; accept it, or reject it with the reason."""
        try:
            if content is None:
                raise CodecError("the reply does not have its announced sha256")
            reply = job_codec.decode_reply(content, open_job.assigned, done.seconds)
            self.rules.check_reply(reply, open_job.job)
        except CodecError as error:
            diverged = isinstance(error, NotFiniteError)
            return self.reject_reply(board, open_job, str(error), now, diverged)
        except HeterophonyError:  # an error of the server itself: a full disk, or a request to stop
            raise
        except Exception as error:  # no content of a reply may stop the run
            return self.reject_reply(board, open_job, describe_unexpected_error(error), now)
        self.replies.append(reply)
        self.registry.stats.record_taken_reply(board, open_job.assigned, done)
        self.requested += [(board, 0)] * MESSAGES_PER_JOB
        assigned = open_job.assigned
        self.record_blob(
            "received",
            board,
            done.reply,
            round=assigned.t,
            client=assigned.client,
            job=assigned.job,
        )
        self.taken_ids.add(done.id)
        del self.open_jobs[done.id]
        return [Taken(done.id)]

    def reject_reply(
        self, board: str, open_job: OpenJob, why: str, now: float, diverged: bool = False
    ) -> OutgoingMessages:
        """Reject a board's reply with the reason; assign the job again, or give it up."""
        assigned = open_job.assigned
        rejection = Rejected(assigned.id, assigned.attempt, to_single_line(why))
        retried = self.retry_or_give_up(board, open_job, why, now, diverged=diverged)
        return [rejection, *retried]

    def handle_failed(self, board: str, failed: Failed, now: float) -> OutgoingMessages:
        """Assign a job that failed on its board again, or give it up."""
        open_job = self.find_own_job(board, failed)
        if open_job is None or failed.attempt < open_job.assigned.attempt:
            return []
        # only a board whose training diverged says that another attempt cannot help
        return self.retry_or_give_up(
            board, open_job, failed.why, now, failed.again, diverged=not failed.again
        )

    def retry_or_give_up(
        self,
        board: str,
        open_job: OpenJob,
        why: str,
        now: float,
        again: bool = True,
        *,
        diverged: bool,
    ) -> OutgoingMessages:
        """Count a failed attempt; assign the job again, or give it up after the last attempt."""
        job = open_job.job
        where = f"client {job.client}, round {job.t}, {job.kind}"
        self.registry.stats.record_rejected_reply(board, f"{where}: {why}")
        attempt = open_job.assigned.attempt + 1
        if again and attempt < MAX_ATTEMPTS:
            open_job.assigned = replace(open_job.assigned, attempt=attempt)
            open_job.resend_timer.reset(now)
            return [open_job.assigned]
        self.lost_jobs.append(LostJob(job, board, to_single_line(why), diverged))
        del self.open_jobs[open_job.assigned.id]
        return []


def describe_unexpected_error(error: Exception) -> str:
    """Return the reason to record if a board's message causes an unexpected exception."""
    return f"it cannot be handled: {error!r}"
