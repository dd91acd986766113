"""Who is here: devices, the clients they hold, and what they did wrong. No I/O, no clock.

A client belongs to the device that first greeted with it, for good: what it keeps lies there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .blob_transfer import BlobTransfer
from .device_stats import DeviceCounters, DeviceStats
from .message_fields import to_single_line
from .messages import Done, Hello, Message, Refused, Status, Want, Welcome

AdmissionCheck = Callable[[str, Hello], str]  # a device and its greeting: why not, or nothing


@dataclass
class RegisteredDevice:
    """A device that was welcomed, and its replies that are to be pulled, one after the other."""

    hello: Hello
    connected: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)
    ready_replies: dict[str, Done] = field(default_factory=dict)  # by task
    current_transfer: tuple[Done, BlobTransfer] | None = None
    requested_blobs: dict[str, bool] = field(
        default_factory=dict
    )  # blobs it asked for: to their end?
    past_sessions: deque[str] = field(
        default_factory=lambda: deque(maxlen=16)
    )  # sessions that are over

    @property
    def clients(self) -> list[str]:
        return [c.name for c in self.hello.clients]

    def record_want(self, want: Want, last: int) -> None:
        """It asks for chunks of a blob, perhaps for the last one."""
        self.requested_blobs[want.sha256] = (
            self.requested_blobs.get(want.sha256, False) or last in want.chunks
        )


class DeviceRegistry:
    """All devices of a run."""

    def __init__(
        self, epoch: int, config_sha256: str, accept: AdmissionCheck, holders: Mapping[str, str]
    ):
        self.epoch, self.config_sha256, self.check_admission = epoch, config_sha256, accept
        self.device_of_client = dict(holders)  # device by client; the server's journal outlives us
        self.devices: dict[str, RegisteredDevice] = {}
        self.stats = DeviceStats(self.device_of_client.values())

    @property
    def misbehaving_devices(self) -> dict[str, DeviceCounters]:
        """The devices that did something wrong."""
        return {d: account for d, account in self.stats.counters.items() if account.problem_count}

    def handle_hello(self, device: str, hello: Hello) -> Message | None:
        """Welcome, refused, or no answer to a greeting from before."""
        guest = self.devices.get(device)
        if hello.epoch != self.epoch or (guest and hello.session in guest.past_sessions):
            return None
        why = self.find_objection(device, hello)
        if why:
            self.stats.record_refusal(device, why)
            return Refused(hello.session, self.epoch, to_single_line(why))
        back = guest is not None and (guest.hello.session != hello.session or not guest.connected)
        if guest is None:
            guest = self.devices[device] = RegisteredDevice(hello)
        if guest.hello.session != hello.session:
            guest.past_sessions.append(guest.hello.session)
            guest.current_transfer = None  # it will say itself what it still has
            guest.ready_replies.clear()
            guest.requested_blobs.clear()
        guest.hello, guest.connected = hello, True
        self.device_of_client.update(dict.fromkeys(guest.clients, device))
        self.stats.record_welcome(device, guest.clients, back)
        return Welcome(hello.session, self.epoch)

    def find_objection(self, device: str, hello: Hello) -> str:
        """Why the device cannot take part; nothing if it can."""
        names = [c.name for c in hello.clients]
        if len(set(names)) < len(names):
            return "it names a client twice"
        if hello.config_sha256 != self.config_sha256:
            return "it has another configuration; start it anew, so that it fetches this one"
        for name in names:
            holder = self.device_of_client.get(name, device)
            if holder != device:
                return (
                    f"client '{name}' is held by device '{holder}', where what it keeps lies;"
                    " give this device other clients"
                )
        return self.check_admission(device, hello)

    def handle_status(self, device: str, status: Status) -> bool:
        """Has the device come back? Words of a start of the device that is over count nothing."""
        guest, here = self.devices.get(device), status.state == "here"
        if guest is None:
            (self.stats.record_arrival if here else self.stats.record_departure)(device)
            return False
        if guest.hello.session != status.session or guest.connected == here:
            return False
        guest.connected = here
        (self.stats.record_return if here else self.stats.record_departure)(device)
        return here

    def find_device(self, client: str) -> tuple[str, RegisteredDevice | None]:
        """The device that holds a client, and whether we may speak to it now."""
        device = self.device_of_client.get(client, "")
        guest = self.devices.get(device)
        there = guest is not None and guest.connected and client in guest.clients
        return device, guest if there else None

    def list_available_clients(self) -> list[str]:
        """Clients that can be asked now, by name."""
        return sorted(c for c in self.device_of_client if self.find_device(c)[1] is not None)
