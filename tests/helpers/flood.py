"""An enrolled device that floods the broker with packets, prepared once and sent as fast as it can."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from heterophony.boards.broker.enrolment import Enrolment

SIGN_IN = bytes([0x10, 13, 0, 4, *b"MQTT", 4, 2, 0, 60, 0, 1, *b"x"])  # MQTT 3.1.1, keepalive 60 s
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
    """One connection at a time, made again whenever the broker ends it."""

    def __init__(self, known: Enrolment, packet: bytes) -> None:
        self.known, self.trust = known, known.make_ssl_context()
        self.per_write = max(1, 65536 // max(len(packet), 1))
        self.buffer = packet * self.per_write
        self.sent = self.connections = 0
        self.refusals = 0  # of a connection; one that is cut off is made again

    def run(self, go_on: Callable[[], bool]) -> None:
        """Send until told to stop; without a packet, only connect."""
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
            link.sendall(SIGN_IN)
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
