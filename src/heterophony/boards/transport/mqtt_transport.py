"""The transport: keeps a connection to the broker and restores it whenever it breaks."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from zlib import crc32

from ...core.errors import CodecError
from .connection import MAX_POLL_SECONDS, Connection, NameOwnership, describe_oversized_packet
from .paho_client import ByteCounts
from .queues import BrokerEndpoint, ConnectionEvent, FindSender, Inbox, OutgoingPacket, Will


@dataclass(frozen=True)
class BackoffSettings:
    """Seconds between attempts to connect: ``first``, doubled after each failure, at most ``longest``.

    After a refusal (wrong credentials, or another process uses the name), fast retries do not help, and
    two processes with the same name would disconnect each other forever. So waits then begin with
    ``first_after_refusal`` and grow to ten times that.
    """

    first: float = 0.5
    longest: float = 30.0
    first_after_refusal: float = 60.0


class ReconnectBackoff:
    """Computes the waits of one transport between connections.

    Each wait is shortened by a fraction that depends on the transport's name, so that boards that lost
    the same broker do not return at the same instant.
    """

    def __init__(self, name: str, settings: BackoffSettings) -> None:
        self.name = name
        self.settings = settings
        self.failures = 0

    def compute_wait(self, refused: bool, active_seconds: float) -> float:
        """Return the seconds to wait after a connection that was active for ``active_seconds``."""
        shortest, longest = self.settings.first, self.settings.longest
        if refused:
            shortest = self.settings.first_after_refusal
            longest = 10 * shortest
        if (
            active_seconds > 2 * longest
        ):  # a connection that is refused after a long wait still counts as a failure
            self.failures = 0
        wait = min(longest, shortest * 2.0 ** min(self.failures, 30))
        self.failures += 1
        fraction = crc32(f"{self.name} {self.failures}".encode()) / 2**33
        return wait * (1 - fraction)


MAX_PACKET_BYTES = 1 << 20  # longest packet
INBOX_MESSAGES, INBOX_BYTES = 1024, 64 << 20
CLOSE_SECONDS = 5.0  # time limit for closing cleanly


class MqttTransport:
    """Keeps a connection to a broker from construction to ``close``; network errors raise no exception.

    ``inbox`` receives messages and connection events. ``retained`` maps topics to payloads that are
    published as retained messages after each connect, because a restarted broker may have lost them.
    ``find_sender`` returns the sender of a topic, so that each sender has a limited share of the inbox.
    Without ``acknowledges``, messages arrive faster, but those sent while there is no connection are lost.
    """

    def __init__(
        self,
        endpoint: BrokerEndpoint,
        subscriptions: Sequence[str] = (),
        *,
        retained: Mapping[str, bytes] | None = None,
        will: Will | None = None,
        backoff: BackoffSettings | None = None,
        find_sender: FindSender | None = None,
        acknowledges: bool = True,
    ) -> None:
        self.endpoint = endpoint
        self.subscriptions = tuple(subscriptions)
        self.left_subscriptions: tuple[str, ...] = ()  # the broker may remember them
        self.subscription_qos = int(acknowledges)
        self.will = will
        self.max_packet_bytes = MAX_PACKET_BYTES
        self.ownership = NameOwnership(will)
        self.inbox = Inbox(
            max_messages=INBOX_MESSAGES, max_bytes=INBOX_BYTES, find_sender=find_sender
        )
        self.byte_counts = ByteCounts()
        self.wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._retained = dict(retained or {})
        self._backoff = ReconnectBackoff(endpoint.identity, backoff or BackoffSettings())
        self._lock = threading.Lock()
        self._connection: Connection | None = None  # only while a connection is active
        self._last_event: ConnectionEvent | None = None
        self._closing = threading.Event()
        self._close_deadline = 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"MQTT transport of {endpoint.identity}", daemon=True
        )
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the broker has confirmed all subscriptions."""
        return self._connection is not None

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Queue a message; return False if there is no connection or too much is waiting.

        A queued message may still be lost. A retained message also replaces the entry of its topic in
        ``retained``, which is published at the next connect. Raise CodecError if the message is over the
        broker's limit.
        """
        packet = OutgoingPacket(topic, payload, retain)
        with self._lock:
            connection = self._connection
            limit = connection.max_packet_bytes if connection else self.max_packet_bytes
            if packet.size > limit:
                raise CodecError(describe_oversized_packet(packet, limit, self.endpoint))
            if retain:
                self._retained[topic] = payload
            if connection is None or self._closing.is_set():
                return False
            queued = connection.outbox.put(packet)
        self._wake()
        return queued

    def replace_subscriptions(self, subscriptions: Sequence[str]) -> None:
        """Subscribe to these topics instead, on this connection and all later ones."""
        with self._lock:
            new = tuple(subscriptions)
            self.left_subscriptions = tuple(
                t for t in {*self.left_subscriptions, *self.subscriptions} if t not in new
            )
            self.subscriptions = new
            if self._connection:
                self._connection.renew_subscriptions = True
        self._wake()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the queued messages, publish the will and disconnect, within ``seconds``."""
        if not self._closing.is_set():
            self._close_deadline = time.monotonic() + seconds
            self._closing.set()
            self._wake()
        self._thread.join(seconds + MAX_POLL_SECONDS)
        if not self._thread.is_alive():  # otherwise the thread still waits for the network
            self.wake_receiver.close()
            self._wake_sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_close_deadline(self) -> float | None:
        """Return the time at which closing must be finished; None while the transport is open."""
        return self._close_deadline if self._closing.is_set() else None

    def activate(self, connection: Connection) -> None:
        """Make this the active connection; publish the retained messages first."""
        with self._lock:
            for topic, payload in self._retained.items():
                connection.outbox.put(OutgoingPacket(topic, payload, retain=True), always=True)
            self._connection = connection
        text = f"connected to {self.endpoint} as {self.endpoint.identity}"
        self.report_event(ConnectionEvent("connected", text))

    def report_event(self, event: ConnectionEvent) -> None:
        """Add a connection event to the inbox, unless it repeats the last one."""
        if event != self._last_event:
            self._last_event = event
            self.inbox.offer(event)

    def _wake(self) -> None:
        """Wake the connection's thread to send messages or to close."""
        with suppress(OSError):  # full: it wakes anyway; closed: the thread has exited
            self._wake_sender.send(b"!")

    def _run(self) -> None:
        """Connect again whenever the connection is lost, until the transport is closed."""
        while not self._closing.is_set():
            connection = Connection(self)
            ended = connection.run()
            with self._lock:
                self._connection = None
            self.report_event(ended)
            start = connection.active_since
            active_seconds = time.monotonic() - start if start is not None else 0.0
            self._closing.wait(self._backoff.compute_wait(ended.kind == "refused", active_seconds))
