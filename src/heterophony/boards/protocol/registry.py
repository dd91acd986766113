"""The boards of a run and their clients, without I/O or a clock.


For the whole run, a client belongs to the board that first introduced it and has its memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .blobs import IncomingBlob
from .board_stats import BoardStats
from .message_fields import to_single_line
from .messages import Control, Done, Hello, Message, Refused, Status, Want, Welcome

AdmissionCheck = Callable[[str, Hello], str]  # returns why a board is refused, or an empty string
MAX_PAST_SESSIONS = 16


@dataclass
class RegisteredBoard:
    """A board that takes part, and the state of its transfers; its replies are pulled one at a time."""

    hello: Hello
    connected: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)
    ready_replies: dict[str, Done] = field(default_factory=dict)  # by job id
    current_transfer: tuple[Done, IncomingBlob] | None = None
    # sha256 -> whether the board has also requested the last chunk
    requested_blobs: dict[str, bool] = field(default_factory=dict)
    # sha256 -> last chunk requested so far
    furthest_chunks: dict[str, int] = field(default_factory=dict)
    past_sessions: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_PAST_SESSIONS))

    @property
    def clients(self) -> list[str]:
        """The names of the board's clients."""
        return [c.name for c in self.hello.clients]

    def record_want(self, want: Want, last: int) -> bool:
        """Record the board's request for chunks of a blob whose last chunk has the index ``last``.

        Return True if the board had not yet requested a chunk this far into the blob.
        """
        before, far = self.requested_blobs.get(want.sha256, False), max(want.chunks)
        self.requested_blobs[want.sha256] = before or last in want.chunks
        is_further = min(far, last) > self.furthest_chunks.get(want.sha256, -1)
        if is_further:
            self.furthest_chunks[want.sha256] = far
        return is_further


class BoardRegistry:
    """All boards of a run; ``board_of_client`` may be known from earlier starts of the server."""

    def __init__(
        self,
        control: Control,
        check_admission: AdmissionCheck,
        board_of_client: Mapping[str, str],
    ) -> None:
        self.start, self.config_sha256 = control.start, control.config.sha256
        self.check_admission = check_admission
        self.board_of_client = dict(board_of_client)
        self.boards: dict[str, RegisteredBoard] = {}
        self.shut_out: dict[str, str] = {}  # why messages of a board are no longer accepted
        self.stats = BoardStats(self.board_of_client.values())

    def handle_hello(self, board: str, hello: Hello) -> Message | None:
        """Return Welcome or Refused as the answer to a board's Hello; None if the Hello is outdated."""
        record = self.boards.get(board)
        if hello.start != self.start or (record and hello.session in record.past_sessions):
            return None
        why = self.find_objection(board, hello)
        if why:
            self.stats.record_refusal(board, why)
            return Refused(hello.session, self.start, to_single_line(why))
        returned = record is not None and (
            record.hello.session != hello.session or not record.connected
        )
        if record is None:
            record = self.boards[board] = RegisteredBoard(hello)
        if record.hello.session != hello.session:
            record.past_sessions.append(record.hello.session)
            record.current_transfer = None  # the restarted board announces its replies again
            record.ready_replies.clear()
            record.requested_blobs.clear()
            record.furthest_chunks.clear()
        record.hello, record.connected = hello, True
        self.board_of_client.update(dict.fromkeys(record.clients, board))
        self.stats.record_welcome(board, record.clients, returned)
        return Welcome(hello.session, self.start)

    def find_objection(self, board: str, hello: Hello) -> str:
        """Return why the board cannot take part; an empty string if it can."""
        names = [c.name for c in hello.clients]
        if len(set(names)) < len(names):
            return "it lists a client twice"
        if hello.config_sha256 != self.config_sha256:
            return (
                "it has a different configuration; restart it, so that it fetches the current one"
            )
        for name in names:
            holder = self.board_of_client.get(name, board)
            if holder != board:
                return (
                    f"client '{name}' is held by board '{holder}', which has its memory;"
                    " give this board other clients"
                )
        return self.check_admission(board, hello)

    def handle_status(self, board: str, status: Status) -> bool:
        """Record a board's status, unless it is from an earlier start; return True if the board has returned."""
        record, connected = self.boards.get(board), status.state == "here"
        if record is None:
            (self.stats.record_arrival if connected else self.stats.record_departure)(board)
            return False
        if record.hello.session != status.session or record.connected == connected:
            return False
        record.connected = connected
        (self.stats.record_return if connected else self.stats.record_departure)(board)
        return connected

    def shut_out_board(self, board: str, why: str) -> None:
        """Accept no more messages from a board until the server's next start."""
        self.shut_out[board] = why
        if record := self.boards.get(board):
            record.connected = False
        self.stats.record_shut_out(board, why)

    def find_board(self, client: str) -> str:
        """Return the board of a client if it is connected, otherwise an empty string."""
        board = self.board_of_client.get(client, "")
        record = self.boards.get(board)
        available = record is not None and record.connected and client in record.clients
        return board if available else ""

    def list_available_clients(self) -> list[str]:
        """Return the clients on connected boards, sorted by name."""
        return sorted(filter(self.find_board, self.board_of_client))
