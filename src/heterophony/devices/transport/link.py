"""The one place that speaks MQTT: a connection that is made again for ever, and an inbox.

A thread of its own makes one connection after the other, each with a fresh client of paho's, which
only this thread touches. So nothing of a broken connection is carried into the next: what was not
acknowledged is forgotten, and the protocol above asks again. (A client that is kept resends by
itself; a message over the broker's limit would then cost every connection there ever is.)

Watchdog: paho pings when nothing was written or nothing was read for ``keepalive`` seconds, and
gives up when the answer takes as long; and whatever must be answered (connect, subscribe, publish)
has to be within two keepalives of the last answer. So a half-open connection is noticed within two
keepalives and a tick, by no message beyond MQTT's own.

Two processes of one name: the broker lets the newer in and ends the connection of the older, often
without a word, and the older would come back and do the same, for ever. So what we retain bears a
mark of ours. Who comes back and finds another's mark on the topic of its will, and not the will's
words, has been replaced: it withdraws, and the newer one finds all as it was.
"""

from __future__ import annotations

import secrets
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...core.errors import CodecError
from .inbox import ConnectionEvent, Inbox, ReceivedMessage
from .outbox import Outbox, OutgoingPacket
from .reconnect_backoff import BackoffSettings, ReconnectBackoff

MAX_PACKET_BYTES = 1 << 20  # bytes of one packet
MAX_IN_FLIGHT = 20  # messages sent and not acknowledged; a broker may ask for fewer
SESSION_SECONDS = (
    3600  # seconds that the broker keeps our session; a will is never later than its end
)
MAX_POLL_SECONDS = 1.0  # seconds between looks at the clock, at most
CLOSE_SECONDS = 5.0  # seconds an orderly end may take
OWNER_PROPERTY = "link"  # name of the user property
SESSION_TAKEN_OVER = 0x8E
DISCONNECT_WITH_WILL = 0x04  # a disconnect after which the will is said all the same
REPLACED_TEXT = (
    "another process came as {} and took its place; end one of the two, or give it another name"
)
BUSY_REASONS = (0x88, 0x89)  # the broker is unavailable or busy: no reason to be slow


@dataclass(frozen=True)
class BrokerEndpoint:
    """Where the broker is and who we are to it; with a password, the identity is the user name."""

    address: str
    port: int
    identity: str
    tls: ssl.SSLContext | None = None
    password: str | None = None
    keepalive: int = 30

    def __str__(self) -> str:
        return f"the broker at {self.address}:{self.port}"


@dataclass(frozen=True)
class Will:
    """What the broker says, retained, ``delay`` seconds after we vanished; at our end we say it."""

    topic: str
    payload: bytes
    delay: int = 15


