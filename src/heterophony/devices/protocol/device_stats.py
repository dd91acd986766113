"""What each device did, in exact counts, since this start of the server. No I/O, no clock.

Nothing in it grows with what a device says: words are cut, and strangers share one account when
they are many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .message_fields import line
from .rate_limited_log import News

WORDS = 300  # characters of a reason
STRANGERS = 64  # devices that were not welcomed and have an account of their own


@dataclass
class Account:
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
    last: str = ""  # why, the last time that something was refused or wrong

    @property
    def count(self) -> int:
        """How often there was something to complain of."""
        return self.refused + self.wrong


class Ledger:
    """The accounts of all devices; ``now`` is told with every message."""

    def __init__(self, expected: Iterable[str], now: float = 0.0) -> None:
        self.now, self.news = now, News()
        self.accounts = {d: Account(True, "expected") for d in sorted(set(expected))}
        self.others = Account()
        self.foreign = 0  # messages on topics that belong to nobody

    def of(self, device: str) -> Account:
        if device not in self.accounts:
            if sum(not a.admitted for a in self.accounts.values()) >= STRANGERS:
                return self.others
            self.accounts[device] = Account(since=self.now)
        return self.accounts[device]

    # Coming and going -----------------------------------------------------------------------
    def welcomed(self, device: str, clients: Sequence[str], back: bool) -> None:
        """The device takes part; ``back``: it did before, and was away or has started anew."""
        account = self.of(device)
        if account is self.others:
            account = self.accounts[device] = Account()
        account.admitted = True
        account.reconnects += back
        if back or account.state != "here":
            holds = ", ".join(clients[:12]) + (" …" if len(clients) > 12 else "")
            self.tell(device, f"device {device} is {'back' if back else 'here'} (clients {holds})")
            account.state, account.since = "here", self.now

    def returned(self, device: str) -> None:
        """It was away for a while, and is the same."""
        account = self.of(device)
        account.reconnects += 1
        account.state, account.since = "here", self.now
        self.tell(device, f"device {device} is back")

    def left(self, device: str) -> None:
        account = self.of(device)
        if account.state != "gone":
            if account.state in ("here", "arriving"):
                self.tell(device, f"device {device} is gone")
            account.state, account.since = "gone", self.now

    def nears(self, device: str) -> None:
        """It is connected, and has not greeted yet, or was refused when it did."""
        account = self.of(device)
        if account.state in ("expected", "gone"):
            account.state, account.since = "arriving", self.now

    def turned_away(self, device: str, why: str) -> None:
        """Its greeting is refused; one that takes part goes on as it was welcomed."""
        account = self.of(device)
        if account.state not in ("here", "refused"):
            account.state, account.since = "refused", self.now
        account.wrong += 1
        self.blame(account, device, f"device {device} is refused", why)

    # Messages and work ----------------------------------------------------------------------
    def heard(self, device: str, size: int) -> None:
        self.of(device).bytes_up += size

    def said(self, device: str, size: int) -> None:
        self.of(device).bytes_down += size

    def took(self, device: str, seconds: float) -> None:
        account = self.of(device)
        account.tasks += 1
        account.seconds += min(max(seconds, 0.0), 1e9)  # it may say anything

    def refused(self, device: str, why: str) -> None:
        """A reply is not taken, or there will be none."""
        account = self.of(device)
        account.refused += 1
        self.blame(account, device, f"device {device}: its work is not taken", why)

    def wronged(self, device: str, why: object) -> None:
        """It said what nobody should."""
        account = self.of(device)
        account.wrong += 1
        self.blame(account, device, f"device {device}: a message is wrong", why)

    def blame(self, account: Account, device: str, what: str, why: object) -> None:
        account.last = line(why)[:WORDS]
        self.tell(device, f"{what}: {account.last}")

    def tell(self, device: str, words: str) -> None:
        about = device if self.of(device).admitted else ""
        self.news.tell(about, words, self.now)
