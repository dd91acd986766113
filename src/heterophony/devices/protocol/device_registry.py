"""Who is here: devices, the clients they hold, and what they did wrong. No I/O, no clock.

A client belongs to the device that first greeted with it, for good: what it keeps lies there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .blob_transfer import Pull
from .device_stats import Account, Ledger
from .message_fields import line
from .messages import (
    Done,
    Hello,
    Message,
    Refused,
    Status,
    Want,
    Welcome,
)

Accept = Callable[[str, Hello], str]  # a device and its greeting: why not, or nothing


@dataclass
class Guest:
    """A device that was welcomed, and its replies that are to be pulled, one after the other."""

    hello: Hello
    here: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)
    ready: dict[str, Done] = field(default_factory=dict)  # by task
    pulling: tuple[Done, Pull] | None = None
    pulled: dict[str, bool] = field(default_factory=dict)  # blobs it asked for: to their end?
    past: deque[str] = field(default_factory=lambda: deque(maxlen=16))  # sessions that are over

    @property
    def clients(self) -> list[str]:
        return [c.name for c in self.hello.clients]

    def pulls(self, want: Want, last: int) -> None:
        """It asks for chunks of a blob, perhaps for the last one."""
        self.pulled[want.sha256] = self.pulled.get(want.sha256, False) or last in want.chunks


class Guests:
    """All devices of a run."""

    def __init__(self, epoch: int, config_sha256: str, accept: Accept, holders: Mapping[str, str]):
        self.epoch, self.config_sha256, self.accept = epoch, config_sha256, accept
        self.holders = dict(holders)  # device by client; the server's journal outlives us
        self.known: dict[str, Guest] = {}
        self.ledger = Ledger(self.holders.values())

    @property
    def complaints(self) -> dict[str, Account]:
        """The devices that did something wrong."""
        return {d: account for d, account in self.ledger.accounts.items() if account.count}

    def hello(self, device: str, hello: Hello) -> Message | None:
        """Welcome, refused, or no answer to a greeting from before."""
        guest = self.known.get(device)
        if hello.epoch != self.epoch or (guest and hello.session in guest.past):
            return None
        why = self.objection(device, hello)
        if why:
            self.ledger.turned_away(device, why)
            return Refused(hello.session, self.epoch, line(why))
        back = guest is not None and (guest.hello.session != hello.session or not guest.here)
        if guest is None:
            guest = self.known[device] = Guest(hello)
        if guest.hello.session != hello.session:
            guest.past.append(guest.hello.session)
            guest.pulling = None  # it will say itself what it still has
            guest.ready.clear()
            guest.pulled.clear()
        guest.hello, guest.here = hello, True
        self.holders.update(dict.fromkeys(guest.clients, device))
        self.ledger.welcomed(device, guest.clients, back)
        return Welcome(hello.session, self.epoch)

    def objection(self, device: str, hello: Hello) -> str:
        """Why the device cannot take part; nothing if it can."""
        names = [c.name for c in hello.clients]
        if len(set(names)) < len(names):
            return "it names a client twice"
        if hello.config_sha256 != self.config_sha256:
            return "it has another configuration; start it anew, so that it fetches this one"
        for name in names:
            holder = self.holders.get(name, device)
            if holder != device:
                return (
                    f"client '{name}' is held by device '{holder}', where what it keeps lies;"
                    " give this device other clients"
                )
        return self.accept(device, hello)

    def status(self, device: str, status: Status) -> bool:
        """Has the device come back? Words of a start of the device that is over count nothing."""
        guest, here = self.known.get(device), status.state == "here"
        if guest is None:
            (self.ledger.nears if here else self.ledger.left)(device)
            return False
        if guest.hello.session != status.session or guest.here == here:
            return False
        guest.here = here
        (self.ledger.returned if here else self.ledger.left)(device)
        return here

    def of_client(self, client: str) -> tuple[str, Guest | None]:
        """The device that holds a client, and whether we may speak to it now."""
        device = self.holders.get(client, "")
        guest = self.known.get(device)
        there = guest is not None and guest.here and client in guest.clients
        return device, guest if there else None

    def present(self) -> list[str]:
        """Clients that can be asked now, by name."""
        return sorted(c for c in self.holders if self.of_client(c)[1] is not None)
