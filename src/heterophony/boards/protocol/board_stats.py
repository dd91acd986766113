"""Counters, log lines and timelines of all boards, without I/O or a clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...runs.events import BoardRound
from .message_fields import to_single_line
from .messages import Assigned, Done

MAX_BURST_LINES = 5  # lines about one subject at once
SECONDS_PER_LINE = 10.0  # after a burst


@dataclass
class TokenBucket:
    """Limits how many log lines are written about one board; the allowance is refilled over time."""

    updated_at: float
    tokens: float = MAX_BURST_LINES
    suppressed: int = 0

    def try_take(self, now: float) -> bool:
        """Return True if a line is allowed now; otherwise count it as suppressed."""
        refill = (now - self.updated_at) / SECONDS_PER_LINE
        self.tokens, self.updated_at = min(MAX_BURST_LINES, self.tokens + refill), now
        if self.tokens < 1:
            self.suppressed += 1
            return False
        self.tokens -= 1
        return True


class RateLimitedLog:
    """The server's log lines that were not taken yet, with a rate limit for each subject, such as a board."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.buckets: dict[str, TokenBucket] = {}

    def add_line(self, subject: str, line: str, now: float) -> None:
        """Add a line about a subject, unless the subject has reached its rate limit."""
        bucket = self.buckets.setdefault(subject, TokenBucket(now))
        if not bucket.try_take(now):
            return
        if suppressed := bucket.suppressed:
            line, bucket.suppressed = f"{line} (and {suppressed} more, left out)", 0
        self.lines.append(line)

    def take_lines(self) -> list[str]:
        """Return the log lines that were added since the last call."""
        lines, self.lines = self.lines, []
        return lines


Interval = tuple[float, float]
MAX_SPANS = 3000  # spans recorded per board and round; more are only counted


@dataclass
class BoardTimeline:
    """The jobs and transfers of one board in one round, with their times."""

    first_want: float | None = None
    last_want: float = 0.0
    announced: dict[str, float] = field(default_factory=dict)  # job -> when its reply was ready
    jobs: list[tuple[str, str, float, float]] = field(default_factory=list)  # as spans
    train: float = 0.0
    evaluate: float = 0.0


class RoundTimeline:
    """The timelines of all boards in the current round."""

    def __init__(self) -> None:
        self.start = 0.0
        self.boards: dict[str, BoardTimeline] = {}

    def begin(self, now: float) -> None:
        """Start the timelines of a new round."""
        self.start, self.boards = now, {}

    def get(self, board: str) -> BoardTimeline:
        """Return the timeline of a board in the current round."""
        return self.boards.setdefault(board, BoardTimeline())

    def record_want(self, board: str, now: float) -> None:
        """Record that a board requested tensors of a job."""
        timeline = self.get(board)
        timeline.first_want = now if timeline.first_want is None else timeline.first_want
        timeline.last_want = now

    def record_done(self, board: str, id: str, now: float) -> None:
        """Record when a board announced a reply for the first time."""
        self.get(board).announced.setdefault(id, now)

    def record_taken(self, board: str, assigned: Assigned, done: Done, now: float) -> None:
        """Record the work and the transfer of a board's reply, which has just been accepted."""
        timeline = self.get(board)
        ready = timeline.announced.get(assigned.id, now)
        work = "train" if assigned.job == "train" else "evaluate"
        if work == "train":
            timeline.train += done.seconds
        else:
            timeline.evaluate += done.seconds
        begun = max(self.start, ready - done.seconds)
        for what, a, b in ((work, begun, ready), ("send", ready, now)):
            if len(timeline.jobs) < MAX_SPANS:
                times = self.to_round_time(a), self.to_round_time(b)
                timeline.jobs.append((what, assigned.client, *times))

    def to_round_time(self, when: float) -> float:
        """Return the seconds from the start of the round to a time on the server's clock."""
        return round(max(0.0, when - self.start), 3)

    def describe(
        self, board: str, now: float, sent: int, received: int, metrics: Mapping[str, float]
    ) -> BoardRound:
        """Return a board's part of the round's event; ``metrics`` are its own measurements."""
        timeline = self.get(board)
        spans = list(timeline.jobs)
        if timeline.first_want is not None:
            first = self.to_round_time(timeline.first_want)
            spans.insert(0, ("receive", "", first, self.to_round_time(timeline.last_want)))
        moving = [(s[2], s[3]) for s in spans if s[0] in ("receive", "send")]
        busy = measure_covered_time((s[2], s[3]) for s in spans)
        out: BoardRound = {
            "train": round(timeline.train, 3),
            "evaluate": round(timeline.evaluate, 3),
            "transfer": round(measure_covered_time(moving), 3),
            "wait": round(max(0.0, now - self.start - busy), 3),
            "bytes_down": sent,
            "bytes_up": received,
            "spans": [list(span) for span in spans],
        }
        for name in ("peak_bytes", "celsius", "clients_possible", "cpu_share", "joules"):
            if name in metrics:
                out[name] = metrics[name]
        return out