class MqttTransport:
    """A connection to the broker, from construction to ``close``; no network trouble raises.

    ``inbox`` has what arrives and what becomes of the connection. ``standing`` is what is said,
    retained, at every connect: a broker that was killed may have forgotten it.
    """

    def __init__(
        self,
        peer: BrokerEndpoint,
        subscriptions: Sequence[str] = (),
        *,
        standing: Mapping[str, bytes] | None = None,
        will: Will | None = None,
        pace: BackoffSettings | None = None,
        limit: int = MAX_PACKET_BYTES,
        messages: int = 1024,
        memory: int = 64 << 20,
    ) -> None:
        self.endpoint = peer
        self.subscriptions = tuple(subscriptions)
        self.will = will
        self.max_packet_bytes = limit
        self.owner_id = secrets.token_hex(8)
        self.owner_id_stored = False  # whether the broker has taken a mark of ours
        self.inbox = Inbox(messages, memory)
        self.sent_bytes = self.received_bytes = (
            0  # bytes of MQTT packets, topics and answers included
        )
        self.wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._retained = dict(standing or {})
        self._backoff = ReconnectBackoff(peer.identity, pace or BackoffSettings())
        self._lock = threading.Lock()
        self._connection: _Connection | None = None  # only while it works
        self._last_event: ConnectionEvent | None = None
        self._closing = threading.Event()
        self._close_deadline = 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"mqtt link of {peer.identity}", daemon=True
        )
        self._thread.start()

    @property
    def connected(self) -> bool:
        """Whether the broker answered and all subscriptions stand."""
        return self._connection is not None

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Hand a message over; False when there is no connection or too much is under way.

        True does not mean that it arrives. What is retained also replaces what ``standing`` has for
        its topic, so it is said at the next connect if it cannot be now. A message over the limit
        is an error: it can never be sent, and the broker would end the connection over it.
        """
        parcel = OutgoingPacket(topic, payload, retain)
        with self._lock:
            connection = self._connection
            limit = connection.max_packet_bytes if connection else self.max_packet_bytes
            if parcel.size > limit:
                raise CodecError(_describe_oversize(parcel, limit, self.endpoint))
            if retain:
                self._retained[topic] = payload
            if connection is None or self._closing.is_set():
                return False
            taken = connection.outbox.put(parcel)
        self._wake()
        return taken

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what was handed over, say the will's words, part from the broker; at most so long."""
        if not self._closing.is_set():
            self._close_deadline = time.monotonic() + seconds
            self._closing.set()
            self._wake()
        self._thread.join(seconds + MAX_POLL_SECONDS)
        if not self._thread.is_alive():  # else it waits for a network that does not answer
            self.wake_receiver.close()
            self._wake_sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_close_deadline(self) -> float | None:
        """Until when the orderly end may take, once it has begun."""
        return self._close_deadline if self._closing.is_set() else None

    def activate(self, connection: _Connection) -> None:
        """From here on there is a connection: what stands is said first."""
        with self._lock:
            for topic, payload in self._retained.items():
                connection.outbox.put(OutgoingPacket(topic, payload, retain=True), always=True)
            self._connection = connection
        self.report_event(
            ConnectionEvent(
                "connected", f"connected to {self.endpoint} as {self.endpoint.identity}"
            )
        )

    def report_event(self, event: ConnectionEvent) -> None:
        """Put the event into the inbox, unless it only repeats the last one."""
        if event != self._last_event:
            self._last_event = event
            self.inbox.offer(event)

    def _wake(self) -> None:
        with suppress(OSError):  # full: it will wake; closed: there is nobody to wake
            self._wake_sender.send(b"!")

    def _run(self) -> None:
        while not self._closing.is_set():
            connection = _Connection(self)
            ended = connection.run()
            with self._lock:
                self._connection = None
            self.report_event(ended)
            began = connection.working_since
            lived = time.monotonic() - began if began is not None else 0.0
            self._closing.wait(self._backoff.compute_wait(ended.kind == "refused", lived))


