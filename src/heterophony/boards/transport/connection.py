"""One connection to the broker: subscribe, send, receive, and notice when it breaks or stalls.

Paho pings when nothing was written or read for ``keepalive`` seconds and gives up if no answer
comes within the same time. Beyond that, every packet that must be answered (connect, subscribe, publish) has to be
answered within two keepalives of the last answer. So a half-open connection is noticed within two
keepalives and one poll, without any messages beyond those that MQTT sends anyway.
"""

from __future__ import annotations

import secrets
import socket
import time
from typing import Protocol

from . import queues
from .paho_client import ByteCounts, MqttClient


class Watchdog:
    """Measures how long an answer of the broker has been due."""

    def __init__(self, keepalive: int) -> None:
        self.max_seconds = 2 * keepalive
        self.reset()

    def reset(self) -> None:
        """Restart the timer, because the broker has answered or now owes another answer."""
        self.waiting_since = time.monotonic()

    def check(self) -> None:
        """Raise TimeoutError if the broker's answer is overdue; call this only while an answer is due."""
        if time.monotonic() - self.waiting_since > self.max_seconds:
            raise TimeoutError(f"no answer for {self.max_seconds} s")


class NameOwnership:
    """Detects that another process has connected to the broker under our name, by ids in retained messages."""

    def __init__(self, will: queues.Will | None) -> None:
        self.will = will
        self.owner_id = secrets.token_hex(8)
        self.stored = False  # the broker has acknowledged a retained message with our id

    def select_owner_id(self, packet: queues.OutgoingPacket) -> str | None:
        """Return the id of this process for a retained packet, except the will; otherwise None.

        The will is published when we have left, so it must not look like another process.
        """
        return self.owner_id if packet.retain and not self.is_will(packet) else None

    def record_acknowledged(self, packet: queues.OutgoingPacket) -> None:
        """Record that the broker has acknowledged a packet, and stored our id if it was retained."""
        self.stored = self.stored or packet.retain

    def is_will(self, packet: queues.OutgoingPacket) -> bool:
        """Return True if a packet has the topic and payload of our will."""
        will = self.will
        return will is not None and (packet.topic, packet.payload) == (will.topic, will.payload)

    def is_on_will_topic(self, topic: str) -> bool:
        """Return True if a topic is the topic of our will."""
        return self.will is not None and topic == self.will.topic

    def is_replaced_by(self, payload: bytes, owner_id: str | None) -> bool:
        """Return True if a message on the will's topic is from another process under our name."""
        assert self.will is not None
        foreign = owner_id is not None and owner_id != self.owner_id
        return self.stored and foreign and payload != self.will.payload


MAX_IN_FLIGHT = 20  # messages sent and not acknowledged; a broker may ask for fewer
MAX_POLL_SECONDS = 1.0  # the longest wait before the clock is checked again
REPLACED_TEXT = (
    "another process connected as {}; stop one of the two, or enrol one under another name"
)


class ConnectionOwner(Protocol):
    """The interface of the transport to which a connection belongs."""

    endpoint: queues.BrokerEndpoint
    subscriptions: tuple[str, ...]
    left_subscriptions: tuple[str, ...]
    subscription_qos: int
    will: queues.Will | None
    max_packet_bytes: int
    ownership: NameOwnership
    inbox: queues.Inbox
    byte_counts: ByteCounts
    wake_receiver: socket.socket

    def activate(self, connection: Connection) -> None:
        """Make this the active connection, because all its subscriptions are confirmed."""

    def report_event(self, event: queues.ConnectionEvent) -> None: ...

    def get_close_deadline(self) -> float | None:
        """Return the time at which closing must be finished; None while the transport is open."""


