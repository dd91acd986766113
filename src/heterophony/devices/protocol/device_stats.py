"""What each device did, in exact counts, since this start of the server. No I/O, no clock.

Nothing in it grows with what a device says: words are cut, and strangers share one account when
they are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .message_fields import to_single_line
from .rate_limited_log import RateLimitedLog

MAX_REASON_LENGTH = 300  # characters of a reason
MAX_UNADMITTED_DEVICES = 64  # devices that were not welcomed and have an account of their own


@dataclass
class DeviceCounters:
    """One device, or all strangers for whom there is no place."""

    admitted: bool = False  # it holds clients of the run
    state: str = "arriving"  # or expected, here, gone, refused
    since: float | None = None  # in the server's own time
    bytes_down: int = 0
    bytes_up: int = 0
    tasks: int = 0  # whose replies were taken
    seconds: float = 0.0  # of work on them, as the device says
    refused: int = 0  # replies that were not taken, and tasks it could not do
    wrong: int = 0  # messages that nobody should send, and greetings that were refused
    reconnects: int = 0
    last_reason: str = ""  # why, the last time that something was refused or wrong

    @property
    def problem_count(self) -> int:
        """How often there was something to complain of."""
        return self.refused + self.wrong


class DeviceStats:
    """The accounts of all devices; ``now`` is told with every message."""

    def __init__(self, expected: Iterable[str], now: float = 0.0) -> None:
        self.now, self.log = now, RateLimitedLog()
        self.counters = {d: DeviceCounters(True, "expected") for d in sorted(set(expected))}
        self.other_counters = DeviceCounters()
        self.foreign_messages = 0  # messages on topics that belong to nobody

    def get_counters(self, device: str) -> DeviceCounters:
        if device not in self.counters:
            if sum(not a.admitted for a in self.counters.values()) >= MAX_UNADMITTED_DEVICES:
                return self.other_counters
            self.counters[device] = DeviceCounters(since=self.now)
        return self.counters[device]

    # Coming and going -----------------------------------------------------------------------
    def record_welcome(self, device: str, clients: Sequence[str], back: bool) -> None:
        """The device takes part; ``back``: it did before, and was away or has started anew."""
        account = self.get_counters(device)
        if account is self.other_counters:
            account = self.counters[device] = DeviceCounters()
        account.admitted = True
        account.reconnects += back
        if back or account.state != "here":
            holds = ", ".join(clients[:12]) + (" …" if len(clients) > 12 else "")
            self.log_line(
                device, f"device {device} is {'back' if back else 'here'} (clients {holds})"
            )
            account.state, account.since = "here", self.now

    def record_return(self, device: str) -> None:
        """It was away for a while, and is the same."""
        account = self.get_counters(device)
        account.reconnects += 1
        account.state, account.since = "here", self.now
        self.log_line(device, f"device {device} is back")

    def record_departure(self, device: str) -> None:
        account = self.get_counters(device)
        if account.state != "gone":
            if account.state in ("here", "arriving"):
                self.log_line(device, f"device {device} is gone")
            account.state, account.since = "gone", self.now

    def record_arrival(self, device: str) -> None:
        """It is connected, and has not greeted yet, or was refused when it did."""
        account = self.get_counters(device)
        if account.state in ("expected", "gone"):
            account.state, account.since = "arriving", self.now

    def record_refusal(self, device: str, why: str) -> None:
        """Its greeting is refused; one that takes part goes on as it was welcomed."""
        account = self.get_counters(device)
        if account.state not in ("here", "refused"):
            account.state, account.since = "refused", self.now
        account.wrong += 1
        self.record_problem(account, device, f"device {device} is refused", why)

    # Messages and work ----------------------------------------------------------------------
    def count_received(self, device: str, size: int) -> None:
        self.get_counters(device).bytes_up += size

    def count_sent(self, device: str, size: int) -> None:
        self.get_counters(device).bytes_down += size

    def record_taken_reply(self, device: str, seconds: float) -> None:
        account = self.get_counters(device)
        account.tasks += 1
        account.seconds += min(max(seconds, 0.0), 1e9)  # it may say anything

    def record_rejected_reply(self, device: str, why: str) -> None:
        """A reply is not taken, or there will be none."""
        account = self.get_counters(device)
        account.refused += 1
        self.record_problem(account, device, f"device {device}: its work is not taken", why)

    def record_invalid_message(self, device: str, why: object) -> None:
        """It said what nobody should."""
        account = self.get_counters(device)
        account.wrong += 1
        self.record_problem(account, device, f"device {device}: a message is wrong", why)

    def record_problem(self, account: DeviceCounters, device: str, what: str, why: object) -> None:
        account.last_reason = to_single_line(why)[:MAX_REASON_LENGTH]
        self.log_line(device, f"{what}: {account.last_reason}")

    def log_line(self, device: str, words: str) -> None:
        about = device if self.get_counters(device).admitted else ""
        self.log.add_line(about, words, self.now)
