"""The devices of a run, the clients they hold, and what they did wrong. No I/O, no clock.

A client belongs for the whole run to the device that first introduced it: its memory is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .blobs import BlobTransfer
from .board_stats import DeviceCounters, DeviceStats
from .message_fields import to_single_line
from .messages import Done, Hello, Message, Refused, Status, Want, Welcome

AdmissionCheck = Callable[[str, Hello], str]  # returns why a device is refused, or an empty string
MAX_PAST_SESSIONS = 16


@dataclass
class RegisteredDevice:
    """A device that was welcomed, and its replies to be pulled one after the other."""

    hello: Hello
    connected: bool = True
    metrics: Mapping[str, float] = field(default_factory=dict)
    ready_replies: dict[str, Done] = field(default_factory=dict)  # by task
    current_transfer: tuple[Done, BlobTransfer] | None = None
    # by sha256: whether the device has requested the last chunk too
    requested_blobs: dict[str, bool] = field(default_factory=dict)
    furthest_chunks: dict[str, int] = field(default_factory=dict)  # by sha256: requested so far
    past_sessions: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_PAST_SESSIONS))

    @property
    def clients(self) -> list[str]:
        return [c.name for c in self.hello.clients]

    def record_want(self, want: Want, last: int) -> bool:
        """Record that the device requested chunks of a blob whose last chunk is ``last``.

        Return whether it had not requested as far before.
        """
        before, far = self.requested_blobs.get(want.sha256, False), max(want.chunks)
        self.requested_blobs[want.sha256] = before or last in want.chunks
        is_further = min(far, last) > self.furthest_chunks.get(want.sha256, -1)
        if is_further:
            self.furthest_chunks[want.sha256] = far
        return is_further


class DeviceRegistry:
    """All devices of a run; ``device_of_client`` may be known from earlier starts of the server."""

    def __init__(
        self,
        *,
        epoch: int,
        config_sha256: str,
        check_admission: AdmissionCheck,
        device_of_client: Mapping[str, str],
    ) -> None:
        self.epoch = epoch
        self.config_sha256 = config_sha256
        self.check_admission = check_admission
        self.device_of_client = dict(device_of_client)
        self.devices: dict[str, RegisteredDevice] = {}
        self.shut_out: dict[str, str] = {}  # why nothing of a device is taken any more
        self.stats = DeviceStats(self.device_of_client.values())

    @property
    def misbehaving_devices(self) -> dict[str, DeviceCounters]:
        return {d: counters for d, counters in self.stats.counters.items() if counters.problems}

    def handle_hello(self, device: str, hello: Hello) -> Message | None:
        """Answer with Welcome or Refused; with nothing if the Hello is an old one."""
        record = self.devices.get(device)
        if hello.epoch != self.epoch or (record and hello.session in record.past_sessions):
            return None
        why = self.find_objection(device, hello)
        if why:
            self.stats.record_refusal(device, why)
            return Refused(hello.session, self.epoch, to_single_line(why))
        returned = record is not None and (
            record.hello.session != hello.session or not record.connected
        )
        if record is None:
            record = self.devices[device] = RegisteredDevice(hello)
        if record.hello.session != hello.session:
            record.past_sessions.append(record.hello.session)
            record.current_transfer = None  # the restarted device announces its replies again
            record.ready_replies.clear()
            record.requested_blobs.clear()
            record.furthest_chunks.clear()
        record.hello, record.connected = hello, True
        self.device_of_client.update(dict.fromkeys(record.clients, device))
        self.stats.record_welcome(device, record.clients, returned)
        return Welcome(hello.session, self.epoch)

    def find_objection(self, device: str, hello: Hello) -> str:
        """Return why the device cannot take part; an empty string if it can."""
        names = [c.name for c in hello.clients]
        if len(set(names)) < len(names):
            return "it names a client twice"
        if hello.config_sha256 != self.config_sha256:
            return "it has another configuration; restart it, so that it fetches the current one"
        for name in names:
            holder = self.device_of_client.get(name, device)
            if holder != device:
                return (
                    f"client '{name}' is held by device '{holder}', which has its memory;"
                    " give this device other clients"
                )
        return self.check_admission(device, hello)

    def handle_status(self, device: str, status: Status) -> bool:
        """Return whether the device has come back; ignore a status of one of its earlier starts."""
        record, connected = self.devices.get(device), status.state == "here"
        if record is None:
            (self.stats.record_arrival if connected else self.stats.record_departure)(device)
            return False
        if record.hello.session != status.session or record.connected == connected:
            return False
        record.connected = connected
        (self.stats.record_return if connected else self.stats.record_departure)(device)
        return connected

    def shut_out_device(self, device: str, why: str) -> None:
        """Take nothing of a device any more; its clients are unavailable until the server's next start."""
        self.shut_out[device] = why
        if record := self.devices.get(device):
            record.connected = False
        self.stats.record_shut_out(device, why)

    def find_device(self, client: str) -> tuple[str, RegisteredDevice | None]:
        """Return the device that holds a client, and its record if it is connected."""
        device = self.device_of_client.get(client, "")
        record = self.devices.get(device)
        available = record is not None and record.connected and client in record.clients
        return device, record if available else None

    def list_available_clients(self) -> list[str]:
        """Return the clients on connected devices, sorted by name."""
        return sorted(c for c in self.device_of_client if self.find_device(c)[1] is not None)