def measure_covered_time(intervals: Iterable[Interval]) -> float:
    """Return the total time that a board's intervals of work or transfer cover."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(intervals):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


MAX_REASON_LENGTH = 300  # characters
MAX_UNADMITTED_BOARDS = 64  # most unadmitted boards that have counters of their own
MAX_LISTED_CLIENTS = 12  # most clients named in a line of the log
MAX_REPORTED_SECONDS = 1e9


class RecordFact(Protocol):
    """A function that records a fact about a run on boards in its journal."""

    def __call__(self, kind: str, board: str = "-", **details: Any) -> None: ...


def ignore_fact(kind: str, board: str = "-", **details: Any) -> None:
    """Ignore a fact about a board; this is for runs without a journal."""


@dataclass
class BoardCounters:
    """The counters of one board, or the shared counters of all unadmitted boards over the limit."""

    admitted: bool = False  # whether it holds clients of the run
    state: str = "arriving"  # arriving, expected, here, gone, refused or shut_out
    since: float | None = None  # on the server's clock
    bytes_down: int = 0
    bytes_up: int = 0
    jobs: int = 0  # jobs whose replies were accepted
    seconds: float = 0.0  # seconds of work on these jobs, as reported by the board
    refused: int = 0  # rejected replies and failed jobs
    wrong: int = 0  # invalid messages and refused Hellos
    reconnects: int = 0
    last_reason: str = ""  # reason of the last refusal or invalid message

    @property
    def problems(self) -> int:
        """The number of rejected replies, failed jobs and invalid messages."""
        return self.refused + self.wrong


class BoardStats:
    """The counters, log and timelines of all boards; the caller sets ``now`` before each message."""

    def __init__(self, expected: Iterable[str], now: float = 0.0) -> None:
        self.now, self.log = now, RateLimitedLog()
        self.record_fact: RecordFact = ignore_fact  # the caller may keep a journal
        self.counters = {d: BoardCounters(True, "expected") for d in sorted(set(expected))}
        self.other_counters = BoardCounters()
        self.timeline = RoundTimeline()
        self.foreign_messages = 0  # on topics that belong to no board of the run

    def get_counters(self, board: str) -> BoardCounters:
        """Return the counters of a board; unadmitted boards over a limit share their counters."""
        if board not in self.counters:
            unadmitted = sum(not c.admitted for c in self.counters.values())
            if unadmitted >= MAX_UNADMITTED_BOARDS:
                return self.other_counters
            self.counters[board] = BoardCounters(since=self.now)
        return self.counters[board]

    # Connections ----------------------------------------------------------------------------
    def record_welcome(self, board: str, clients: Sequence[str], returned: bool) -> None:
        """Record that a board takes part; ``returned`` if it was disconnected or restarted before."""
        counters = self.get_counters(board)
        if counters is self.other_counters:
            counters = self.counters[board] = BoardCounters()
        counters.admitted = True
        counters.reconnects += returned
        if returned or counters.state != "here":
            more = " …" if len(clients) > MAX_LISTED_CLIENTS else ""
            listed = ", ".join(clients[:MAX_LISTED_CLIENTS]) + more
            verb = "reconnected" if returned else "connected"
            self.log_line(board, f"board {board} {verb} (clients {listed})")
            self.record_fact("joined", board, clients=list(clients))
            counters.state, counters.since = "here", self.now

    def record_return(self, board: str) -> None:
        """Record that a board reconnected without a restart."""
        counters = self.get_counters(board)
        counters.reconnects += 1
        counters.state, counters.since = "here", self.now
        self.log_line(board, f"board {board} reconnected")
        self.record_fact("returned", board)

    def record_departure(self, board: str) -> None:
        """Record that a board disconnected."""
        counters = self.get_counters(board)
        if counters.state != "gone":
            if counters.state in ("here", "arriving"):
                self.log_line(board, f"board {board} disconnected")
                self.record_fact("left", board)
            counters.state, counters.since = "gone", self.now

    def record_arrival(self, board: str) -> None:
        """Record that a board is connected but not welcomed yet."""
        counters = self.get_counters(board)
        if counters.state in ("expected", "gone"):
            counters.state, counters.since = "arriving", self.now

    def record_refusal(self, board: str, why: str) -> None:
        """Record that a board's Hello was refused; a board that already takes part may continue."""
        counters = self.get_counters(board)
        if counters.state not in ("here", "refused"):
            counters.state, counters.since = "refused", self.now
        counters.wrong += 1
        self.record_problem(counters, board, f"board {board} is refused", why)

    def record_shut_out(self, board: str, why: str) -> None:
        """Record that no more messages are accepted from a board."""
        counters = self.get_counters(board)
        counters.state, counters.since = "shut_out", self.now
        counters.wrong += 1
        counters.last_reason = to_single_line(why)[:MAX_REASON_LENGTH]
        # once per enrolled board, so not limited: the flood has used up the board's allowance
        self.log.lines.append(f"board {board} is shut out: {counters.last_reason}")
        self.record_fact("shut_out", board, why=counters.last_reason)

    # Messages and work ----------------------------------------------------------------------
    def record_taken_reply(self, board: str, assigned: Assigned, done: Done) -> None:
        """Record that a board's reply was accepted."""
        counters = self.get_counters(board)
        counters.jobs += 1
        counters.seconds += min(max(done.seconds, 0.0), MAX_REPORTED_SECONDS)
        self.timeline.record_taken(board, assigned, done, self.now)

    def record_rejected_reply(self, board: str, why: str) -> None:
        """Record that a board's reply was rejected, or that its job failed."""
        counters = self.get_counters(board)
        counters.refused += 1
        self.record_problem(counters, board, f"board {board}: job failed", why)

    def record_invalid_message(self, board: str, why: object) -> None:
        """Record that a board sent an invalid message."""
        counters = self.get_counters(board)
        counters.wrong += 1
        self.record_problem(counters, board, f"board {board}: invalid message", why)

    def record_problem(self, counters: BoardCounters, board: str, what: str, why: object) -> None:
        """Write the reason of a problem with a board to the log and the journal."""
        counters.last_reason = to_single_line(why)[:MAX_REASON_LENGTH]
        self.log_line(board, f"{what}: {counters.last_reason}")
        self.record_fact("refused", board, why=counters.last_reason)

    def log_line(self, board: str, line: str) -> None:
        """Log a line about a board; all unadmitted boards share one rate limit."""
        subject = board if self.get_counters(board).admitted else ""
        self.log.add_line(subject, line, self.now)