class Connection:
    """One connection to the broker, from connecting until it ends, in the transport's thread."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self.owner = owner
        self.endpoint = owner.endpoint
        self.ownership = owner.ownership
        self.max_packet_bytes = owner.max_packet_bytes
        self.max_in_flight = MAX_IN_FLIGHT
        self.outbox = queues.Outbox()
        self.watchdog = Watchdog(self.endpoint.keepalive)
        self.active_since: float | None = None
        self.end_event: queues.ConnectionEvent | None = None
        self.unpublished_will = owner.will
        self.replaced = False
        self.renew_subscriptions = bool(owner.left_subscriptions)
        self.pending_subscriptions = [owner.subscriptions] if owner.subscriptions else []
        if (
            will := owner.will
        ):  # its retained message arrives before the answer to the next subscription
            own = (will.topic,)
            self.pending_subscriptions = [own, *(self.pending_subscriptions or [own])]
        self.client = MqttClient(self.endpoint, owner.will, self, owner.byte_counts)

    def run(self) -> queues.ConnectionEvent:
        """Connect and exchange packets until the connection ends; return the event with the reason."""
        try:
            self.client.connect(self.max_packet_bytes)
            while self.client.is_open:
                self.run_once()
        except Exception as error:  # after any error, connect again
            self.record_end(str(error) or type(error).__name__)
        finally:
            self.client.close_socket()
        self.record_end("it ended without a reason")
        assert self.end_event
        return self.end_event

    def run_once(self) -> None:
        """Exchange packets with the broker once; raise TimeoutError if its answer is overdue."""
        wait = min(MAX_POLL_SECONDS, self.endpoint.keepalive / 4)
        self.client.exchange_packets(self.owner.wake_receiver, wait)
        if self.active_since is not None:
            self.send_waiting()
            if self.renew_subscriptions:
                self.renew_subscriptions = False
                self.client.unsubscribe(self.owner.left_subscriptions)
                if self.owner.subscriptions:
                    self.client.subscribe(self.owner.subscriptions, self.owner.subscription_qos)
        self.close_if_requested()
        if self.active_since is None or self.outbox.in_flight > 0:  # there is an answer to wait for
            self.watchdog.check()

    def send_waiting(self) -> None:
        """Send waiting MQTT packets, as many as the window allows."""
        while packet := self.outbox.take_next(self.max_in_flight):
            if packet.size > self.max_packet_bytes:  # retained before this broker set its limit
                text = describe_oversized_packet(packet, self.max_packet_bytes, self.endpoint)
                self.owner.report_event(queues.ConnectionEvent("denied", text))
                continue
            if not self.outbox.in_flight:
                self.watchdog.reset()
            number = self.client.publish(packet, self.ownership.select_owner_id(packet))
            self.outbox.record_sent(number, packet)

    def close_if_requested(self) -> None:
        """If the transport is closing, publish the will, wait for all acknowledgements and disconnect."""
        deadline = self.owner.get_close_deadline()
        if deadline is None or not self.client.is_open:
            return
        if self.active_since is None or time.monotonic() > deadline:
            # the broker then publishes the will
            raise TimeoutError("closed before everything was sent")
        if will := self.unpublished_will:
            self.unpublished_will = None
            self.outbox.put(
                queues.OutgoingPacket(will.topic, will.payload, retain=True), always=True
            )
            self.send_waiting()
        elif self.outbox.empty:
            self.client.disconnect_and_end_session()

    def record_end(self, why: str, refused: bool = False) -> None:
        """Record why the connection ended; keep only the first reason, which causes later ones."""
        untrusted = any(word in why.upper() for word in ("CERTIFICATE", "UNKNOWN_CA"))
        if refused or untrusted:
            event = queues.ConnectionEvent("refused", f"refused by {self.endpoint}: {why}")
        else:
            event = queues.ConnectionEvent(
                "lost", f"no connection to {self.endpoint}: {explain_lost_connection(why)}"
            )
        self.end_event = self.end_event or event

    def subscribe_next(self) -> None:
        """Send the next subscriptions; after the last, activate the connection, or end it if replaced."""
        if self.active_since is not None:
            return  # the answer to subscriptions that were replaced later
        if self.pending_subscriptions:
            self.client.subscribe(self.pending_subscriptions.pop(0), self.owner.subscription_qos)
        elif self.replaced:
            self.record_end(REPLACED_TEXT.format(self.endpoint.identity), refused=True)
            # our connection cancelled the will of a newer process that was killed: leave ours
            self.client.disconnect_with_will()
        else:
            self.active_since = time.monotonic()
            self.owner.activate(self)

    # Callbacks of the client ----------------------------------------------------------------
    def on_connected(self, max_packet_bytes: int | None, max_in_flight: int | None) -> None:
        self.watchdog.reset()
        if max_packet_bytes is not None:
            self.max_packet_bytes = min(self.max_packet_bytes, max_packet_bytes)
        if max_in_flight is not None:
            self.max_in_flight = min(self.max_in_flight, max_in_flight)
        self.subscribe_next()

    def on_not_admitted(self, reason: str, busy: bool) -> None:
        if busy:
            self.record_end(reason)
        else:
            who = self.endpoint.identity
            self.record_end(
                f"{who} is not admitted ({reason}); is it enrolled at this broker?", refused=True
            )

    def on_subscribed(self) -> None:
        self.watchdog.reset()
        self.subscribe_next()

    def on_subscription_refused(self, reason: str) -> None:
        self.record_end(f"{self.endpoint.identity} may not subscribe ({reason})", refused=True)
        self.client.disconnect()

    def on_message(self, topic: str, payload: bytes, owner_id: str | None) -> None:
        if self.ownership.is_on_will_topic(topic):
            self.replaced = self.ownership.is_replaced_by(payload, owner_id)
            if topic not in self.owner.subscriptions:
                return
        self.owner.inbox.offer(queues.ReceivedMessage(topic, payload))

    def on_acknowledged(self, number: int, refusal: str) -> None:
        self.watchdog.reset()
        packet = self.outbox.record_acknowledged(number)
        if packet and refusal:
            who = self.endpoint.identity
            text = f"{self.endpoint} refuses messages of {who} to {packet.topic}: {refusal}"
            self.owner.report_event(queues.ConnectionEvent("denied", text))
        elif packet:
            self.ownership.record_acknowledged(packet)

    def on_disconnected(self, reason: str, taken_over: bool) -> None:
        if taken_over:
            self.record_end(REPLACED_TEXT.format(self.endpoint.identity), refused=True)
        else:
            self.record_end(reason)


def explain_lost_connection(why: str) -> str:
    """Describe why the connection was lost; if a certificate is revoked, the broker just closes the connection."""
    if "EOF occurred in violation of protocol" in why:
        return "it closed the connection: this enrolment may be revoked, or the broker is stopping"
    return why


def describe_oversized_packet(
    packet: queues.OutgoingPacket, limit: int, endpoint: queues.BrokerEndpoint
) -> str:
    """Return the error message for a packet that is too large for the broker."""
    return (
        f"a message of {packet.size} bytes to {packet.topic} is over the limit of {limit} bytes "
        f"of {endpoint}; send smaller chunks"
    )
