"""The MQTT 5 client: the only file that imports paho. Turns its callbacks into plain values."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, LogLevel, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from .queues import BrokerEndpoint, OutgoingPacket, Will

# how long the broker keeps our session; at the end of this time it sends any will not sent before
SESSION_SECONDS = 3600
OWNER_PROPERTY = "link"  # name of the user property that holds the id of the publishing process
SESSION_TAKEN_OVER = 0x8E
DISCONNECT_WITH_WILL = 0x04  # the broker publishes the will even if we disconnect cleanly
BUSY_REASONS = (0x88, 0x89)  # the broker is unavailable or busy: try again soon


@dataclass
class ByteCounts:
    """The bytes of all MQTT packets that a transport has sent and received."""

    sent: int = 0
    received: int = 0


class ConnectionCallbacks(Protocol):
    """The callbacks of an MQTT client. Reasons are texts for users."""

    def on_connected(self, max_packet_bytes: int | None, max_in_flight: int | None) -> None:
        """Handle a new connection to the broker; a limit is None if the broker sets none."""

    def on_not_admitted(self, reason: str, busy: bool) -> None:
        """Handle a connection that the broker refused; a ``busy`` broker may accept it soon."""

    def on_subscribed(self) -> None:
        """Handle a confirmed subscription."""

    def on_subscription_refused(self, reason: str) -> None:
        """Handle a subscription that the broker refused."""

    def on_message(self, topic: str, payload: bytes, owner_id: str | None) -> None:
        """Handle a message; ``owner_id`` is the id of the process that published it, if it has one."""

    def on_acknowledged(self, number: int, refusal: str) -> None:
        """Handle the answer to a published message; ``refusal`` is empty if it was accepted."""

    def on_disconnected(self, reason: str, taken_over: bool) -> None:
        """Handle the end of the connection; ``taken_over`` if another client uses our name."""


class MqttClient:
    """Paho's MQTT client for one connection, used by one thread."""

    def __init__(
        self,
        endpoint: BrokerEndpoint,
        will: Will | None,
        callbacks: ConnectionCallbacks,
        byte_counts: ByteCounts,
    ) -> None:
        self.endpoint = endpoint
        self.callbacks = callbacks
        self.last_error = ""  # the last error that paho logged
        self.paho = client = CountingPahoClient(
            CallbackAPIVersion.VERSION2, endpoint.identity, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.byte_counts = byte_counts
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        client.on_log = self._on_log
        if endpoint.tls:
            client.tls_set_context(endpoint.tls)
        if endpoint.password is not None:
            client.username_pw_set(endpoint.identity, endpoint.password)
        if will:
            delay = _make_properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will.delay)
            client.will_set(will.topic, will.payload, qos=1, retain=True, properties=delay)

    @property
    def is_open(self) -> bool:
        """Whether the connection to the broker has a socket."""
        return self.paho.socket() is not None

    def connect(self, max_packet_bytes: int) -> None:
        """Connect to the broker and request a session that outlives the connection."""
        at = self.endpoint
        options = _make_properties(
            PacketTypes.CONNECT,
            SessionExpiryInterval=SESSION_SECONDS,
            MaximumPacketSize=max_packet_bytes,
        )
        self.paho.connect(at.address, at.port, at.keepalive, clean_start=False, properties=options)
        network: Any = self.paho.socket()
        # otherwise the system delays a small message until the previous one is acknowledged
        network.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange_packets(self, wake_receiver: socket.socket, seconds: float) -> None:
        """Wait for the network, a byte on ``wake_receiver`` or the time-out; then read and write packets."""
        network: Any = self.paho.socket()
        buffered = isinstance(network, ssl.SSLSocket) and network.pending() > 0
        to_write = [network] if self.paho.want_write() else []
        wait = 0.0 if buffered else seconds
        readable, writable, _ = select.select([network, wake_receiver], to_write, [], wait)
        if wake_receiver in readable:
            wake_receiver.recv(4096)
        if buffered or network in readable:
            self.paho.loop_read()
        if writable:
            self.paho.loop_write()
        self.paho.loop_misc()

    def subscribe(self, topics: Sequence[str], qos: int) -> None:
        """Subscribe to MQTT topics with this quality of service."""
        options = SubscribeOptions(qos=qos)
        self.paho.subscribe([(topic, options) for topic in topics])

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """End subscriptions to MQTT topics."""
        self.paho.unsubscribe(list(topics))

    def publish(self, packet: OutgoingPacket, owner_id: str | None) -> int:
        """Send a packet at QoS 1; return the number under which it will be acknowledged."""
        properties = _make_properties(PacketTypes.PUBLISH)
        if owner_id is not None:
            properties.UserProperty = (OWNER_PROPERTY, owner_id)
        return self.paho.publish(packet.topic, packet.payload, 1, packet.retain, properties).mid

    def disconnect(self) -> None:
        """Disconnect from the broker, which keeps the session."""
        self.paho.disconnect()

    def disconnect_and_end_session(self) -> None:
        """Disconnect from the broker and end the session."""
        forget = _make_properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0)
        self.paho.disconnect(properties=forget)

    def disconnect_with_will(self) -> None:
        """Disconnect from the broker, which then publishes our will."""
        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=DISCONNECT_WITH_WILL)
        self.paho.disconnect(reasoncode=reason)

    def close_socket(self) -> None:
        """Close the socket without a packet to the broker."""
        if (network := self.paho.socket()) is not None:
            network.close()

    # Callbacks of paho ----------------------------------------------------------------------
    def _on_connect(
        self, _: Client, __: Any, ___: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self.callbacks.on_not_admitted(str(reason), reason.value in BUSY_REASONS)
        else:
            self.callbacks.on_connected(
                getattr(properties, "MaximumPacketSize", None),
                getattr(properties, "ReceiveMaximum", None),
            )

    def _on_subscribe(
        self, _: Client, __: Any, ___: int, reasons: list[ReasonCode], ____: Any
    ) -> None:
        refusals = [str(reason) for reason in reasons if reason.is_failure]
        if refusals:
            self.callbacks.on_subscription_refused(refusals[0])
        else:
            self.callbacks.on_subscribed()

    def _on_message(self, _: Client, __: Any, message: MQTTMessage) -> None:
        # not one of our topics; an error would end the connection
        with suppress(UnicodeDecodeError):
            properties = dict(getattr(message.properties, "UserProperty", ()))
            owner_id = properties.get(OWNER_PROPERTY)
            self.callbacks.on_message(message.topic, bytes(message.payload), owner_id)

    def _on_publish(self, _: Client, __: Any, number: int, reason: ReasonCode, ___: Any) -> None:
        self.callbacks.on_acknowledged(number, str(reason) if reason.is_failure else "")

    def _on_disconnect(self, _: Client, __: Any, flags: Any, reason: ReasonCode, ___: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            self.callbacks.on_disconnected(str(reason), reason.value == SESSION_TAKEN_OVER)
        else:
            self.callbacks.on_disconnected(self.last_error or str(reason), taken_over=False)

    def _on_log(self, _: Client, __: Any, level: int, text: str) -> None:
        if level == LogLevel.MQTT_LOG_ERR:
            self.last_error = text


class CountingPahoClient(Client):
    """Paho's client that counts bytes, and acknowledges and drops messages that it cannot parse.

    Brokers pass on messages that paho refuses, such as one with a byte order mark in a user property.
    Paho would close the connection, and the broker would deliver the message again on the next one, so
    that a single board could keep the server offline.
    """

    byte_counts: ByteCounts

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent = super()._sock_send(buf)
        self.byte_counts.sent += sent
        return sent

    def _sock_recv(self, bufsize: int) -> bytes:
        received = super()._sock_recv(bufsize)
        self.byte_counts.received += len(received)
        return received

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        try:
            return super()._handle_publish()
        except Exception:
            topic_end = 2 + int.from_bytes(packet[:2], "big")
            if len(packet) < topic_end + 2:
                raise
            if self._in_packet["command"] & 0x06 == 0x02:  # QoS 1: the broker expects an answer
                return self._send_puback(int.from_bytes(packet[topic_end : topic_end + 2], "big"))
            return MQTTErrorCode.MQTT_ERR_SUCCESS


def _make_properties(packet: int, **values: int) -> Properties:
    """Return the MQTT properties of a packet of this type."""
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties
