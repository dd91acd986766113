"""The server's journal of a run on boards, for people, and its status file, for the page.

The journal records who joined, what was refused and what was sent, one line per fact. A line is
the time, a digest, the kind of fact, the board and a JSON object. The digest covers the line and the
digest before it, so that an altered or missing line is noticed. Nothing reads the file back: it is
for people, and a run has the same bits without it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

from ..core.errors import FolderError, HeterophonyError, StorageError
from ..core.files import open_to_append, read_regular_file, translate_disk_errors, write_atomically
from ..runs.run_index import BOARDS_FILE
from .protocol.board_stats import BoardCounters
from .protocol.registry import RegisteredBoard
from .protocol.server_session import ServerSession

JOURNAL_FILE = "journal.log"
MAX_FILE_BYTES = 16 << 20
MAX_LINE_BYTES = 4096
MAX_LINES_OF_BOARD = 1000  # per board, for kinds of fact that a board can cause at will
KINDS_AT_WILL = ("joined", "left", "returned", "refused")
FIRST_DIGEST = "0" * 16
LINE_PATTERN = re.compile(r"(\S+) ([0-9a-f]{16}) (\w+) (\S+) (\{.*\})")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Fact:
    """The content of one line of a journal."""

    time: str
    digest: str
    kind: str
    board: str  # "-" if the fact is not about one board
    details: dict[str, Any]


class Journal:
    """Appends facts about a run on boards to its journal; a disk error is reported but does not stop the run."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.path, self.say = folder / JOURNAL_FILE, say
        self.file: BinaryIO | None = None
        self.digest, self.size, self.is_full = FIRST_DIGEST, 0, False
        self.lines_by_board = Counter[str]()
        self.written_refusals = set[tuple[str, str]]()  # bounded by MAX_LINES_OF_BOARD
        self.unwritten = Counter[str]()  # facts of a board that are only counted
        try:
            self.open_file()
        except HeterophonyError as error:
            self.stop_writing(error)

    def open_file(self) -> None:
        """Open the journal to continue it after its last complete line."""
        with translate_disk_errors(self.path):
            self.file = open_to_append(self.path)
            content = read_regular_file(self.path, MAX_FILE_BYTES)
            self.size = content.rfind(b"\n") + 1
            if self.size < len(content):  # the server was killed while it wrote this line
                self.file.truncate(self.size)
        last = content[: self.size].decode(errors="replace").splitlines()[-1:]
        if last and (match := LINE_PATTERN.fullmatch(last[0])):
            self.digest, self.is_full = match[2], match[3] == "full"

    def record(self, kind: str, board: str = "-", **details: Any) -> None:
        """Write a fact to the journal, unless it is a repetition or its board has too many lines."""
        if kind in KINDS_AT_WILL and not self.is_worth_a_line(kind, board, details):
            self.unwritten[board] += 1
            return
        self.write_line(kind, board, details)

    def is_worth_a_line(self, kind: str, board: str, details: dict[str, Any]) -> bool:
        """Return True if the journal should have a line about this fact, which a board can cause at will."""
        if self.lines_by_board[board] >= MAX_LINES_OF_BOARD:
            return False
        refusal = board, str(details.get("why"))
        if kind == "refused":
            if refusal in self.written_refusals:
                return False
            self.written_refusals.add(refusal)
        self.lines_by_board[board] += 1
        return True

    def write_line(self, kind: str, board: str, details: dict[str, Any]) -> None:
        """Append a fact to the journal, unless that is full or can no longer be written."""
        if self.file is None or self.is_full:
            return
        line = self.make_line(kind, board, details)
        if self.size + len(line) > MAX_FILE_BYTES - MAX_LINE_BYTES:
            self.is_full = True
            why = f"the journal has reached {self.size} bytes; nothing more is written"
            line = self.make_line("full", "-", {"why": why})
            self.say(f"{self.path}: {why}")
        try:
            with translate_disk_errors(self.path):
                self.file.write(line)
                self.file.flush()
        except StorageError as error:
            self.stop_writing(error)
            return
        self.size += len(line)
        self.digest = line.split(b" ", 2)[1].decode()

    def make_line(self, kind: str, board: str, details: dict[str, Any]) -> bytes:
        """Return the journal's line for a fact, with time and digest; long details are cut."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        # ASCII only: no control character and no sign that changes the direction of text
        rest = f"{kind} {board} {json.dumps(details, sort_keys=True)}"
        if len(rest) > MAX_LINE_BYTES - 64:
            rest = f"{kind} {board} {json.dumps({'cut': rest[: MAX_LINE_BYTES // 4]})}"
        return f"{time} {compute_digest(self.digest, time, rest)} {rest}\n".encode()

    def stop_writing(self, error: HeterophonyError) -> None:
        """Report a disk error, and stop writing to the journal."""
        self.file = None
        self.say(f"the journal can no longer be written: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        """Write how many facts were left out and how the server stopped; close the journal."""
        for board, count in sorted(self.unwritten.items()):
            self.write_line("counted", board, {"more": count})
        why = {} if kind is None else {"why": f"{kind.__name__}: {error}"[:300]}
        self.write_line("stopped" if kind else "ended", "-", why)
        if self.file is not None:
            self.file.close()


def compute_digest(before: str, time: str, rest: str) -> str:
    """Return the digest of a journal's line, which covers the digest of the line before it."""
    return hashlib.sha256(f"{before} {time} {rest}".encode()).hexdigest()[:16]


# Read ---------------------------------------------------------------------------------------
def read_journal(folder: Path) -> list[str]:
    """Return the lines of a run's journal."""
    path = folder / JOURNAL_FILE
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise FolderError(
            f"{path} does not exist; only the server of a run on boards writes a journal"
        ) from None
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from None
    return content.decode(errors="replace").split("\n")[:-1]


