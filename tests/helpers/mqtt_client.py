"""A plain MQTT client for tests of the broker: it queues all answers and messages in order."""

from __future__ import annotations

import socket
import ssl
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


SIGN_IN = bytes([0x10, 14, 0, 4, *b"MQTT", 5, 2, 0, 10, 0, 0, 1, *b"x"])


def let_in(address: str, port: int, trust: ssl.SSLContext | None, packet: bytes = SIGN_IN) -> bool:
    """Return whether a connection with this context is accepted; None is without encryption."""
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
