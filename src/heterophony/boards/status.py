"""The status of a run and its boards, written to a file for the page and the dashboard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..core.errors import StorageError
from ..core.files import write_atomically
from ..runs.run_index import BOARDS_FILE
from .protocol.board_stats import BoardCounters
from .protocol.registry import RegisteredBoard
from .protocol.server_session import ServerSession

STATUS_VERSION = 1  # of the data; readers check it
COUNTER_NAMES = ("bytes_down", "bytes_up", "jobs", "refused", "wrong", "reconnects")
Json = dict[str, Any]


def build_status(session: ServerSession, clock_offset: float = 0.0) -> Json:
    """Return the status; ``clock_offset`` is the date of the server's own time 0, in seconds."""
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
                **format_board(counters, clock_offset),
                "clients": clients_by_board.get(board, []),
                "doing": list_activities(session, board, session.registry.boards.get(board)),
            }
            for board, counters in sorted(stats.counters.items())
        },
        "others": format_counters(stats.other_counters),
        "foreign": stats.foreign_messages,
    }


def format_board(counters: BoardCounters, clock_offset: float) -> Json:
    since = None if counters.since is None else round(clock_offset + counters.since)
    return {"state": counters.state, "since": since, **format_counters(counters)}


def format_counters(counters: BoardCounters) -> Json:
    counts = {name: getattr(counters, name) for name in COUNTER_NAMES}
    return {**counts, "seconds": round(counters.seconds, 3), "why": counters.last_reason}


def list_activities(
    session: ServerSession, board: str, record: RegisteredBoard | None
) -> list[Json]:
    """Return what the board does, as its messages show: its next job, and a reply being sent.

    A job is ``asked`` until the board pulls its tensors (``pull``), and is worked on (``train`` …)
    once the board has requested the last of them.
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
    """Writes the status from the start of the server to its end, however that comes."""

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
        """Print new lines, and write the status if it is time to; cheap to call often."""
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
        content = {**status, "written": round(self.clock_offset + now)}
        try:
            write_atomically(
                self.path, (json.dumps(content, indent=1) + "\n").encode(), durable=False
            )
        except StorageError as error:  # not a reason to end the run
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
            return  # the run had ended before; the status written then is still right
        status = build_status(self.session, self.clock_offset)
        if status["state"] != "ended":
            status["state"] = "stopped"
        self.write_status(status, self.clock())
