"""MQTT clients for tests: one that records the messages it receives, and one that floods the broker."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Queue
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from heterophony.boards.broker.enrolment import Enrolment

DEADLINE = 30  # seconds; reached only where a test fails


class Client:
    """Connects when it is constructed; every wait has a deadline."""

    def __init__(
        self,
        known_as: Enrolment,
        *,
        called: str = "",
        session: bool = False,
        will: str | None = None,
    ) -> None:
        self.connects: Queue[tuple[str, bool]] = Queue()
        self.losses: Queue[str] = Queue()
        self.answers: Queue[tuple[int, str]] = Queue()
        self.subscribed: Queue[list[str]] = Queue()
        self.heard: Queue[tuple[str, bytes]] = Queue()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            called,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,  # a client that is disconnected stays so
        )
        self.paho.tls_set_context(known_as.make_ssl_context())
        self.paho.on_connect = self._connected
        self.paho.on_disconnect = lambda *told: self.losses.put(str(told[3]))
        self.paho.on_publish = lambda *told: self.answers.put((told[2], str(told[3])))
        self.paho.on_subscribe = lambda *told: self.subscribed.put([str(r) for r in told[3]])
        self.paho.on_message = lambda _, __, m: self.heard.put((m.topic, m.payload))
        if will is not None:
            self.paho.will_set(will, b"gone", qos=1, retain=True)
        keep = Properties(PacketTypes.CONNECT)
        keep.SessionExpiryInterval = 3600 if session else 0
        self.paho.connect(known_as.address, known_as.port, clean_start=not session, properties=keep)
        self.paho.loop_start()
        self.verdict, self.resumed = self.connects.get(timeout=DEADLINE)

    def _connected(self, client: Any, data: Any, flags: Any, reason: Any, _: Any) -> None:
        self.connects.put((str(reason), flags.session_present))

    def subscribe(self, *topics: str) -> None:
        self.paho.subscribe([(topic, paho.SubscribeOptions(qos=1)) for topic in topics])
        self.subscribed.get(timeout=DEADLINE)

    def publish(self, topic: str, payload: bytes = b"", retain: bool = False) -> str:
        """Publish, and return the broker's answer."""
        number = self.paho.publish(topic, payload, qos=1, retain=retain).mid
        answered, reason = self.answers.get(timeout=DEADLINE)
        assert answered == number
        return reason

    def until(self, marker: tuple[str, bytes]) -> list[tuple[str, bytes]]:
        """Return all messages before the marker."""
        heard: list[tuple[str, bytes]] = []
        while (message := self.heard.get(timeout=DEADLINE)) != marker:
            heard.append(message)
        return heard

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


CONNECT_5 = bytes([0x10, 14, 0, 4, *b"MQTT", 5, 2, 0, 10, 0, 0, 1, *b"x"])  # MQTT 5


def let_in(
    address: str, port: int, trust: ssl.SSLContext | None, packet: bytes = CONNECT_5
) -> bool:
    """Return True if the broker accepts a connection with this TLS context; None: no encryption."""
    try:
        with socket.create_connection((address, port), DEADLINE) as plain:
            if trust is None:
                return spoken(plain, packet)
            with trust.wrap_socket(plain, server_hostname=address) as hidden:
                return spoken(hidden, packet)
    except TimeoutError:
        raise
    except OSError:
        return False


def spoken(way: socket.socket, packet: bytes) -> bool:
    way.sendall(packet)
    answer = way.recv(4)
    return len(answer) == 4 and answer[0] == 0x20 and answer[3] == 0


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Run both sides of a TLS handshake in memory; the first to refuse raises."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue


# Floods ---------------------------------------------------------------------------------------

# MQTT 3.1.1, keepalive 60 s
CONNECT_3 = bytes([0x10, 13, 0, 4, *b"MQTT", 4, 2, 0, 60, 0, 1, *b"x"])
PING = bytes([0xC0, 0])


def make_publish(topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> bytes:
    name, number = topic.encode(), b"\0\1" * (qos > 0)
    content = len(name).to_bytes(2, "big") + name + number + payload
    return bytes([0x30 | qos << 1 | retain]) + encode_length(len(content)) + content


def make_subscribe(topic: str) -> bytes:
    name = topic.encode()
    content = b"\0\1" + len(name).to_bytes(2, "big") + name + b"\1"
    return b"\x82" + encode_length(len(content)) + content


def encode_length(n: int) -> bytes:
    """Return the length of a packet as MQTT writes it: seven bits per byte."""
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


class Flooder:
    """Sends one packet again and again; opens a new connection whenever the broker closes it."""

    def __init__(self, known: Enrolment, packet: bytes) -> None:
        self.known, self.trust = known, known.make_ssl_context()
        self.per_write = max(1, 65536 // max(len(packet), 1))
        self.buffer = packet * self.per_write
        self.sent = self.connections = 0
        self.refusals = 0  # refused connections

    def run(self, go_on: Callable[[], bool]) -> None:
        """Send until ``go_on`` returns False; without a packet, only connect."""
        while go_on():
            try:
                link = self.connect()
            except OSError:
                self.refusals += 1
                continue
            self.connections += 1
            with link, suppress(OSError):
                if self.buffer:
                    threading.Thread(target=self.drain, args=[link], daemon=True).start()
                while self.buffer and go_on():
                    link.sendall(self.buffer)
                    self.sent += self.per_write

    def connect(self) -> ssl.SSLSocket:
        at = self.known
        plain = socket.create_connection((at.address, at.port), 30)
        link = self.trust.wrap_socket(plain, server_hostname=at.address)
        try:
            link.sendall(CONNECT_3)
            if link.recv(4)[:1] != b"\x20":
                raise ConnectionError("not let in")
        except OSError:
            link.close()
            raise
        return link

    def drain(self, link: ssl.SSLSocket) -> None:
        with suppress(OSError, ValueError):
            while link.recv(65536):
                continue