class _Connection:
    """One connection from its first packet to its end; all of it in the link's thread."""

    def __init__(self, link: MqttTransport) -> None:
        self.transport = link
        self.endpoint = link.endpoint
        self.max_packet_bytes = link.max_packet_bytes
        self.outbox = Outbox()
        self.working_since: float | None = None
        self.end_event: ConnectionEvent | None = None
        self.max_in_flight = MAX_IN_FLIGHT
        self.last_answer_time = time.monotonic()  # the last answer, or since when one is owed
        self.last_client_error = ""  # the last that paho complained of
        self.pending_will = link.will
        self.replaced = False
        self.pending_subscriptions = [link.subscriptions] if link.subscriptions else []
        if will := link.will:  # what is retained of it is here before the next is answered
            own = (will.topic,)
            self.pending_subscriptions = [own, *(self.pending_subscriptions or [own])]
        self.client = self._make_client()

    def run(self) -> ConnectionEvent:
        """Connect and work until the end; why it ended."""
        peer = self.endpoint
        wishes = _make_properties(
            PacketTypes.CONNECT,
            SessionExpiryInterval=SESSION_SECONDS,
            MaximumPacketSize=self.max_packet_bytes,
        )
        try:
            self.client.connect(
                peer.address, peer.port, peer.keepalive, clean_start=False, properties=wishes
            )
            self._disable_nagle()
            while self.client.socket() is not None:
                self._run_once()
        except Exception as err:  # whatever it was: the answer to it is the next connection
            self._record_end(str(err) or type(err).__name__)
        finally:
            if (left := self.client.socket()) is not None:
                left.close()
        self._record_end("it ended without a word")
        assert self.end_event
        return self.end_event

    def _disable_nagle(self) -> None:
        """Else the system keeps a small message back until the one before it is acknowledged."""
        way: Any = self.client.socket()
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _make_client(self) -> _CountingClient:
        client = _CountingClient(
            CallbackAPIVersion.VERSION2, self.endpoint.identity, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.mqtt_transport = self.transport
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        client.on_log = self._on_log
        if self.endpoint.tls:
            client.tls_set_context(self.endpoint.tls)
        if self.endpoint.password is not None:
            client.username_pw_set(self.endpoint.identity, self.endpoint.password)
        if will := self.transport.will:
            later = _make_properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will.delay)
            client.will_set(will.topic, will.payload, qos=1, retain=True, properties=later)
        return client

    def _run_once(self) -> None:
        """Wait for the network, for something to send, or for the clock; do what there is to do."""
        client, woken = self.client, self.transport.wake_receiver
        network: Any = client.socket()
        read = isinstance(network, ssl.SSLSocket) and network.pending() > 0
        writing = [network] if client.want_write() else []
        wait = 0.0 if read else min(MAX_POLL_SECONDS, self.endpoint.keepalive / 4)
        ready, writable, _ = select.select([network, woken], writing, [], wait)
        if woken in ready:
            woken.recv(4096)
        if read or network in ready:
            client.loop_read()
        if writable:
            client.loop_write()
        client.loop_misc()
        if self.working_since is not None:
            self._send_waiting()
        self._close_if_requested()
        owed = self.working_since is None or self.outbox.in_flight > 0
        if owed and time.monotonic() - self.last_answer_time > 2 * self.endpoint.keepalive:
            raise TimeoutError(f"no answer for {2 * self.endpoint.keepalive} s")

    def _send_waiting(self) -> None:
        while parcel := self.outbox.take_next(self.max_in_flight):
            if (
                parcel.size > self.max_packet_bytes
            ):  # what stands may be over the limit of another broker
                self.transport.report_event(
                    ConnectionEvent(
                        "denied", _describe_oversize(parcel, self.max_packet_bytes, self.endpoint)
                    )
                )
                continue
            if not self.outbox.in_flight:
                self.last_answer_time = time.monotonic()
            mark = _make_properties(PacketTypes.PUBLISH)
            if parcel.retain and not self._is_will_message(parcel):
                mark.UserProperty = (OWNER_PROPERTY, self.transport.owner_id)
            info = self.client.publish(parcel.topic, parcel.payload, 1, parcel.retain, mark)
            self.outbox.record_sent(info.mid, parcel)

    def _is_will_message(self, parcel: OutgoingPacket) -> bool:
        """Who says it makes place for others, so it bears no mark; nor does the will itself."""
        will = self.transport.will
        return will is not None and (parcel.topic, parcel.payload) == (will.topic, will.payload)

    def _close_if_requested(self) -> None:
        """Once the link is to close: the last words, and when all is acknowledged, the end."""
        until = self.transport.get_close_deadline()
        if until is None or self.client.socket() is None:
            return
        if self.working_since is None or time.monotonic() > until:
            raise TimeoutError("closed before all was said")  # then the will is what is said
        if will := self.pending_will:
            self.pending_will = None
            self.outbox.put(OutgoingPacket(will.topic, will.payload, retain=True), always=True)
            self._send_waiting()
        elif self.outbox.empty:
            # the session ends with it: who comes back begins with a greeting
            forget = _make_properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0)
            self.client.disconnect(properties=forget)

    def _record_end(self, why: str, refused: bool = False) -> None:
        """Keep the first reason: what follows from it says less."""
        unwanted = any(word in why.upper() for word in ("CERTIFICATE", "UNKNOWN_CA"))
        if refused or unwanted:
            event = ConnectionEvent("refused", f"refused by {self.endpoint}: {why}")
        else:
            event = ConnectionEvent("lost", f"no connection to {self.endpoint}: {why}")
        self.end_event = self.end_event or event

    def _on_connect(
        self, client: Client, _: Any, __: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            who = f"{self.endpoint.identity} is not let in ({reason}); is it enrolled there?"
            busy = reason.value in BUSY_REASONS
            self._record_end(str(reason) if busy else who, refused=not busy)
            return
        self.last_answer_time = time.monotonic()
        self.max_packet_bytes = min(
            self.max_packet_bytes, getattr(properties, "MaximumPacketSize", self.max_packet_bytes)
        )
        self.max_in_flight = min(
            MAX_IN_FLIGHT, getattr(properties, "ReceiveMaximum", MAX_IN_FLIGHT)
        )
        self._subscribe_next()

    def _on_subscribe(
        self, client: Client, _: Any, __: int, reasons: list[ReasonCode], ___: Any
    ) -> None:
        refused = [str(reason) for reason in reasons if reason.is_failure]
        if refused:
            self._record_end(
                f"{self.endpoint.identity} may not subscribe ({refused[0]})", refused=True
            )
            client.disconnect()
        else:
            self.last_answer_time = time.monotonic()
            self._subscribe_next()

    def _subscribe_next(self) -> None:
        """Subscribe to what is left; then there is a connection, unless it is no longer ours."""
        if self.pending_subscriptions:
            options = SubscribeOptions(qos=1)
            self.client.subscribe([(topic, options) for topic in self.pending_subscriptions.pop(0)])
        elif self.replaced:
            self._record_end(REPLACED_TEXT.format(self.endpoint.identity), refused=True)
            # our coming took back the will of a newer one that was killed: leave ours instead
            leaving = ReasonCode(PacketTypes.DISCONNECT, identifier=DISCONNECT_WITH_WILL)
            self.client.disconnect(reasoncode=leaving)
        else:
            self.working_since = time.monotonic()
            self.transport.activate(self)

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        with suppress(UnicodeDecodeError):  # no topic of ours; an error would end the connection
            topic, will = message.topic, self.transport.will
            if will and topic == will.topic:
                self._detect_replacement(message, will)
                if topic not in self.transport.subscriptions:
                    return
            self.transport.inbox.offer(ReceivedMessage(topic, bytes(message.payload)))

    def _detect_replacement(self, message: MQTTMessage, will: Will) -> None:
        marks = dict(getattr(message.properties, "UserProperty", ()))
        other = marks.get(OWNER_PROPERTY, self.transport.owner_id) != self.transport.owner_id
        self.replaced = self.transport.owner_id_stored and other and message.payload != will.payload

    def _on_publish(self, _: Client, __: Any, number: int, reason: ReasonCode, ___: Any) -> None:
        self.last_answer_time = time.monotonic()
        parcel = self.outbox.record_acknowledged(number)
        if parcel and parcel.retain and not reason.is_failure:
            self.transport.owner_id_stored = True
        if parcel and reason.is_failure:
            what = f"what {self.endpoint.identity} says on {parcel.topic}"
            self.transport.report_event(
                ConnectionEvent("denied", f"{self.endpoint} does not take {what}: {reason}")
            )

    def _on_disconnect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        if not flags.is_disconnect_packet_from_server:
            self._record_end(self.last_client_error or str(reason))
        elif reason.value == SESSION_TAKEN_OVER:
            self._record_end(REPLACED_TEXT.format(self.endpoint.identity), refused=True)
        else:
            self._record_end(str(reason))

    def _on_log(self, _: Client, __: Any, level: int, text: str) -> None:
        if level == LogLevel.MQTT_LOG_ERR:
            self.last_client_error = text


class _CountingClient(Client):
    """Paho's client, but its bytes are counted, and a message it cannot read does no harm.

    It is acknowledged and dropped. Brokers pass on what paho refuses (a byte order mark in a user
    property will do). Paho then ends the connection, the broker delivers the message again at the
    next, and so for ever: one device could keep the server away.
    """

    mqtt_transport: MqttTransport

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent = super()._sock_send(buf)
        self.mqtt_transport.sent_bytes += sent
        return sent

    def _sock_recv(self, bufsize: int) -> bytes:
        received = super()._sock_recv(bufsize)
        self.mqtt_transport.received_bytes += len(received)
        return received

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        try:
            return super()._handle_publish()
        except Exception:
            end = 2 + int.from_bytes(packet[:2], "big")
            if len(packet) < end + 2:
                raise
            if self._in_packet["command"] & 0x06 == 0x02:  # QoS 1: the broker waits for an answer
                return self._send_puback(int.from_bytes(packet[end : end + 2], "big"))
            return MQTTErrorCode.MQTT_ERR_SUCCESS


def _make_properties(packet: int, **values: int) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def _describe_oversize(parcel: OutgoingPacket, limit: int, peer: BrokerEndpoint) -> str:
    return (
        f"a message of {parcel.size} bytes to {parcel.topic} is over the limit of {limit} bytes "
        f"of {peer}; send smaller chunks"
    )