def parse_journal_line(line: str) -> Fact | None:
    """Return the fact in a journal's line; None if the line is malformed."""
    match = LINE_PATTERN.fullmatch(line)
    try:
        details = json.loads(match[5]) if match else None
    except (ValueError, RecursionError):
        details = None
    if match is None or not isinstance(details, dict):
        return None
    return Fact(match[1], match[2], match[3], match[4], details)


def find_altered_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of each altered line of a journal, and of lines after missing ones, with a reason."""
    before = FIRST_DIGEST
    for number, line in enumerate(lines, 1):
        match = LINE_PATTERN.fullmatch(line)
        if match is None:
            yield number, "it is not a journal line"
            continue
        time, digest = match[1], match[2]
        if compute_digest(before, time, line.split(" ", 2)[2]) != digest:
            yield number, "it was altered, or lines before it are missing"
        before = digest


# The status ---------------------------------------------------------------------------------------


STATUS_VERSION = 1  # version of the format, checked by readers
COUNTER_NAMES = ("bytes_down", "bytes_up", "jobs", "refused", "wrong", "reconnects")
Json = dict[str, Any]


def build_status(session: ServerSession, clock_offset: float = 0.0) -> Json:
    """Return the content of the status file of a run on boards.

    ``clock_offset`` is the date of the server clock's 0, in seconds since 1970.
    """
    stats, control = session.stats, session.control
    clients_by_board: dict[str, list[str]] = {}
    for client, board in session.registry.board_of_client.items():
        clients_by_board.setdefault(board, []).append(client)
    return {
        "form": STATUS_VERSION,
        "state": control.state,
        "t": control.t,
        "rounds": control.rounds,
        "boards": {
            board: {
                **format_board_status(counters, clock_offset),
                "clients": clients_by_board.get(board, []),
                "doing": list_board_activities(session, board, session.registry.boards.get(board)),
            }
            for board, counters in sorted(stats.counters.items())
        },
        "others": format_counters(stats.other_counters),
        "foreign": stats.foreign_messages,
    }


def format_board_status(counters: BoardCounters, clock_offset: float) -> Json:
    """Return the part of the status file about one board: its state and its counters."""
    since = None if counters.since is None else round(clock_offset + counters.since)
    return {"state": counters.state, "since": since, **format_counters(counters)}


def format_counters(counters: BoardCounters) -> Json:
    """Return the counters for the status file, of one board or of all other boards together."""
    counts = {name: getattr(counters, name) for name in COUNTER_NAMES}
    return {**counts, "seconds": round(counters.seconds, 3), "why": counters.last_reason}


def list_board_activities(
    session: ServerSession, board: str, record: RegisteredBoard | None
) -> list[Json]:
    """Return a board's activities for the status file: its next job, and the reply that it sends.

    A job is ``asked`` at first, ``pull`` while the board requests tensors, and ``train`` (or another
    kind of job) once it has requested the last chunk.
    """
    if record is None or not record.connected:
        return []
    sending = record.current_transfer[0].id if record.current_transfer else ""
    jobs = {o.assigned.id: o.assigned for o in session.assignments.list_open_jobs(board)}
    to_do = [j for key, j in jobs.items() if key != sending and key not in record.ready_replies]
    activities = []
    if to_do:
        assigned = min(to_do, key=lambda j: (j.t, j.job != "train"))
        requested = [
            record.requested_blobs.get(b.sha256) for b in (assigned.tensors, assigned.average)
        ]
        if all(requested):
            what = assigned.job
        else:
            what = "pull" if any(r is not None for r in requested) else "asked"
        activities.append({"what": what, "client": assigned.client, "t": assigned.t})
    if sending in jobs:
        assigned = jobs[sending]
        activities.append({"what": "send", "client": assigned.client, "t": assigned.t})
    return activities


MIN_CHECK_SECONDS = 1.0  # between two checks for changes
MAX_WRITE_SECONDS = 10.0  # between two writes, even if nothing has changed


class StatusWriter:
    """Writes the status file of a run on boards while the server runs, and once when it exits."""

    def __init__(
        self,
        session: ServerSession,
        folder: Path,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session, self.path, self.say = session, folder / BOARDS_FILE, say
        self.clock = clock
        self.clock_offset = time.time() - clock()  # the date of the clock's 0
        self.last_check: float | None = None
        self.last_write = 0.0
        self.last_status: dict[str, Any] = {}
        self.can_write = True

    def update(self) -> None:
        """Print new log lines about boards, and write the status file if it is due."""
        for line in self.session.stats.log.take_lines():
            self.say(line)
        now = self.clock()
        if self.last_check is not None and now - self.last_check < MIN_CHECK_SECONDS:
            return
        self.last_check = now
        status = build_status(self.session, self.clock_offset)
        if status != self.last_status or now - self.last_write >= MAX_WRITE_SECONDS:
            self.write_status(status, now)

    def write_status(self, status: dict[str, Any], now: float) -> None:
        """Write the status file; report only the first of several disk errors in a row."""
        content = {**status, "written": round(self.clock_offset + now)}
        try:
            write_atomically(
                self.path, (json.dumps(content, indent=1) + "\n").encode(), durable=False
            )
        except StorageError as error:  # not a reason to stop the run
            if self.can_write:
                self.say(f"cannot write the status of the boards: {error}")
            self.can_write = False
        else:
            self.can_write = True
        self.last_status, self.last_write = status, now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.last_check is None:
            return  # the run had finished before; the status written then is still correct
        status = build_status(self.session, self.clock_offset)
        if status["state"] != "ended":
            status["state"] = "stopped"
        self.write_status(status, self.clock())
